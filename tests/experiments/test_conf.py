"""Every config file composes into a config that a run accepts, and the presets compute what their programs compute."""

import functools
import math
import re
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.ratios import log_ratio
from algos.reductions import Counts
from algos.registry import ADVANTAGES, LOSSES
from harness.build import PROVIDED, build_objective
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.rollouts import vllm_support
from harness.validate import check
from tests.algos.algo_cases import f64, shared_batch
from tests.machines import MACHINES

CONF = Path("experiments/conf")
FILES = [path.relative_to(CONF).with_suffix("") for path in sorted(CONF.glob("*/**/*.yaml"))]
NEEDED = {
    "model": "model=hub", "model.path": "model.path=x", "warmstart": "warmstart=none", "task": "task=jsonl",
    "task.path": "task.path=x", "task.verifier": "task.verifier=x:y", "task.held_out": "task.held_out=8",
}  # fmt: skip
"""Overrides that model=hub, a task of text and warmstart=none need of one another and of the user."""
NESTED = {"rollout/engine", "rollout/precision", "regime/bed", "regime/source"}
"""Groups that lie in the folder of another; other subfolders belong to the name of the option, as in correction=verl/disabled."""


@functools.cache
def config(*overrides):
    return parse(compose(*overrides))


EXTRA = {"critic/default": ["advantage=gae"], "regime/source/router_noise": ["model=moe"]}
"""Option -> the overrides that it needs beside itself."""


def override(path):
    group = path.parent.as_posix() if path.parent.as_posix() in NESTED else path.parts[0]
    return f"{'+' if path.parts[0] in ('experiment', 'regime') else ''}{group}={path.relative_to(group)}"


COMPLETE = ("model/smollm2", "task/arithmetic", "task/tools", "task/reasoning_gym")
"""Options of these groups that need nothing more of the user."""


def pretrained(path):
    return str(path) in ("model/hub", "warmstart/none", "task/jsonl", "task/gsm8k", *COMPLETE)


def needed(path):
    """The overrides beside `path` itself."""
    group = path.parts[0]
    dropped = f"{group}." if str(path) in COMPLETE else None
    return {key: value for key, value in NEEDED.items() if dropped is None or not key.startswith(dropped)}


PATHS = [pytest.param(path, marks=[pytest.mark.vllm] * ("vllm" in str(path)), id=str(path)) for path in FILES]


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_every_config_file_makes_a_config_that_a_run_accepts(path, monkeypatch):
    monkeypatch.setattr(vllm_support, "this_machine", lambda: MACHINES["avx512"])  # it has all that the configs for vLLM name
    # vLLM cannot compute the default precision on every machine.
    more = ["rollout/precision=bf16"] if path.stem == "vllm" else EXTRA.get(path.as_posix(), [])
    chosen = {**needed(path), path.parts[0]: override(path)}.values() if pretrained(path) else [override(path), *more]
    made = config(*chosen)
    if made.model.name == "hub":
        return  # its weights are elsewhere; tests/harness/tasks/test_text.py runs such a config on a model of its own
    check(made)


@pytest.mark.slow
def test_the_screening_composes_for_every_loss_and_correction():
    """The grid of docs/first-study.md."""
    for loss in ("ppo", "gspo", "sapo", "cispo", "pg"):
        corrections = ("none", "token_truncate", "sequence_truncate", "sequence_mask", "verl/decoupled_geo_rs")
        made = [config("+experiment=screening/fp8", f"loss={loss}", f"correction={name}") for name in corrections]
        assert len({one.digest for one in made}) == 5 and {one.rollout.precision.name for one in made} == {"fp8_tensor"}
        assert config("+experiment=screening/control", f"loss={loss}").rollout.precision.name == "fp32"


