"""Entries and regimes of a benchmark become configs, and finished runs become rows."""

import json
from pathlib import Path

import pytest

from analysis.statistics.benchmark import CONTROL, NONE
from experiments.benchmark import SEEDS, ended, in_order, of_study, overrides, plan, read_regimes, references
from experiments.regimes import Regime, regimes
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.run.folder import RunFolder

INT8 = {"dense/int8": of_study(Regime("dense", "int8"))}


@pytest.mark.slow
def test_the_references_are_the_studys_own_runs():
    """Without a correction, and as a control, every calibration regime has the digest of the study's run: it is one run."""
    parts = regimes().calibration
    found = {run.regime: run for run in plan(CONTROL, (), {str(one): of_study(one) for one in parts}, [70])}
    for one in parts:
        study = parse(compose(f"+regime/bed={one.bed}", "+regime/source=exact", "correction=none", "seed=70"))
        assert found[str(one)].config.digest == study.digest
    (none,) = plan(NONE, (), INT8, [70])
    study = compose("+regime/bed=dense", "+regime/source=int8", "correction=none", "dump.every=20", "seed=70")
    assert none.config.digest == parse(study).digest


@pytest.mark.slow
@pytest.mark.parametrize("source", sorted(path.stem for path in Path("experiments/conf/regime/source").glob("*.yaml")))
def test_the_control_of_every_source_is_the_exact_control_of_its_bed(source):
    (control,) = plan(CONTROL, (), {"one": of_study(Regime("moe", source))}, [70])
    own = ["lora_apart", "actor.dtype=fp32", "rollout/precision=fp32"] if source.startswith("lora") else ["exact"]
    assert control.config.digest == parse(compose("+regime/bed=moe", f"+regime/source={own[0]}", *own[1:], "seed=70")).digest


def test_the_control_of_another_engine_is_the_local_one():
    (control,) = plan(CONTROL, (), {"vllm": ["rollout/engine=vllm", "actor.scoring=forward"]}, [70])
    assert control.config.rollout.engine.name == "local"


def test_a_seed_has_its_own_warm_start():
    runs = references(INT8, SEEDS, "run.sweep=s")
    assert len({run.config.warmstart_digest for run in runs}) == len(SEEDS) == 3 and len(runs) == 6
    assert {run.config.warmstart.seed for run in runs} == set(SEEDS)


def test_a_function_and_a_file_are_entries(tmp_path):
    """A loss, an advantage and a filter by their path; a correction by a file of its own keys or of a whole config."""
    (tmp_path / "own.yaml").write_text("weight: {level: token, upper: 1.5}\nreject:\n  band: {level: geometric, upper: 1.1}\n")
    (tmp_path / "whole.yaml").write_text("correction:\n  weight: {level: token, upper: 1.5}\nentropy_coeff: 0.02\n")
    for words, keys in (
        (["loss=my_loss:saturating", "+loss.tau=2"], {"loss": {"name": "my_loss:saturating", "tau": 2}}),
        (["advantage=mine:centred"], {"advantage": {"name": "mine:centred"}}),
        ([str(tmp_path / "whole.yaml")], {"entropy_coeff": 0.02}),
    ):
        composed = compose(*INT8["dense/int8"], *overrides(words))
        assert {key: composed[key] for key in keys} == keys
    mine = ["correction=my_filter:trimmed", "+correction.reject.trimmed.params.share=0.01"]
    filtered = compose(*INT8["dense/int8"], *overrides(mine))["correction"]["reject"]
    assert filtered == {"trimmed": {"function": "my_filter:trimmed", "params": {"share": 0.01}}}
    for name in (f"correction={tmp_path}/own.yaml", f"{tmp_path}/whole.yaml"):
        weight = compose(*INT8["dense/int8"], *overrides([name]))["correction"]["weight"]
        assert (weight["level"], weight["upper"], weight["action"]) == ("token", 1.5, "truncate")


def test_a_preset_that_was_copied_brings_its_loss_too(tmp_path):
    """verl's bypass_pg_is names the loss pg, and the regime has ppo: the copy is the run of the preset, to the digest."""
    (tmp_path / "own.yaml").write_text(Path("experiments/conf/correction/verl/bypass_pg_is.yaml").read_text())
    ppo = {"ppo/int8": of_study(Regime("ppo", "int8"))}
    (named,), (copied,) = (plan("mine", [word], ppo, [70]) for word in ("correction=verl/bypass_pg_is", f"{tmp_path}/own.yaml"))
    (given,) = plan("mine", [f"correction={tmp_path}/own.yaml"], ppo, [70])
    assert named.config.loss.name == "pg" and {copied.config.digest, given.config.digest} == {named.config.digest}
    (own,) = plan("mine", [f"{tmp_path}/own.yaml", "loss=gspo"], ppo, [70])
    assert own.config.loss.name == "gspo"


