"""The study of real text: lists, records, tests and predictions, from runs by hand."""

import numpy as np
import pandas as pd
import pytest

from experiments import text_study
from experiments.text_study import (
    ARMS,
    LONG,
    PLAN,
    SEEDS,
    arm_of,
    commands,
    endpoints,
    judged,
    origins,
    power,
    predictions,
    scored,
    whole,
)
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError


def runs(**rewards: float) -> pd.DataFrame:
    """Eight seeds an arm. Seed k adds k/100 to the reward of the trainer's policy; the sampler's is 0.02 above it."""
    return pd.DataFrame([
        {"arm": arm.replace("_", " "), "seed": seed, "trainer": reward + k / 100,
         "sampler": reward + k / 100 + 0.02, "rollouts": reward}
        for arm, reward in rewards.items()
        for k, seed in enumerate(SEEDS)
    ])  # fmt: skip


def test_a_list_is_one_seed_in_all_arms_and_omits_what_is_recorded():
    first = commands(1, done=set())
    assert len(first) == len(ARMS) and all(" seed=201 steps=40 " in line for line in first)
    assert all(" seed=208 steps=150 " in line for line in commands(8, set()))
    assert commands(1, {("fp16", 201), ("fp8", 202)}) == first[1:]
    with pytest.raises(UserError, match="list 9: there are lists 1 to 8"):
        commands(9, set())


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_is_known_by_its_config(arm):
    config = compose("+experiment=smollm2/sums", *ARMS[arm].split())
    assert arm_of(config) == arm
    parsed = parse(config)
    assert not (parsed.correction.active and parsed.correction.ratio == "old")  # actor.scoring=none would be refused
    assert (parsed.actor.scoring, parsed.evaluation.policy, parsed.evaluation.prompts) == ("none", "both", 100)
    with pytest.raises(UserError, match="no arm of the study of real text"):
        arm_of(compose("+experiment=smollm2/sums", "rollout/precision=int8"))


class Folder:
    """A finished run of 150 steps, whose evaluations and rewards are the step's number."""

    def __init__(self, last: int):
        every = [step for step in range(last + 1) if step % 10 == 0]
        table = pd.DataFrame({"run": "r", "step": range(last + 1)})
        table["eval/reward"] = [float(step) if step in every else np.nan for step in table.step]
        table["eval/rollout_reward"] = table["eval/reward"] + 1
        table["reward/rollout"] = [float(step) if step < last else np.nan for step in table.step]
        for name in ("rollout_corr/k3_kl", "mismatch/ess_sequence", "rollout/response_tokens", "time/step"):
            table[name] = 1.0
        self.steps = table
        self.runs = pd.DataFrame({"state": "done", "outcome": "healthy", "seed": 208}, index=["r"])
        self.configs = {"r": compose("+experiment=smollm2/sums", "rollout/precision=fp16")}


def test_the_origin_of_a_failed_run_is_kept():
    """The last process counts, and an error of a thousand characters is cut."""
    folder = Folder(3)
    folder.runs = folder.runs.assign(state="failed", step=0, error="CUDA out of memory. " * 50)
    last = {"commit": "b", "diff": "+x", "device": "NVIDIA H200", "packages": {"torch": "2.11.0", "vllm": "vllm 0.26.0"}}
    folder.provenance = {"r": [last | {"commit": "a"}, last]}
    (row,) = origins(folder).to_dict("records")
    assert (row["arm"], row["seed"], row["state"], row["commit"], row["changed"]) == ("fp16", 208, "failed", "b", True)
    assert len(row["error"]) == 120 and endpoints(folder).empty


def test_endpoints_stop_at_step_40_also_in_a_long_run():
    """Evaluations at 20, 30 and 40 have the mean 30; steps 30 to 39 the mean 34.5; 130 to 150 and 140 to 149 the later ones."""
    [long] = endpoints(Folder(LONG)).itertuples()
    assert (long.start, long.trainer, long.sampler, long.rollouts) == (0, 30, 31, 34.5)
    assert (long.late_trainer, long.late_sampler, long.late_rollouts) == (140, 141, 144.5)
    [short] = endpoints(Folder(40)).itertuples()
    assert (short.trainer, short.rollouts) == (30, 34.5) and np.isnan(short.late_trainer) and np.isnan(short.late_rollouts)


def test_the_planned_comparisons():
    """Eight equal differences have the least p of a sign-flip test, 2/256, doubled by Holm in the primary family of two."""
    table = PLAN.compared(judged(runs(fp16=0.7, fp8=0.6, fp8_token=0.66, fp8_sequence=0.5, bf16=0.69)))
    primary = table[table.family == "primary"]
    assert primary.difference.round(9).tolist() == [-0.1, 0.06] and (primary.policy == "trainer").all()
    assert primary.holm_p.round(9).tolist() == [4 / 256, 4 / 256]
    gap = table[table.family == "trainer loses, sampler gains"]
    assert gap.difference.round(9).tolist() == [0]
    worse = table[(table.family == "no worse by 0.05") & (table.policy == "trainer")].set_index(["arm", "reference"]).p
    assert worse["bf16", "fp16"] == 1 / 256 and worse["fp8", "fp16"] == 1


def test_power_and_its_spread():
    """Differences of (0, 0.1), (0, 0.1) and (0, 0) have the variances 0.005, 0.005 and 0, of mean 1/300."""
    ends = {"bf16 ppo": (0.5, 0.5), "fp8_channel ppo": (0.5, 0.6), "fp8_channel ppo token-truncate": (0.5, 0.7)}
    ends["bf16 ppo token-truncate"] = (0.5, 0.5)
    recorded = [{"arm": arm, "seed": seed, "reward": reward} for arm, of in ends.items() for seed, reward in enumerate(of)]
    assert text_study.spread(pd.DataFrame(recorded)) == pytest.approx((1 / 300) ** 0.5)
    table = power(0.001, draws=20).set_index("difference")
    assert table.loc[0.02, "p 0.05"] == 1 and table.loc[0.02, "no worse"] == 1 and table.loc[0.06, "no worse"] == 0
    assert power(0.04, draws=300).set_index("difference").loc[0.0, "p 0.05"] < 0.1


def test_a_prediction_is_scored_against_the_best_arm_of_fp8():
    frozen = {"trainer": {"v2": {"k3": 0.1}, "best": "mask"}}
    chosen = predictions(frozen).set_index("rule").arm
    assert (chosen["verdict"], chosen["v2"], chosen["best constant"]) == ("fp8 token", "fp8", "fp8 mask")
    table = scored(predictions(frozen), runs(fp16=0.9, fp8=0.6, fp8_token=0.66, fp8_sequence=0.5)).set_index("rule")
    short = table["reward less the best"]
    assert short["verdict"] == 0 and short["v2"] == pytest.approx(-0.06) and np.isnan(short["best constant"])


def test_a_command_that_is_none_is_refused():
    with pytest.raises(UserError, match="give list N, record, predict, score or power"):
        text_study.main(["lists"])


def test_a_seed_that_lacks_an_arm_is_no_part_of_the_study():
    every = runs(**{arm.replace(" ", "_"): 0.5 for arm in ARMS})
    assert len(whole(every)) == len(every)
    kept = whole(every[(every.seed != SEEDS[1]) | (every.arm != "bf16")])
    assert set(kept.seed) == {*SEEDS} - {SEEDS[1]} and len(kept) == len(every) - len(ARMS)
