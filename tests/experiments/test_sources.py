"""The map of sources: its lists, the names of its runs, its table and its answers, on records made by hand."""

import numpy as np
import pandas as pd
import pytest

from analysis.load import load
from experiments import sources
from experiments.regimes import SEEDS as ADMISSION
from experiments.regimes import STUDIED
from experiments.sources import (
    ADAPTERS,
    BEDS,
    CHANGED,
    COSTS,
    GONE,
    LATER,
    LATER_COSTS,
    MAPPED,
    QUESTIONS,
    answers,
    commands,
    mapped,
    names,
    rows,
)
from experiments.sources_figure import NAMES, draw
from experiments.verdict_study import EARLY
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.run.folder import RunFolder
from harness.validate import check

CHOSEN = [110, 111, 112, 113, 115]


def test_the_lists_have_every_source_on_both_beds_and_leave_out_what_is_done():
    assert [len(commands(number, CHOSEN)) for number in (1, 2, 3)] == [2, 1, 1]
    words = commands(2, CHOSEN)[0].split()
    kept = [source for source in MAPPED if source not in GONE]
    assert f"+regime/source={','.join(kept)}" in words and "seed=110,111,112,113,115" in words and "+regime/bed=dense" in words
    done = [("dense", source, seed) for source in kept[1:] for seed in CHOSEN]
    assert f"+regime/source={MAPPED[0]}" in commands(2, CHOSEN, done)[0].split()
    done += [("dense", MAPPED[0], seed) for seed in CHOSEN]
    assert commands(2, CHOSEN, done) == [] and len(commands(3, CHOSEN, done)) == 1
    later = zip(BEDS, commands(4, CHOSEN), strict=True)
    assert all(f"+regime/bed={bed} +regime/source=exact,bf16" in line for bed, line in later)
    assert all("+regime/source=lora_apart,lora_merged,lora_in_place seed=110" in line for line in commands(5, CHOSEN))
    with pytest.raises(UserError, match="lists 1 to 5"):
        commands(6, CHOSEN)


@pytest.mark.slow
def test_every_regime_is_a_run_of_its_own_that_can_start():
    known = names([110])
    kept = len(MAPPED) - len(GONE) + len(LATER) + len(ADAPTERS)
    assert len(known) == len(BEDS) * (2 + kept) == 48  # two controls; no two sources are one config
    for bed in BEDS:
        for source in {*MAPPED, *LATER, *ADAPTERS} - {*GONE}:
            check(parse(compose(f"+regime/bed={bed}", f"+regime/source={source}", "seed=110", CHANGED)))


def test_the_seeds_are_the_first_fit_ones_without_a_gap(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "STARTS_FILE", tmp_path / "starts.csv")
    with pytest.raises(UserError, match="has 0 fit seeds of 5"):
        sources.seeds()
    table = [(seed, bed, seed != 114) for seed in range(110, 117) for bed in BEDS if seed != 114 or bed == "dense"]
    frame = pd.DataFrame(table, columns=["seed", "bed", "fit"])
    frame.to_csv(tmp_path / "starts.csv", index=False)
    assert sources.seeds() == CHOSEN and not set(CHOSEN) & {*STUDIED, *ADMISSION}
    frame[frame.seed != 112].to_csv(tmp_path / "starts.csv", index=False)
    with pytest.raises(UserError, match=r"lacks \[112\]"):
        sources.seeds()


def ended(sweep, source: str, seed: int, k3: float, reward: float) -> None:
    """A finished run of 100 steps: `k3` for 60 steps, and then its square root; ESS 0.5; ratios 0.9 and 1.1 in turn."""
    config = parse(compose("tracking=disabled", "+regime/bed=dense", f"+regime/source={source}", f"seed={seed}", CHANGED))
    run = RunFolder(sweep / f"{source}-{seed}")
    with run.claim():
        run.write("config.json", config.model_dump(mode="json"))
        for step in range(101):
            row = {"rollout_corr/k3_kl": k3 if step < 60 else k3**0.5, "mismatch/ess_sequence": 0.5, "actor/grad_norm": 1.0}
            row |= {"mismatch/ratio_mean": 1 + 0.1 * (-1) ** step, "rollout/response_tokens": 10.0, "actor/changed_bf16": 0.25}
            if step % 20 == 0:
                row |= {"eval/reward": reward, "eval/rollout_reward": reward / 2, "eval/stderr": 0.01}
                row |= {"eval/train_reward": reward, "eval/train_rollout_reward": reward / 2}
            run.log_metrics(step, row if step < 100 else {key: row[key] for key in row if key.startswith("eval/")})
        run.status("done", step=100, steps=100)


@pytest.fixture
def known(monkeypatch):
    """The names of the planned runs of seed 110 with one source beside the exact control."""
    monkeypatch.setattr(sources, "MAPPED", ("kept_prompts",))
    return names([110])


@pytest.mark.slow
def test_the_columns_of_a_run(known, tmp_path):
    """ESS 0.5 over 10 tokens is 0.5^6.4 over 64. K3 goes from 0.01 to 0.1: a growth of ln 10. Twenty ratios 1 ± 0.1 have the
    mean 1 and the standard error 0.1/√19."""
    ended(tmp_path / "s", "kept_prompts", 110, 0.01, 0.7)
    row = rows(load(tmp_path / "s"), known).set_index("policy").loc["trainer"]
    assert (row.bed, row.source, row.seed, row.pair) == ("dense", "kept_prompts", 110, "dense/110")
    assert row.ess_64 == pytest.approx(0.5**6.4) and row.growth == pytest.approx(np.log(10)) and row.changed == 0.25
    assert (row.ratio, row.ratio_error) == pytest.approx((1, 0.1 / 19**0.5)) and row.end == pytest.approx(0.7) and EARLY == 20


