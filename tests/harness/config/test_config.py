"""Bad input is refused with the key, before anything heavy is imported."""

import subprocess
import sys

import pytest

from harness.compose import compose
from harness.config import parse
from harness.errors import UserError


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["correction.weight.upper=2"], r"correction.weight.upper=2.* has no effect while level is null"),
        (["correction=token_truncate", "correction.weight.upper=0.5"], r"correction.weight.upper=0.5 is below 1"),
        (["correction=sequence_mask", "correction.weight.lower=1.5"], r"correction.weight.lower=1.5 is outside \[0, 1\]"),
        (["correction=token_truncate", "correction.weight.lower=0.5"], r"lower=0.5 has no effect with action=truncate"),
        (["correction=token_truncate", "correction.weight.upper=null"], r"correction.weight.upper is missing"),
        (["correction=sequence_mask", "correction.weight.upper=null"], r"lower and upper are both missing"),
        (["correction.normalize=batch"], r"correction.normalize=batch has no effect"),
        (["correction.denominator=kept"], r"correction.denominator=kept has no effect"),
        (["+correction.reject.veto={level: worst_token}"], r"correction.reject.veto.lower and upper are both missing"),
        (["+correction.reject.k={level: geometric, statistic: k3, lower: 0.1}"], r"lower=0.1 has no effect: k3"),
        (["correction.ratio=current"], r"correction.ratio=current has no effect without a weight or a filter"),
        (["correction.weight.action=mask"], r"correction.weight.action=mask has no effect while level is null"),
        (["warmstart.keep_low=0.9"], r"warmstart.keep_low=0.9 must be below keep_high=0.8"),
        (["actor.betas=[1.0,0.9]"], r"actor.betas.0=1.0"),
        (["rollout/precision=nvfp4", "model.intermediate_size=100"], r"a multiple of 16 values; model.intermediate_size is 100"),
        (["rollout/precision=mxfp8", "model.intermediate_size=48"], r"a multiple of 32 values; model.intermediate_size is 48"),
        (["rollout.precision.weights=fp8_block"], r"activations=fp8_token with weights=fp8_block: fp8_group goes with fp8_block"),
        (["reduce.norm=5"], r"reduce.norm=5 has no effect with mode=token_mean; use norm=null"),
        (["reduce.mode=seq_mean_token_sum_norm"], r"reduce.norm is missing"),
        (["kl.coef=0.1"], r"kl.coef=0.1 with name=None: a KL term needs both an estimator and a positive coef"),
        (["kl=k3", "kl.coef=0"], r"kl.coef=0.0 with name=k3: a KL term needs both"),
        (["kl=k2", "kl.place=old"], r"kl.place='old': must be 'loss' or 'reward'"),
        (["kl.place=reward"], r"kl.place=reward has no effect with name=null; choose an estimator"),
        (["kl=k3_k2", "kl.place=reward"], r"kl.name=k3_k2 differs from k3 in its gradient, which a reward has not; use kl=k3"),
        (["kl=k3", "kl.target=0.1"], r"kl.target and kl.horizon have no effect with place=loss"),
        (["kl=k3", "kl.place=reward", "kl.target=0.1"], r"kl.target=0.1 with horizon=None: an adaptive coef needs both"),
        (["kl=k3", "kl.place=reward", "kl.target=0", "kl.horizon=9"], r"kl.target=0: must be greater than 0"),
        (["entropy_coeff=-1"], r"entropy_coeff=-1: must be greater than or equal to 0"),
        (["overlong.penalty=2"], r"overlong.penalty=2 has no effect with buffer=null; set overlong.buffer"),
        (["actor.schedule.min_lr_ratio=0.1"], r"actor.schedule.min_lr_ratio=0.1 has no effect with name=constant"),
        (["actor.schedule.name=inverse_sqrt"], r"actor.schedule.warmup_steps=0 with name=inverse_sqrt"),
        (["actor.schedule.name=wsd"], r"actor.schedule.name='wsd': must be 'constant', 'linear'"),
        (["critic.warmup_steps=5"], r"critic.warmup_steps=5 has no effect with critic.lr=null, as there is no c"),
        (["critic.cliprange_value=null"], r"critic.cliprange_value=None has no effect with critic.lr=null"),
        (["advantage=gae", "critic.cliprange_value=0"], r"critic.cliprange_value=0: must be greater than 0"),
        (["advantage=gae", "critic.warmup_steps=280"], r"critic.warmup_steps=280: the policy would never learn in a run of 280"),
        (["advantage=gae", "critic.lr=2"], r"critic.lr=2: must be less than or equal to 1"),
        (
            ["actor.schedule.warmup_steps=560", "actor.num_minibatches=2"],
            r"actor.schedule.warmup_steps=560: the run has 560 optimizer steps .*; give fewer",
        ),
        (["rollout.filter.max_rounds=1"], r"rollout.filter.max_rounds=1: must be greater than or equal to 2"),
        (["rollout.filter.max_rounds=2", "rollout.staleness=1"], r"rollout.filter.max_rounds=2 with rollout.staleness=1: groups"),
        (["actor.num_minibatches=3"], r"actor.num_minibatches=3 does not divide the 256 responses"),
        (["rollout.group_size=1", "rollout.filter.max_rounds=2"], r"max_rounds=2 with rollout.group_size=1: a group of one"),
        (["rollout.group_size=1", "correction=gepo"], r"level=group with rollout.group_size=1: .* level=geometric; use that"),
        (["rollout.group_size=0"], r"rollout.group_size=0: must be greater than or equal to 1"),
        (["actor.epochs=0"], r"actor.epochs=0"),
        (["model=hub", "model.path=x"], r"warmstart has no effect with model=hub"),
        (["warmstart=none"], r"warmstart is missing: model=qwen3 has random weights"),
        (["model=hub", "model.path=x", "warmstart=none"], r"task.name=chain: has tokens of its own"),
        (["task=gsm8k"], r"task.name=gsm8k: is text, which needs model=hub"),
        (["task=reasoning_gym"], r"task.name=reasoning_gym: is text, which needs model=hub"),
        (["task=gsm8k", "task.answer_length=0"], r"task.answer_length=0"),
        (["model.name=llama"], r"model.name='llama': must be 'qwen3'"),
        (["actor.lr=0"], r"actor.lr=0"),
        (["actor.lr=-1"], r"actor.lr=-1: must be greater than 0"),
        (["actor.zero_stage=4"], r"actor.zero_stage=4: must be less than or equal to 3"),
        (["steps=abc"], r"steps='abc'"),
        (
            ["model.num_attention_heads=3", "model.num_key_value_heads=2"],
            r"model.num_attention_heads=3 must be a multiple of num_key_value_heads=2",
        ),
        (["task.choices=20"], r"task.choices=20 exceeds modulus=14"),
        (["rollout.precision.weights=fp4"], r"rollout.precision.weights='fp4'"),
        (["rollout.precision.weights=null"], r"rollout.precision.activations=fp8_token need weights of the same format"),
        (["rollout.kv_cache=fp7"], r"rollout.kv_cache='fp7': must be 'compute', 'fp8_e4m3' or 'fp8_e5m2'"),
        (["+actor.momentum=0.9"], r"actor.momentum: unknown key"),
        (["run.sweep=a/b"], r"run.sweep='a/b'"),
        (["run.sweep=-x"], r"run.sweep='-x': letters, digits, _, - and \. are accepted, and neither - nor \. at the beginning"),
        (["run.root="], r"run.root='': string should have at least 1 character"),
        (["rollout.precision.name='a b'"], r"rollout.precision.name='a b': letters, digits"),
        (["steps=true"], r"steps=True: must be a whole number"),
        (["steps='3'"], r"steps='3': must be a whole number"),
        (["steps=1e300"], r"steps=1e\+300: must be a whole number"),
        (["seed=18446744073709551616"], r"seed=18446744073709551616: must be less than 9223372036854775808"),
        (["actor.lr=true"], r"actor.lr=True: must be a number"),
        (["actor.lr=1e300"], r"actor.lr=1e\+300: must be less than or equal to 1"),
        (["actor.lr=nan"], r"actor.lr=nan: must be a finite number"),
        (["actor.max_grad_norm=inf"], r"actor.max_grad_norm=inf: must be a finite number"),
        (["actor.betas=[true,0.9]"], r"actor.betas.0=True: must be a number"),
        (["rollout.temperature=1e300"], r"rollout.temperature=1e\+300: must be less than or equal to 1000"),
        (["rollout.temperature=1e-300"], r"rollout.temperature=1e-300: must be greater than or equal to 0.001"),
        (["rollout.replay_sampling_mask=1"], r"rollout.replay_sampling_mask=1: must be true or false"),
        (["model.num_hidden_layers=9223372036854775807"], r"layers=9223372036854775807: .* less than or equal to 1024"),
        (["correction=token_truncate", "correction.weight.upper=true"], r"weight.upper=True: must be a number"),
        (["correction=icepop", "correction.weight.lower='0.5'"], r"correction.weight.lower='0.5': must be a number"),
        (["+correction.reject.a={level: token, upper: true}"], r"correction.reject.a.upper=True: must be a number"),
        (["correction=icepop", "correction.weight.upper=nan"], r"correction.weight.upper=nan: must be a finite number"),
        (["correction=icepop", "correction.weight.lower=half"], r"correction.weight.lower='half': must be a number, null for "),
        (["correction.weight.lower=reciprocal"], r"weight.lower=reciprocal: is 1/upper, and upper=None is no positive number"),
        (["+correction.reject.a={level: token, lower: reciprocal, upper: true}"], r"reject.a.lower=reciprocal: is 1/upper"),
        (["correction.weight.apply=false"], r"correction.weight.apply=false has no effect while level is null; set level too"),
        (["correction=icepop", "correction.weight.apply=0"], r"correction.weight.apply=0: must be true or false"),
        (["correction=slime/mis", "correction.weight.apply=false"], r"correction.normalize=batch has no effect while weight.lev"),
        (["actor=fast"], r"actor/fast: there is no such option; take one of default"),
        (["~actor.lr"], r"actor.lr: missing; give it, as actor.lr=VALUE"),
        (["+collapse.extra=1"], r"collapse.extra: unknown key"),
    ],
)
def test_a_wrong_value_is_refused_by_name(overrides, message):
    with pytest.raises(UserError, match=message):
        parse(compose(*overrides))


