"""One frame from folders, offline files and a server; damage is named; the cache gives what the record gives."""

import subprocess
import sys

import pandas as pd
import pytest

from analysis import folders, store
from analysis.load import load
from analysis.store import cache
from harness.errors import UserError
from tests.analysis.synthetic import FP32, rows, write

FP8 = "rollout/precision=fp8_tensor"


@pytest.fixture
def sweep(tmp_path):
    for seed in (0, 1):
        write(tmp_path, "rollout/precision=fp32", seed=seed, steps=100)
        write(tmp_path, FP8, seed=seed, steps=100, collapse=60)
    return tmp_path


def test_the_frames_hold_the_rows_as_written(sweep):
    found = load(sweep)
    run = found.runs.index[found.runs.arm == "fp32 ppo"][0]
    steps = found.steps[found.steps.run == run].set_index("step")
    for row in rows("fp32", 0, 100):
        for name, value in row.items():
            if name != "step":
                assert steps.loc[row["step"], name] == value  # the same bits
    assert pd.isna(steps.loc[1, "eval/reward"]) and pd.isna(steps.loc[100, "actor/loss"])  # not recorded there


def test_outcomes_and_times(sweep):
    """Half the way from 0.96 to 0.07 is 0.515. At 65 the reward is 2/3·0.96 + 1/3·0.05 = 0.66, at 70 it is 0.35: the onset, in
    the 71st step."""
    runs = load(sweep).runs.set_index(["arm", "seed"])
    fp8 = runs.loc[("fp8_tensor ppo", 0)]
    assert (fp8.outcome, fp8.onset, fp8.detector, fp8.cause, fp8.time, fp8.event) == (
        "collapsed",
        70,
        "drawdown",
        "distribution",
        71,
        True,
    )
    fp32 = runs.loc[("fp32 ppo", 0)]
    assert (fp32.outcome, fp32.time, fp32.event) == ("survived", 100, False)


def test_synthetic_noise_makes_no_control(tmp_path):
    """Noise of either kind is a source of mismatch of its own, whatever the precision."""
    for seed, more in enumerate(([], ["rollout.engine.noise=0.01"], ["model=moe", "rollout.engine.router_noise=0.5"])):
        write(tmp_path, FP32, *more, seed=seed)
    runs = load(tmp_path).runs.sort_values("seed")
    assert list(runs.control) == [True, False, False]
    assert list(runs.source) == ["fp32", "fp32, noise 0.01", "fp32, router noise 0.5"]


@pytest.mark.parametrize(
    ("overrides", "source"),
    [
        ([FP32, "rollout.engine.kv_at_sync=keep", "rollout.partial_tokens=2"], "fp32, parts of 2 tokens, kv at sync keep"),
        (["rollout/precision=bf16", "actor.dtype=bf16", "rollout.engine.head_dtype=fp32"], "bf16, head dtype fp32"),
        (["rollout/precision=bf16", "actor.dtype=bf16", "actor.masters=kahan"], "bf16, masters kahan"),
        (["rollout/precision=bf16", "actor.dtype=bf16", "actor.lora={rank: 4, sync: merged}"], "bf16, LoRA merged"),
    ],
)
def test_other_engine_parameters_and_masters_make_no_control(tmp_path, overrides, source):
    write(tmp_path, *overrides)
    (run,) = load(tmp_path).runs.itertuples()
    assert (run.control, run.source) == (False, source)


def test_formats_and_not_names_make_a_control(tmp_path):
    """W4A4 rollouts under the name of the trainer's bf16 are none; bf16 rollouts under the name of another are one."""
    for seed, more in enumerate((["rollout/precision=nvfp4_w4a4", "rollout.precision.name=bf16"], ["rollout/precision=bf16"])):
        write(tmp_path, "actor.dtype=bf16", *more, *(["rollout.precision.name=fp8_tensor"] if seed else []), seed=seed)
    assert list(load(tmp_path).runs.sort_values("seed").control) == [False, True]


def test_a_trainer_cast_as_its_rollouts_makes_a_control(tmp_path):
    cast = ["actor.dtype=bf16", "rollout/precision@actor.precision=fp8_tensor"]
    for seed, precision in enumerate(("fp8_tensor", "bf16")):
        write(tmp_path, *cast, f"rollout/precision={precision}", seed=seed)
    runs = load(tmp_path).runs.sort_values("seed")
    assert list(runs.control) == [True, False]


def test_the_clock_counts_optimizer_steps(tmp_path):
    write(tmp_path, FP8, "actor.num_minibatches=4", steps=100, collapse=60)
    assert load(tmp_path).runs.time.item() == 71 * 4