def test_the_regime_is_the_control_with_probes():
    made = config("+experiment=regime", "rollout.staleness=4", "actor.num_minibatches=4", "task.choices=4")
    assert made.rollout.precision.name == "fp32" and list(made.evaluation.probe) == ["bf16", "fp8_tensor", "nvfp4"]
    assert made.evaluation.probe["nvfp4"].weights == "nvfp4"


def test_every_loss_has_a_file_and_every_advantage_that_a_run_can_provide():
    assert {path.stem for path in CONF.glob("loss/*.yaml")} == set(LOSSES.names())
    provided = {name for name in ADVANTAGES.names() if set(ADVANTAGES[name].needs) <= PROVIDED}
    assert {path.stem for path in CONF.glob("advantage/*.yaml")} == provided
    for group in ("loss", "advantage"):
        for path in CONF.glob(f"{group}/*.yaml"):
            assert OmegaConf.load(path).name == path.stem
            assert "#" in path.read_text(), f"{path} names no source"


def test_the_table_of_frameworks_has_no_empty_cell_and_names_options_that_exist():
    text = Path("docs/frameworks.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    assert len(rows) > 40 and all(len(cells) == 3 and all(cell.strip() for cell in cells) for cells in rows)
    named = re.findall(r"`(loss|advantage|correction|reduce|rollout/precision)=(\w+)`", text)
    assert len(named) > 20 and all((CONF / group / f"{option}.yaml").exists() for group, option in named)
    losses = {option for group, option in named if group == "loss"}
    assert losses == set(LOSSES.names()) - {"gpg"}  # pg by its paper's name


def test_corrections_start_with_their_source():
    """The package line, where there is one, must be Hydra's first."""
    for path in CONF.glob("correction/**/*.yaml"):
        first, second = path.read_text().splitlines()[:2]
        assert (second if first == "# @package _global_" else first).startswith("# "), path


def test_the_nineteen_presets_of_verl():
    weights = ("", "_seq_tis", "_token_tis")
    names = {f"decoupled_{name}" for name in ("token_is", "seq_is", "token_icepop", "seq_is_rs")} | {"disabled"}
    names |= {f"decoupled_{stat}_rs{weight}" for stat in ("geo", "k3") for weight in weights}
    names |= {f"bypass_ppo_clip{rs}" for rs in ("", "_geo_rs", "_k3_rs")} | {"bypass_pg_is", "bypass_pg_token_icepop"}
    names |= {f"bypass_pg_geo_rs{weight}" for weight in weights}
    assert {path.stem for path in CONF.glob("correction/verl/*.yaml")} == names and len(names) == 19


def test_a_preset_that_sets_loss_and_proximal_gives_way_to_the_command_line():
    preset = config("correction=verl/bypass_ppo_clip")
    assert (preset.loss.name, preset.loss.params["dual_clip"], preset.proximal) == ("ppo", 3.0, "rollout")
    assert config("correction=verl/bypass_pg_is").loss.name == "pg"
    assert config("correction=verl/bypass_pg_is", "loss=ppo").loss.name == "ppo"
    assert config("correction=verl/bypass_ppo_clip", "proximal=old").proximal == "old"
    assert config("correction=none").proximal == "old"
    assert config("correction=verl/bypass_pg_is", "+experiment=edge/fp8").steps == 400  # an experiment goes with it


def test_the_preset_of_a_weight_refuses_an_anchor_on_the_rollout():
    with pytest.raises(UserError, match="counts the mismatch twice"):
        check(config("correction=verl/decoupled_token_is", "proximal=rollout"))


def outcome(preset, logp, batch):
    """(weights of kept tokens, kept, loss) of a preset on one batch."""
    made = config(f"correction={preset}")
    objective = build_objective(made)
    current = made.correction.ratio == "current"
    corrected = correct(batch, made.correction, logp if current else None)
    value, _ = objective(logp, batch, corrected, Counts.of(corrected.counted))
    return torch.where(corrected.kept, corrected.weights, 0.0), corrected.kept, value.item()


# The shared batch. log(π_old/μ): .5, -.5, 1 | -1, .5, so ρ = 1.648721, .606531, 2.718282 | .367879, 1.648721.
# PPO (clip .2; verl's dual clip at 3 is not reached) with r = 1.105171, .818731, 1 | .740818, 1.491825 and A = 1 | -1:
#   L = -1.105171, -.818731, -1 | .8, 1.491825
# Bypass: log(π_θ/μ) = .6, -.7, 1 | -1.3, .9, so ρ = 1.822119, .496585, 2.718282 | .272532, 2.459603.
# REINFORCE: L = -A log π_θ = .9, 1.7, .5 | -2.3, -1.6.
REJECTED = (None, [0, 0], 0.0)
ON_SHARED_BATCH = {
    "disabled": (None, [3, 2], -0.126415),  # (-2.923902 + 2.291825)/5, verl's own value
    # (1.648721·-1.105171 + .606531·-.818731 + 2·-1 + .367879·.8 + 1.648721·1.491825)/5, verl's own value
    "decoupled_token_is": ([[1.648721, 0.606531, 2], [0.367879, 1.648721, 0]], [3, 2], -0.31296),
    # e > 2 → 2 and e^-.5: (2·-2.923902 + .606531·2.291825)/5
    "decoupled_seq_is": ([[2, 2, 2], [0.606531, 0.606531, 0]], [3, 2], -0.891549),
    # .367879 is below .5: (-1.822119 - .496586 - 2.718282 + 2.459603)/5
    "decoupled_token_icepop": ([[1.648721, 0.606531, 2.718282], [0, 1.648721, 0]], [3, 2], -0.515477),
    # e > 2 is rejected, and two tokens are counted: .606531·2.291825/2
    "decoupled_seq_is_rs": ([[0, 0, 0], [0.606531, 0.606531, 0]], [0, 2], 0.695031),
    # exp(mean) = 1.3956 and .7788, mean k3 = .3245 and .2583: verl's loss is NaN, here it is 0
    **{f"decoupled_{stat}_rs{weight}": REJECTED for stat in ("geo", "k3") for weight in ("", "_seq_tis", "_token_tis")},
    # r = ρ of bypass: -1.2 (clipped), -.496585, -1.2 | .8, 2.459603 (dual clip 3 not reached): .363018/5, verl's own value
    "bypass_ppo_clip": (None, [3, 2], 0.072604),
    "bypass_ppo_clip_geo_rs": REJECTED,  # exp(mean) = e^.3, e^-.2
    "bypass_ppo_clip_k3_rs": REJECTED,  # mean k3 = (.222119 + .196585 + .718282)/3 = .379, (.572532 + .559603)/2 = .566
    # e^.9 > 2 → 2 and e^-.4 = .670320: (2·3.1 - .670320·3.9)/5, verl's own value
    "bypass_pg_is": ([[2, 2, 2], [0.670320, 0.670320, 0]], [3, 2], 0.71715),
    # .496585 and .272532 are below .5: (1.822119·.9 + 2.718282·.5 - 2.459603·1.6)/5, verl's own value
    "bypass_pg_token_icepop": ([[1.822119, 0, 2.718282], [0, 2.459603, 0]], [3, 2], -0.187263),
    **{f"bypass_pg_geo_rs{weight}": REJECTED for weight in ("", "_seq_tis", "_token_tis")},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_SHARED_BATCH)
def test_verl_presets_on_the_shared_batch(name):
    weights, kept, loss = ON_SHARED_BATCH[name]
    got = outcome(f"verl/{name}", *shared_batch())
    assert got[1].sum(-1).tolist() == kept
    assert got[2] == pytest.approx(loss, abs=1e-6)
    if weights is not None:
        torch.testing.assert_close(got[0], f64(weights), atol=6e-7, rtol=0)


# Three responses near μ, log ρ = .03, -.03 | -.001, -.001 | .2, -.2. exp(mean) = 1, e^-.001 = .9990005, 1: verl's "0.999_1.001"
# bounds 1/ρ = e^.001 = 1.0010005 > 1.001, so it rejects the second, which a bound of .999 on ρ itself would keep.
# Mean k3 = (.000455 + .000446)/2, 5e-7, (.021403 + .018731)/2 = .020067: the third exceeds .01.
NEAR = f64([[0.03, -0.03], [-0.001, -0.001], [0.2, -0.2]])
NEAR_KEPT = {"geo": [2, 0, 2], "k3": [2, 2, 0]}
NEAR_WEIGHTS = {
    "": [[1, 1]] * 3,
    "_seq_tis": [[1, 1], [0.998002, 0.998002], [1, 1]],  # e^0, e^-.002, e^0
    "_token_tis": [[1.030455, 0.970446], [0.999000, 0.999000], [1.221403, 0.818731]],
}


@pytest.mark.parametrize("name", [name for name in ON_SHARED_BATCH if "geo_rs" in name or "k3_rs" in name])
def test_verl_filters_near_the_rollout_policy(name):
    stat = "geo" if "geo_rs" in name else "k3"
    weight = next(suffix for suffix in ("_seq_tis", "_token_tis", "") if name.endswith(suffix))
    rollout, mask = torch.full_like(NEAR, -1.0), torch.ones_like(NEAR).bool()
    weights, kept, loss = outcome(f"verl/{name}", rollout + NEAR, Batch(rollout, mask, rollout + NEAR, torch.ones_like(NEAR)))
    assert kept.sum(-1).tolist() == NEAR_KEPT[stat]
    expected = torch.where(kept, f64(NEAR_WEIGHTS[weight]), 0.0)
    torch.testing.assert_close(weights, expected, atol=6e-7, rtol=0)
    if name.startswith("decoupled"):  # r = 1: minus the mean weight of the four kept tokens
        assert loss == pytest.approx(-expected.sum().item() / 4, abs=1e-6)
    elif name.startswith("bypass_pg"):  # all six tokens are counted
        assert loss == pytest.approx(-(expected * (rollout + NEAR)).sum().item() / 6, abs=1e-6)
    else:  # min(r, 1.2), of which only e^.2 = 1.2214 is clipped
        assert loss == pytest.approx(-(torch.where(kept, NEAR.exp().clamp(max=1.2), 0.0)).sum().item() / 6, abs=1e-6)


# log ρ of one response, and what a preset leaves of it: its weights where kept, else 0.
E = math.e
ONE_RESPONSE = [
    ("token_truncate", [1, -1], [2, 1 / E]),
    ("icepop", [math.log(6), math.log(0.4), 1], [0, 0, E]),
    ("skyrl/geometric_mask", [0.02, 0.02], [0, 0]),  # e^.02 = 1.0202 > 1.01
    ("skyrl/geometric_mask", [0.02, -0.005], [1, 1]),  # e^.0075, though the product is e^.015 > 1.01
    ("skyrl/product_mask", [0.5, 0.5], [0, 0]),  # e > 2
    ("skyrl/token_tis", [1, 0], [2, 1]),
    ("skyrl/sequence_tis", [1, 1], [5, 5]),  # e² = 7.39
    ("skyrl/token_mask", [1, 0.1], [0, 1]),
    ("skyrl/recommended", [0.7, -0.695], [0, 0]),  # e^.7 = 2.0138 > 2 and e^-.695 = .4991 < .5
    ("skyrl/recommended", [0.69, -0.69], [math.exp(0.69), math.exp(-0.69)]),
    ("skyrl/recommended", [5, *[-0.625] * 8], [0] * 9),  # e^5 = 148 > 100 is an outlier, though the geometric mean is 1
    ("trl/token_truncate", [2, 1], [3, E]),
    ("trl/token_mask", [2, 1], [0, E]),
    ("trl/sequence_truncate", [1, 1], [3, 3]),
    ("trl/sequence_mask", [1, 1], [0, 0]),
    ("trl/sequence_mask", [0.5, 0.5], [E, E]),
    ("verl_2025/token_is", [1, -1], [2, 1 / E]),
    ("verl_2025/token_tis", [1, -1], [2, 1 / E]),
    ("verl_2025/seq_is", [1, 1], [2, 2]),
    ("verl_2025/seq_is_rs", [0.5, 0.5], [0, 0]),  # e > 2
    ("verl_2025/seq_is_rs", [-0.5, -0.5], [0, 0]),  # 1/e < .5
    ("verl_2025/seq_is_rs", [0.3, 0.3], [math.exp(0.6)] * 2),
    ("verl_2025/seq_mis", [-0.5, -0.5], [1 / E, 1 / E]),
    ("verl_2025/seq_mis", [0.5, 0.5], [0, 0]),
    ("verl_2025/geo_rs", [-10, 10], [0, 0]),  # exp(mean) = 1, and e^-10 < 1e-4 is a veto
    ("verl_2025/geo_rs", [-9, 9], [1, 1]),  # e^-9 = 1.2e-4
    ("verl_2025/geo_rs", [-0.0010003, -0.0010003], [0, 0]),  # .9990002 < 1/1.001 = .9990010
    ("verl_2025/geo_mis", [-0.0010003, -0.0010003], [1, 1]),  # .9990002 ≥ .999
    ("verl_2025/geo_mis", [-10, 10], [0, 0]),
    ("verl_2025/decoupled_geo_rs", [-10, 10], [0, 0]),
    ("verl_2025/decoupled_geo_rs", [0.002, 0.002], [0, 0]),
    ("verl_2025/ppo_is_bypass", [1, 0], [1, 1]),
    ("verl_2025/pure_is", [1, 1], [2, 2]),
    ("verl_2025/pg_is", [1, 1], [2, 2]),
    ("verl_2025/pg_rs", [-10, 10], [0, 0]),
    ("verl_2025/pg_rs", [0.002, -0.001], [1, 1]),  # e^.0005
    ("verl_2025/disabled", [1, 1], [1, 1]),
    ("slime/tis", [1, -1], [2, 1 / E]),
    ("slime/icepop", [1, -1], [0, 1 / E]),
    ("slime/mis", [1, 0], [4 / 3, 2 / 3]),  # 2 and 1 over their mean 1.5
    ("slime/mis_rs", [-10, 0], [0, 0]),  # e^-10 < 1e-4: a veto
    ("slime/mis_rs", [1, 0], [0, 2 / 3]),  # e is outside [.5, 2]; the mean is of the original mask
    ("areal/token_mask", [2, 1], [0, E]),  # e² = 7.39 > 5
    ("areal/token_clamp", [2, 1], [5, E]),
    ("areal/kpop", [19, 18], [0, math.exp(18)]),  # π = e^-1, μ bounded at 1e-6: .368·12.8 + .632·log .632 = 4.4 > 2; e^-2: 1.47
    ("kpop", [17, 1], [0, E]),  # π = e^-3: .49 > .1
    ("geometric_token_mask", [0.8, -0.7], [0, math.exp(-0.7)]),  # the mean of .05 is within ±.105; e^.8 = 2.23 > 2
    ("prefix_truncate", [0.5, 0.5, -2], [math.exp(0.5), 2, 1 / E]),  # sums .5, 1, -1
    ("gepo", [0.5, -0.2], [math.exp(0.15)] * 2),  # of a group of one: exp(mean)
    ("suffix_veto", [0.1, 1, 0, 0], [1, 1, 0, 0]),  # e > 2: what follows it
    ("suffix_veto", [0.5, 0.5], [1, 1]),
    ("vexact/k1", [0.003, 0], [0, 0]),  # mean .0015
    ("vexact/k1", [-0.003, 0], [0, 0]),
    ("vexact/k1", [1.001, -1], [2, 1 / E]),  # mean .0005
    ("vexact/k3", [0.1, 0.1], [0, 0]),  # e^.1 - 1.1 = .0052
    ("vexact/k3", [0.04, 0.04], [math.exp(0.04)] * 2),  # .0008
    ("areal/sequence_mask", [2, 0], [E, E]),  # exp(mean)
    ("areal/sequence_mask", [2, 2], [0, 0]),
    ("nemo_rl/tis", [1, 0], [2, 1]),
    ("nemo_rl/icepop", [2, 1], [0, E]),
    ("nemo_rl/seq_mask_tis", [3, -3], [math.exp(3), math.exp(-3)]),  # exp(mean) = 1, weights not truncated
    ("nemo_rl/seq_mask_tis", [0.003, 0.003], [0, 0]),  # 1.003 > 1.002
    ("m2po", [0.1, 0.6], [1, 0]),  # the mean of .01 and .36 is .185 > .04
    ("m2po", [0.1, 0.2], [1, 1]),  # of .01 and .04: .025
    ("off_policy_sequence_mask", [-0.4, -0.7], [0, 0]),  # A < 0, mean log(μ/π) = .55 > .5
    ("off_policy_sequence_mask", [-0.4, -0.5], [1, 1]),
    ("slime/opsm", [-1e-3, 0], [0, 0]),  # 5e-4 > 1e-4
    ("slime/opsm", [-1.5e-4, 0], [1, 1]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "logs", "expected"), ONE_RESPONSE, ids=lambda value: str(value)[:40])
def test_other_presets_on_one_response_of_negative_advantage(preset, logs, expected):
    logs, mask = f64([logs]), torch.ones(1, len(logs)).bool()
    rollout = torch.full_like(logs, -20.0)
    assert log_ratio(rollout + logs, rollout, mask).allclose(logs)
    weights, _, _ = outcome(
        preset, rollout + logs, Batch(rollout, mask, rollout + logs, -torch.ones_like(logs), prompt=torch.zeros(1))
    )
    torch.testing.assert_close(weights, f64([expected]), atol=1e-9, rtol=1e-9)


def test_every_preset_outside_verl_has_a_case():
    named = {path.relative_to(CONF / "correction").with_suffix("").as_posix() for path in CONF.glob("correction/**/*.yaml")}
    own = {"none", "sequence_mask", "sequence_truncate"}
    assert {name for name in named if not name.startswith("verl/")} - own == {case[0] for case in ONE_RESPONSE}


def test_fp8_and_int8_of_half_a_billion_have_the_settings_of_dapo():
    """Those of SkyRL's run_dapo_gsm8k_flashrl_0.5b_fp8.sh; the INT8 file differs from the FP8 file by its precision alone."""
    fp8, int8 = (parse(compose(f"+experiment=gpu/qwen2.5_0.5b_{name}")) for name in ("fp8", "int8"))
    assert (fp8.rollout.precision.name, int8.rollout.precision.name) == ("fp8_tensor", "int8")
    rollout = fp8.rollout.model_copy(update={"precision": int8.rollout.precision})
    assert fp8.model_copy(update={"rollout": rollout}) == int8
    assert (fp8.loss.eps_low, fp8.loss.eps_high, fp8.loss.dual_clip) == (0.2, 0.28, 10.0)
    assert (fp8.rollout.prompts, fp8.rollout.group_size, fp8.rollout.filter.max_rounds) == (1024, 5, 30)
    weight = fp8.correction.weight
    assert (weight.level, weight.action, weight.upper, fp8.actor.lr) == ("token", "truncate", 2.0, 1e-6)
    assert (fp8.kl.name, fp8.overlong.buffer, fp8.reduce.mode) == (None, 512, "token_mean")