def test_a_reciprocal_bound_is_its_number():
    """1/4 of a weight and 1/1.25 of a filter; the run is the one with the numbers, by its hash too."""
    spelled = ["correction.weight.lower=reciprocal", "+correction.reject.a={level: geometric, lower: reciprocal, upper: 1.25}"]
    numbers = ["correction.weight.lower=0.25", "+correction.reject.a={level: geometric, lower: 0.8, upper: 1.25}"]
    made, same = (parse(compose("correction=icepop", "correction.weight.upper=4", *more)) for more in (spelled, numbers))
    assert (made.correction.weight.lower, made.correction.reject["a"].lower) == (0.25, 0.8)
    assert made.digest == same.digest and made.correction == same.correction


def test_the_hash_is_of_what_decides_the_result():
    base = parse(compose())
    for same in ("run.sweep=other", "tracking=disabled", "checkpoint.every=7"):
        assert parse(compose(same)).digest == base.digest
    different = {parse(compose(o)).digest for o in ("seed=1", "actor.lr=1e-5", "correction=token_truncate", "steps=3")}
    assert len({base.digest, *different}) == 5
    assert parse(compose("seed=1")).warmstart_digest == base.warmstart_digest
    assert parse(compose("task.length=9")).warmstart_digest != base.warmstart_digest