def test_a_file_with_filters_is_a_sound_config(tmp_path):
    (tmp_path / "own.yaml").write_text(
        "reject:\n  band: {level: geometric, statistic: ratio, lower: 0.9, upper: 1.1, when: all}\n"
    )
    (run,) = plan("band", [f"correction={tmp_path}/own.yaml"], INT8, [70])
    assert run.config.correction.reject["band"].upper == 1.1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["steps=400"], "changes steps, which belong to a regime"),
        (["rollout/precision=bf16"], "changes rollout, which belong to a regime"),
        (["loss=ppo,gspo"], "loss=ppo,gspo: several values; a benchmark takes one entry a command"),
        (["loss=nosuch"], "loss/nosuch: there is no such option"),
        (["nosuch.yaml"], "nosuch.yaml: cannot be read"),
    ],
)
def test_what_is_no_entry_is_refused(words, said):
    with pytest.raises(UserError, match=said):
        plan("mine", words, INT8, [70])


def test_an_entry_must_leave_every_regime_as_it_is():
    """`model=moe` changes nothing of the mixture's regime, which comes first, and all of the dense one's."""
    mixture = ["+regime/bed=moe", "+regime/source=int8"]
    with pytest.raises(UserError, match="changes model, which belong"):
        plan("mine", ["model=moe"], {"moe/int8": mixture} | INT8, [70])


def test_regimes_come_from_a_file(tmp_path):
    file = tmp_path / "regimes.yaml"
    file.write_text('a: "+regime/bed=dense +regime/source=int8"\nb: [+regime/bed=ppo, actor.lr=1e-3, +regime/source=w4a4]\n')
    assert read_regimes(file)["a"] == INT8["dense/int8"] and read_regimes(file)["b"][1] == "actor.lr=1e-3"
    control = {run.regime: run.config for run in plan(CONTROL, (), read_regimes(file), [70])}
    assert control["b"].actor.lr == 1e-3 and control["b"].rollout.precision.name == "fp32"
    for content, said in (("- a\n", "holds no regimes"), ("a: 3\n", "a: give its overrides as a text"), ("", "holds no regimes")):
        file.write_text(content)
        with pytest.raises(UserError, match=said):
            read_regimes(file)


def test_warm_starts_are_made_first():
    """Two regimes share the warm starts of three seeds: the first three runs have three different ones."""
    both = INT8 | {"ppo/int8": of_study(Regime("ppo", "int8"))}
    runs = in_order(plan(NONE, (), both, SEEDS))
    assert [len({run.config.warmstart_digest for run in part}) for part in (runs[:3], runs[3:])] == [3, 3]
    assert {(run.regime, run.seed) for run in runs} == {(name, seed) for name in both for seed in SEEDS}


def test_a_finished_run_becomes_a_row(tmp_path):
    """The end is the mean of the last three of four evaluations, K3 that of the first 20 steps; a run that goes on has no row."""
    runs = plan(NONE, (), INT8, [70, 71], f"run.root={tmp_path}", "run.sweep=s", "tracking=disabled")
    for run, state in zip(runs, ("done", "running"), strict=True):
        folder = RunFolder(run.config.path)
        with folder.claim():
            folder.write("config.json", run.config.model_dump(mode="json"))
            for step in range(31):
                row = {"rollout_corr/k3_kl": 0.01 if step < 20 else 1.0, "rollout/response_tokens": 10.0}
                row |= {"mismatch/persistence_20": 0.5} if step == 20 else {}
                if step % 10 == 0:
                    reward = 0.2 + step / 100
                    row |= {"eval/reward": reward, "eval/rollout_reward": reward / 2, "eval/stderr": 0.01}
                folder.log_metrics(step, row)
            folder.status(state, step=30, steps=30)
    (row,) = ended(runs).to_dict("records")
    assert (row["entry"], row["regime"], row["seed"], row["digest"]) == (NONE, "dense/int8", 70, runs[0].config.digest)
    numbers = (row["start"], row["trainer"], row["sampler"], row["k3"], row["persistence"], row["tokens"])
    assert numbers == pytest.approx((0.2, 0.4, 0.2, 0.01, 0.5, 10))
    assert json.dumps(row)


def test_a_preset_brings_its_loss_into_a_regime_that_has_another():
    """verl's bypass trains PPO with its dual clip; the bed `dense` has a policy gradient, which refuses `dual_clip`."""
    regimes = {"dense/int8": of_study(Regime("dense", "int8"))}
    (run,) = plan("verl", ["correction=verl/bypass_ppo_clip"], regimes, [71])
    assert run.config.loss.name == "ppo" and run.config.loss.params["dual_clip"] == 3.0
    assert overrides(["correction=verl/bypass_ppo_clip", "loss=gspo"]) == ["correction=verl/bypass_ppo_clip", "loss=gspo"]