@pytest.mark.slow
def test_a_run_of_another_plan_is_named(known, tmp_path):
    ended(tmp_path / "s", "kept_prompts", 7, 0.01, 0.7)
    with pytest.raises(UserError, match="no run of the map"):
        rows(load(tmp_path / "s"), known)


def table(**ends: float) -> pd.DataFrame:
    """Both beds and five seeds: the control goes from 0.2 to 0.8; another source ends at the given value, the sampler at half."""
    found = []
    for bed in BEDS:
        for number, seed in enumerate(CHOSEN):
            for source, end in {"exact": 0.8, **ends}.items():
                row = {"bed": bed, "source": source, "seed": seed, "pair": f"{bed}/{seed}", "start": 0.2, "k3": 0.01}
                row |= {name: 0.5 for name in ("ess_64", "ratio", "ratio_error", "persistence_1", "changed")}
                row |= {
                    "persistence_20": 0.9 if source == "no_masters" else 0.5,
                    "growth": 1.0 if source == "kept_prompts" else 0.1,
                }
                value = end + 0.01 * number
                found += [{**row, "policy": "trainer", "end": value}, {**row, "policy": "sampler", "end": value / 2}]
    return pd.DataFrame(found)


def test_costs_are_shares_of_the_gain():
    """0.3 below a control that gains 0.6 (and 0.02 in the mean of its seeds) costs 0.3/0.62; the sampler half of it."""
    row = mapped(table(mxfp4=0.5)).iloc[0]
    assert (row.bed, row.source) == ("dense", "mxfp4")
    assert (row["cost, trainer"], row["cost, sampler"]) == pytest.approx((0.3 / 0.62, 0.15 / 0.62))


def test_adapters_are_compared_with_adapters_apart():
    """Their control ends at 0.62, a gain of 0.42 and 0.02 more in the mean of the seeds. 0.1 below it costs 0.1/0.44 of that."""
    runs = table(lora_apart=0.62, lora_merged=0.52)
    row = mapped(runs).iloc[0]
    assert row.source == "lora_merged" and row["cost, trainer"] == pytest.approx(0.1 / 0.44)
    found = LATER_COSTS.compared(runs.assign(arm=runs.source)).set_index("policy").loc["trainer"]
    assert found.reference == "lora_apart" and found.holm_p == pytest.approx(4 / 1024)  # of two comparisons


def test_a_source_that_is_below_the_control_in_all_pairs_is_told():
    """Ten pairs of one sign: p = 2/2¹⁰, and with 24 planned comparisons 0.047."""
    runs = table(mxfp4=0.5)
    found = COSTS.compared(runs.assign(arm=runs.source)).set_index("policy")
    assert found.p.tolist() == pytest.approx([2 / 1024] * 2) and found.holm_p.tolist() == pytest.approx([48 / 1024] * 2)
    assert found.loc["trainer"].difference == pytest.approx(-0.3) and len(MAPPED) == 24


def test_the_answers_are_yes_no_or_not_told():
    runs = table(kept_prompts=0.8, **{"fresh_0.2": 0.8}, no_masters=0.7, bf16_masters=0.75, unified_w4a4=0.6, w4a4_bf16=0.7)
    found = answers(runs).set_index("question")
    assert found.answer.tolist() == ["yes", "yes", "yes", "no"] and list(found.index) == [one.words for one in QUESTIONS]
    assert found.holm_p.tolist() == pytest.approx([8 / 1024] * 4)
    equal = answers(table(no_masters=0.7, bf16_masters=0.7, unified_w4a4=0.7, w4a4_bf16=0.7))  # no runs for the first question
    assert equal.answer.tolist() == ["yes", "not told", "not told"]


def test_the_figure_names_every_source_and_counts_what_is_told_apart(tmp_path):
    """One of two sources costs the trainer's policy by the adjusted test; the other's p is small and its reward higher."""
    assert set(NAMES) == {*MAPPED}
    costs = pd.DataFrame(
        {
            "policy": ["trainer", "trainer", "sampler", "sampler"],
            "arm": ["mxfp4", "nvfp4"] * 2,
            "difference": [-0.1, 0.1, -0.1, 0.0],
            "low": [-0.2, 0.0, -0.2, -0.1],
            "high": [0.0, 0.2, 0.1, 0.1],
            "holm_p": [0.04, 0.04, 0.2, 1.0],
        }
    )
    table = pd.DataFrame({"bed": ["dense", "dense"], "source": ["mxfp4", "nvfp4"], "k3": [0.01, 0.0]})
    said = draw(table, costs, 0.5, tmp_path / "figure.png")
    assert said == "MXFP4 weights: a cost of 20% of what RL teaches, at a K3 of 1e-02 in the first 20 steps"
    nothing = draw(table, costs.assign(holm_p=1.0), 0.5, tmp_path / "figure.png")
    assert nothing == "No source of 2 is shown to cost the trainer's policy reward"
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