def command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "experiments.train", *arguments], capture_output=True, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--help"], 0, ["correction", "rollout/precision"]),
        (["actor.learning_rate=1"], 2, ["actor.learning_rate"]),
        pytest.param(["rollout/precision=fp9"], 2, ["fp9", "fp8_tensor"], marks=pytest.mark.slow),
        pytest.param(["loss=token_truncate"], 2, ["token_truncate", "ppo"], marks=pytest.mark.slow),
        pytest.param(["actor.lr=-1"], 2, ["actor.lr=-1"], marks=pytest.mark.slow),
        (["-m", "seed=0,1", "actor.lr=1e-3,-1", "hydra/launcher=local"], 2, ["actor.lr=-1", "Nothing was started"]),
    ],
)
def test_the_command_line_answers_wrong_input_without_importing_torch(arguments, code, words, tmp_path):
    """Answers in the time that Hydra takes: the list of what was imported holds no torch, transformers, deepspeed or wandb."""
    done = command(*arguments, f"run.root={tmp_path}")
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    text = done.stdout + "\n".join(line for line in done.stderr.splitlines() if not line.startswith("import time:"))
    assert "hydra" in imported and not imported & {"torch", "transformers", "deepspeed", "wandb"}
    assert done.returncode == code, text
    assert all(word in text for word in words), text
    assert "Traceback" not in text
    assert not list(tmp_path.glob("*/*/status.json"))


def test_checking_a_config_imports_nothing_heavy():
    code = (
        "import sys; from harness.compose import compose; from harness.config import parse; parse(compose());"
        "print([m for m in ('torch', 'transformers', 'deepspeed', 'wandb', 'vllm', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