def test_the_cache_gives_what_the_record_gives_and_sees_a_change(sweep):
    cold = load(sweep)
    assert cache(str(sweep.resolve())).exists()
    warm = load(sweep)
    pd.testing.assert_frame_equal(cold.steps, warm.steps)
    pd.testing.assert_frame_equal(cold.runs, warm.runs)
    with open(next(sweep.glob("fp32-1/metrics.jsonl")), "a") as file:
        file.write('{"step": 101, "actor/loss": 7.5}\n')
    changed = load(sweep)
    assert len(changed.steps) == len(cold.steps) + 1 and 7.5 in changed.steps["actor/loss"].values
    kept = cache(str(sweep.resolve()))
    kept.write_bytes(kept.read_bytes()[:-100])
    assert len(load(sweep).steps) == len(changed.steps)


def test_a_cache_of_an_earlier_version_gets_the_keys_of_today(tmp_path, monkeypatch):
    """A run is cached before there was a critic; one that is read today is its second seed, and of the same arm."""
    write(tmp_path, FP8, seed=0, steps=6)
    with monkeypatch.context() as earlier:
        earlier.setattr(folders, "recorded", lambda values: {key: value for key, value in values.items() if key != "critic"})
        earlier.setattr(store, "recorded", lambda config: config)
        load(tmp_path)
    write(tmp_path, FP8, seed=1, steps=6)
    found = load(tmp_path)
    assert found.arms == ["fp8_tensor ppo"] and all("critic" in config for config in found.configs.values())


def test_of_a_step_recorded_twice_the_later_row_counts(tmp_path):
    folder = write(tmp_path, steps=6)
    folder._append("metrics.jsonl", {"step": 3, "actor/loss": 5.0})
    steps = load(tmp_path).steps
    assert list(steps.step) == list(range(7)) and steps["actor/loss"][3] == 5.0 and pd.isna(steps["actor/grad_norm"][3])


def test_a_line_cut_short_is_left_out_and_named(tmp_path):
    folder = write(tmp_path, steps=6, state="running")
    path = folder.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    found = load(tmp_path)
    assert list(found.steps.step) == list(range(6))
    assert any("1 of its lines unreadable" in problem for problem in found.caveats)


def test_not_a_number_stays_not_a_number(tmp_path):
    folder = write(tmp_path, steps=6)
    folder._append("metrics.jsonl", {"step": 8, "actor/loss": float("inf"), "actor/grad_norm": float("nan")})
    last = load(tmp_path).steps.iloc[-1]
    assert last["actor/loss"] == float("inf") and pd.isna(last["actor/grad_norm"])


def test_problems_are_named(tmp_path):
    for seed in (0, 1, 2):
        write(tmp_path, "rollout/precision=fp32", seed=seed, steps=20)
    write(tmp_path, FP8, seed=0, steps=20, drop=("mismatch/ess_token", "eval/stderr"))
    write(tmp_path, FP8, seed=1, steps=20, until=12, state="failed", error="out of memory", commit="b" * 40)
    broken = write(tmp_path, "rollout/precision=bf16", seed=0, steps=20)
    (broken.path / "config.json").write_text("{")
    queued = write(tmp_path, "rollout/precision=bf16", seed=1, steps=20, until=0, state="running")
    assert queued.metrics() == []
    text = "\n".join(load(tmp_path).caveats)
    for expected in (
        "fp8_tensor ppo lacks seed 2, which other arms have.",
        "fp8_tensor ppo seed 1: failed at step 11; the steps before count. out of memory",
        "fp8_tensor ppo seed 0 did not record eval/stderr, mismatch/ess_token, which other seeds of the arm did.",
        "bf16 ppo seed 1: running at step 0.",
        "bf16-0/config.json: unreadable",
        "The runs used 2 versions of the code (aaaaaaaaaa: 5 runs in 3 arms; bbbbbbbbbb: 1 run in 1 arm).",
    ):
        assert expected in text, text


def test_arms_that_lack_the_same_seeds_are_named_together(tmp_path):
    for seed in range(4):
        write(tmp_path, "rollout/precision=fp32", seed=seed, steps=6)
        if seed < 2:
            write(tmp_path, FP8, seed=seed, steps=6)
            write(tmp_path, "rollout/precision=bf16", seed=seed, steps=6)
    assert load(tmp_path).caveats == ["2 arms (bf16 ppo, fp8_tensor ppo) lack seeds 2, 3, which other arms have."]


def test_some_seeds_alone(tmp_path):
    """The metrics of an arm without these seeds are not reported, uneven or not."""
    for seed in range(4):
        write(tmp_path, "rollout/precision=fp32", seed=seed, steps=6)
    write(tmp_path, FP8, seed=0, steps=6)
    sweep = load(tmp_path, seeds=(2, 3, 9))
    assert sorted(sweep.runs.seed) == [2, 3] and set(sweep.steps.run) == set(sweep.runs.index) == set(sweep.configs)
    assert sweep.caveats == []
    with pytest.raises(UserError, match="no run has seed 7, 9; it has 0, 1, 2, 3"):
        load(tmp_path, seeds=(9, 7))


