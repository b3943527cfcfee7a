"""One name of an arm, wherever people read it: launcher, ledger, report, frames."""

import pandas as pd
import pytest

from analysis.load import load
from analysis.report import report
from harness.arms import arm, arms
from harness.compose import compose
from harness.config import parse, recorded
from sweeps.launch import plan, print_plan
from sweeps.launchers.local import Local
from sweeps.ledger import Sweep
from tests.analysis.synthetic import fill

GRID = {
    "fp32 ppo rollout.engine.noise=0.0 rollout.staleness=0": [],
    "fp8_tensor ppo rollout.engine.noise=0.0 rollout.staleness=0": ["rollout/precision=fp8_tensor"],
    "fp8_tensor ppo reject-geo_rs rollout.engine.noise=0.0 rollout.staleness=0": [
        "rollout/precision=fp8_tensor",
        "correction=verl/decoupled_geo_rs",
    ],
    "fp32 ppo rollout.engine.noise=0.0 rollout.staleness=2": ["rollout.staleness=2"],
    "fp32 ppo rollout.engine.noise=0.01 rollout.staleness=0": ["rollout.engine.noise=0.01"],
    "fp8_tensor ppo token-truncate correction.weight.upper=2.0 rollout.engine.noise=0.0 rollout.staleness=0": [
        "rollout/precision=fp8_tensor",
        "correction=token_truncate",
        "correction.weight.upper=2",
    ],
    "fp8_tensor ppo token-truncate correction.weight.upper=4.0 rollout.engine.noise=0.0 rollout.staleness=0": [
        "rollout/precision=fp8_tensor",
        "correction=token_truncate",
        "correction.weight.upper=4",
    ],
}
"""Name -> overrides: what a name tells is read off the overrides, a plug-in's own keys only where its runs differ in them."""


BF16 = "rollout/precision=bf16"


def grid(root):
    configs = [
        parse(compose("tracking=disabled", "rollout/precision=fp32", *overrides, f"seed={seed}", f"run.root={root}", "steps=20"))
        for overrides in GRID.values()
        for seed in (0, 1)
    ]
    return {config.digest: config for config in configs}


@pytest.mark.slow
def test_launcher_ledger_report_and_frames_give_one_name(tmp_path, capsys):
    """A grid with a preset correction, a threshold, staleness and noise. Filters of a preset name no key: the level tells it."""
    runs = grid(tmp_path)
    sweep = Sweep(next(iter(runs.values())).path.parent)
    plan(sweep, runs, {})
    assert {state.arm for state in sweep.states().values()} == set(GRID)
    print_plan(sweep, runs, [], set(), Local(sweep))
    told = capsys.readouterr().err
    assert all(f"\n  {name}, seeds 0, 1\n" in told for name in GRID), told
    names = {run: state.name for run, state in sweep.states().items()}
    for run, config in runs.items():
        fill(sweep.folder(run), config.model_dump(mode="json"))
    found = load(sweep.path)
    assert dict(found.runs.arm) == {run: state.arm for run, state in sweep.states().items()}
    assert names == {run: f"{row.arm} seed {row.seed}" for run, row in found.runs.iterrows()}
    report(sweep.path)
    assert set(pd.read_csv(sweep.path / "arms.csv").arm) == set(GRID)
    text = (sweep.path / "report.md").read_text()
    assert all(f"| {name} " in text for name in GRID)


def test_runs_that_join_a_sweep_rename_those_that_were_there(tmp_path):
    """Alone the first runs differ in nothing; beside a run of another learning rate their own is told."""
    first = {config.digest: config for config in [parse(compose(BF16, f"run.root={tmp_path}"))]}
    other = {config.digest: config for config in [parse(compose(BF16, f"run.root={tmp_path}", "actor.lr=0.01"))]}
    sweep = Sweep(next(iter(first.values())).path.parent)
    plan(sweep, first, {})
    rate = next(iter(first.values())).actor.lr
    assert [state.arm for state in sweep.states().values()] == ["bf16 ppo"]
    plan(sweep, other, sweep.states())
    assert [state.arm for state in sweep.states().values()] == [f"bf16 ppo actor.lr={rate}", "bf16 ppo actor.lr=0.01"]
    (sweep.home / "ledger.jsonl").write_text("".join(f'{{"event": "cancelled", "run": "{run}", "time": 0}}\n' for run in other))
    assert sweep.states()[next(iter(other))].arm == "bf16 ppo actor.lr=0.01"  # its line was lost: its folder tells


def config(*overrides):
    return parse(compose(BF16, *overrides)).model_dump(mode="json")


def test_what_an_older_run_did_not_record_is_no_difference():
    """The local engine added no noise before it had a key for it."""
    today, older = config(), config()
    del older["rollout"]["engine"]["noise"]
    assert {str(name) for name in arms({"a": today, "b": recorded(older)}).values()} == {"bf16 ppo"}


def test_a_whole_number_is_the_float_that_it_equals():
    """One command says noise=0 and another noise=0.0: one arm, unless a third has another noise."""
    whole, real, other = (config(f"rollout.engine.noise={noise}") for noise in ("0", "0.0", "1"))
    assert {str(name) for name in arms({"a": whole, "b": real}).values()} == {"bf16 ppo"}
    named = {run: str(name) for run, name in arms({"a": whole, "b": real, "c": other}).items()}
    zero, one = (f"bf16 ppo rollout.engine.noise={noise}" for noise in ("0.0", "1.0"))
    assert named == {"a": zero, "b": zero, "c": one}


def test_a_key_of_a_plug_in_is_compared_among_runs_of_that_plug_in():
    """sapo has other keys than ppo, and vLLM than the local engine: their names tell them apart. Two values of one key do not."""
    named = arms(
        {
            "low": config("loss=ppo", "loss.eps_high=0.2"),
            "high": config("loss=ppo", "loss.eps_high=0.3", "rollout/precision=fp8_tensor"),
            "sapo": config("loss=sapo"),
            "vllm": config("loss=sapo", "rollout/engine=vllm"),
            "kl": config("loss=sapo", "kl=k2"),
        }
    )
    rest = 'rollout.engine.name="local"'
    assert {run: str(name) for run, name in named.items()} == {
        "low": f"bf16 ppo loss.eps_high=0.2 kl.name=null {rest}",
        "high": f"fp8_tensor ppo loss.eps_high=0.3 kl.name=null {rest}",
        "sapo": f"bf16 sapo kl.name=null {rest}",
        "vllm": 'bf16 sapo kl.name=null rollout.engine.name="vllm"',
        "kl": f'bf16 sapo kl.name="k2" {rest}',
    }
    assert named["low"].loss == "ppo loss.eps_high=0.2" and named["sapo"].correction == "none"


def test_a_weight_for_its_metrics_alone_makes_no_corrected_arm():
    """It trains as no weight does. So it is uncorrected, and the arm without a weight keeps the setting of the corrected ones."""
    made = {"plain": ["correction=none"], "weighed": ["correction=token_truncate"],
            "observed": ["correction=token_truncate", "correction.weight.apply=false"],
            "filtered": ["correction=token_truncate", "correction.weight.apply=false",
                         "+correction.reject.a={level: token, upper: 2}"]}  # fmt: skip
    named = arms({run: config(*overrides) for run, overrides in made.items()})
    assert {run: one.correction for run, one in named.items()} == {
        "plain": "none", "weighed": "token-truncate", "observed": "none", "filtered": "reject-a"}  # fmt: skip
    assert named["plain"].setting == named["weighed"].setting == named["filtered"].setting == ""
    assert named["observed"].setting.startswith('correction.weight.action="truncate" correction.weight.apply=false ')


def test_filters_are_named_in_one_order():
    """config.json sorts its keys, a config file does not."""
    one, other = config("correction=verl/decoupled_geo_rs"), config("correction=verl/decoupled_geo_rs")
    geometric = one["correction"]["reject"]["geo_rs"]
    one["correction"]["reject"] = {"b": geometric, "a": geometric}
    other["correction"]["reject"] = {"a": geometric, "b": geometric}
    assert str(arm(one)) == str(arm(other)) == "bf16 ppo reject-a reject-b"


def test_keys_can_be_left_out():
    truncate = "correction=token_truncate"
    runs = {bound: config(f"actor.lr=0.{bound}", truncate, f"correction.weight.upper={bound}") for bound in "23"}
    assert str(arms(runs)["2"]) == "bf16 ppo token-truncate correction.weight.upper=2.0 actor.lr=0.2"
    assert {str(name) for name in arms(runs, but=("actor.lr", "correction.weight.upper")).values()} == {"bf16 ppo token-truncate"}


def test_what_a_run_lacks_differs_from_what_another_has():
    """Two sets of detectors: no name tells them apart, so the keys of the one that only one has are told."""
    with_entropy = config()
    without = config()
    detector = next(iter(with_entropy["collapse"]["detectors"]))
    del without["collapse"]["detectors"][detector]
    first, second = arms({"a": with_entropy, "b": without}).values()
    assert str(second) == "bf16 ppo" and str(first).startswith(f"bf16 ppo collapse.detectors.{detector}")


@pytest.mark.parametrize("broken", [{}, {"correction": {}}, {"correction": {"weight": {"level": None}, "reject": {}}}])
def test_what_is_no_config_has_no_arm(broken):
    with pytest.raises(KeyError):
        arm(broken)


def test_a_routing_replay_is_named_beside_the_correction():
    """It is a remedy: the arm is corrected, and its reference is the arm without."""
    w4a4 = "rollout/precision=nvfp4_w4a4"
    overrides = {
        "fp32 ppo": ["rollout/precision=fp32"],
        "nvfp4_w4a4 ppo": [w4a4],
        "nvfp4_w4a4 ppo r3": [w4a4, "routing.replay=r3"],
        "nvfp4_w4a4 ppo sequence-mask r3": [w4a4, "routing.replay=r3", "correction=sequence_mask"],
    }
    named = arms({name: parse(compose(*more)).model_dump(mode="json") for name, more in overrides.items()})
    assert {name: str(made) for name, made in named.items()} == {name: name for name in overrides}
    assert [made.correction for made in named.values()] == ["none", "none", "r3", "sequence-mask r3"]


def test_a_warm_start_that_follows_the_seed_is_a_part_of_the_replicate():
    """Seeds 1 and 2 with warm starts of their own are one arm. Where a warm start differs by itself, it names the arm."""

    def names(*pairs):
        runs = {str(pair): compose(f"seed={pair[0]}", f"warmstart.seed={pair[1]}", BF16, "loss=pg") for pair in pairs}
        return list(map(str, arms(runs).values()))

    assert names((1, 1), (2, 2)) == 2 * ["bf16 pg"]
    assert names((1, 1), (2, 1)) == 2 * ["bf16 pg"]
    assert names((1, 1), (2, 2), (2, 1)) == [f"bf16 pg warmstart.seed={seed}" for seed in (1, 2, 1)]