def test_a_folder_without_its_config_is_named(tmp_path):
    """Half copied, or killed in its first moment: it is no run that can be read, and no reason to stop."""
    write(tmp_path, "rollout/precision=fp32", steps=6)
    (write(tmp_path, FP8, steps=6).path / "config.json").unlink()
    found = load(tmp_path)
    assert len(found.runs) == 1 and any("config.json: missing" in problem for problem in found.caveats)


def test_a_config_that_is_none_of_a_run_is_named(tmp_path):
    write(tmp_path, "rollout/precision=fp32", steps=6)
    write(tmp_path, FP8, steps=6).write("config.json", {"seed": 1})
    found = load(tmp_path)
    assert len(found.runs) == 1
    assert any("config.json: no config that this version reads (steps: missing; " in problem for problem in found.caveats)


def test_events_steps_and_provenance_of_another_kind_are_named(tmp_path):
    """An event without its onset, steps that are words, a process without its code, a detector that is not installed."""
    write(tmp_path, "rollout/precision=fp32", steps=6)
    (write(tmp_path, "rollout/precision=bf16", steps=6).path / "metrics.jsonl").unlink()
    event, words, process, plugin = (write(tmp_path, FP8, seed=seed, steps=6) for seed in range(4))
    event._append("events.jsonl", {"kind": "collapse", "step": 3, "detector": "drawdown"})
    (words.path / "metrics.jsonl").write_text('{"step": "1", "actor/loss": 1.0}\n{"step": "2"}\n')
    process.write("provenance.json", {"processes": [{"commit": None}]})
    config = plugin.read("config.json")
    plugin.write("config.json", config | {"collapse": config["collapse"] | {"detectors": {"mine": {}}}})
    found = load(tmp_path)
    assert len(found.runs) == 5 and set(found.steps.run) == set(found.runs.index) - {words.path.name, "bf16-0"}
    text = "\n".join(found.caveats)
    for said in (
        "Run bf16-0: metrics.jsonl: ends before step 0, while the run went on to 6",
        "events.jsonl: onset: missing; left out",
        "metrics.jsonl: 2 of its lines unreadable",
        "provenance.json: does not say which code made the run",
        "its outcome is unknown: detectors=mine: unknown",
    ):
        assert said in text, text


def test_rows_without_a_status_count_as_far_as_they_go(tmp_path):
    (write(tmp_path, steps=20, until=13).path / "status.json").unlink()
    found = load(tmp_path)
    assert (found.runs.step.item(), found.runs.outcome.item()) == (12, "unfinished")
    assert any("unknown whether the run ended" in problem for problem in found.caveats)


def test_runs_that_have_not_begun_are_counted_in_a_line_and_equal_failures_too(tmp_path):
    for seed in range(3):
        write(tmp_path, FP8, seed=seed, until=0, state="queued")
        write(tmp_path, "rollout/precision=fp32", seed=seed, until=0, state="failed", error="no prompts")
    assert load(tmp_path).caveats == [
        "3 runs in 1 arm have not begun.",
        "fp32 ppo seeds 0, 1, 2: failed at step 0. no prompts",
    ]


def test_versions_are_told_apart_by_uncommitted_changes_and_by_packages(tmp_path):
    for seed, (diff, torch) in enumerate([("", "2.13"), ("+a", "2.13"), ("+b", "2.14")]):
        folder = write(tmp_path, seed=seed, steps=6)
        (process,) = folder.read("provenance.json")["processes"]
        folder.write("provenance.json", {"processes": [process | {"diff": diff, "packages": {"torch": torch}}]})
    code, packages = load(tmp_path).caveats
    assert code.startswith("The runs used 3 versions of the code (aaaaaaaaaa: 1 run in 1 arm; aaaaaaaaaa with uncommitted")
    assert packages == "The runs used 2 versions of torch (2.13: 2 runs in 1 arm; 2.14: 1 run in 1 arm)."


def test_a_clean_sweep_has_no_problems(sweep):
    assert load(sweep).caveats == []


def test_an_empty_sweep(tmp_path):
    with pytest.raises(UserError, match="no run folder in it"):
        load(tmp_path)
    write(tmp_path, steps=4).write("config.json", [])
    with pytest.raises(UserError, match="no run in it can be read"):
        load(tmp_path)


@pytest.mark.slow
def test_reading_never_imports_torch(sweep):
    read = f"from analysis.load import load; import analysis.report; load({str(sweep)!r})"
    code = f"import sys; {read}; print('torch' in sys.modules, 'wandb' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False False", done.stderr
