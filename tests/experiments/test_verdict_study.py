"""The study of the verdict: lists, regret, tests, law and forecast, on records made by hand."""

import json
from dataclasses import asdict
from math import comb

import numpy as np
import pandas as pd
import pytest

from analysis.load import load
from experiments.regimes import Regime, Split, controls, regimes
from experiments.verdict_study import (
    ARMS,
    EARLY,
    GRID,
    PLANS,
    RUN,
    SEEDS,
    Cutoffs,
    Seen,
    added,
    against,
    arm_of,
    arm_of_verdict,
    auc,
    check_complete,
    claims,
    commands,
    constant,
    costs,
    done,
    dose,
    endpoints,
    forecast,
    gains,
    law,
    questions,
    regret,
    regrets,
    rules,
    tau,
    tuned,
    without_a_source,
)
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.run.folder import RunFolder


def ends(**arms: list[float]) -> pd.DataFrame:
    """[five seeds, arms]; an arm that is not given has 0 throughout."""
    return pd.DataFrame({arm: arms.get(arm, [0.0] * 5) for arm in (*ARMS, *arms)}, index=SEEDS)


def always(arm: str) -> dict[int, str]:
    return dict.fromkeys(SEEDS, arm)


def test_regret_is_what_a_rule_loses_against_the_best_arm():
    """Masks end at 0.7 and no correction at 0.5, whatever the seed: 0.2 for never correcting, 0 for the best."""
    table = ends(mask=[0.7] * 5, none=[0.5] * 5)
    assert regret(table, always("none")) == pytest.approx(0.2) and regret(table, always("mask")) == 0.0


def test_the_best_arm_is_not_scored_on_the_seeds_that_chose_it():
    """Token truncation has 1 on one seed of five and 0 else, no correction 0.3. On the C(5, 2) = 10 choices of two seeds, the 4
    with the lucky seed choose the token (0.5 against 0.3) and score 0 − 0.3. The other 6 choose none: 0. So −0.12 for never
    correcting, which is truly as good. Chosen and scored on all seeds it would be 0."""
    table = ends(token=[1.0, 0.0, 0.0, 0.0, 0.0], none=[0.3] * 5)
    assert comb(5, 2) == 10 and regret(table, always("none")) == pytest.approx(4 * -0.3 / 10)


def test_a_rule_may_choose_by_seed():
    """The mask has 0.6 and the token 0.5. Two of five seeds take the token: a seed is scored in 6 of 10 choices, each a third,
    so the mean loss is 2/5 of 0.1."""
    table = ends(mask=[0.6] * 5, token=[0.5] * 5)
    chosen = always("mask") | {71: "token", 75: "token"}
    assert regret(table, chosen) == pytest.approx(0.04)


def runs(plan: dict[tuple[str, str, str], float], start: float = 0.2, **more: float) -> pd.DataFrame:
    """Rows of `endpoints`: (bed, source, arm) -> end, alike for seeds and policies."""
    signals = {"k3": 0.01, "ess": 0.9, "gradient": 0.1, "identity": 0.0, "tokens": 10.0, "onset": np.nan, **more}
    signals |= {f"persistence_{lag}": 1.0 for lag in (1, 5, 20)}
    return pd.DataFrame(
        [
            {"bed": bed, "source": source, "arm": arm, "seed": seed, "policy": policy, "start": start, "end": end, "train": end}
            | {"outcome": "survived", **signals}
            for (bed, source, arm), end in plan.items()
            for seed in SEEDS
            for policy in ("trainer", "sampler")
        ]
    )


def regime(bed: str, source: str, **arms: float) -> dict[tuple[str, str, str], float]:
    return {(bed, source, arm): arms.get(arm, 0.3) for arm in (*ARMS, *arms)}


def about(verdict: str = "token", k3: float = 0.01, tokens: float = 10, *names: str) -> pd.DataFrame:
    rows = [(name, seed, Seen(k3, 1.0, tokens, verdict)) for name in names for seed in SEEDS]
    return pd.DataFrame(rows, columns=["regime", "seed", "seen"]).set_index(["regime", "seed"])


CONTROL = {("dense", "exact", "none"): 0.8}


def test_regrets_are_shares_of_the_gain_of_the_beds_control():
    """The control gains 0.8 − 0.2 = 0.6. Masks end at 0.7, the token at 0.55 and none at 0.4: 0.15 and 0.3, 25 % and 50 %."""
    table = runs(CONTROL | regime("dense", "int8", mask=0.7, token=0.55, none=0.4))
    assert gains(table).to_dict() == {"dense": pytest.approx(0.6)}
    named = rules(Cutoffs(short="mask"), "mask")
    found = regrets(table, about("token", 0.01, 10, "dense/int8"), "trainer", named).set_index("arm")
    assert found.loc[["verdict", "always none", "v2", "best constant"], "share"].tolist() == pytest.approx([0.25, 0.5, 0.0, 0.0])
    assert found.regret["verdict"] == pytest.approx(0.15)


def test_an_arm_that_a_rule_asks_for_must_have_run():
    table = runs(CONTROL | regime("dense", "int8", mask=0.7))
    with pytest.raises(UserError, match=r"dense/int8: verdict asks for token 1.03 of seed 71, .*see lists 4 and 7"):
        regrets(table, about("token 1.03", 0.01, 10, "dense/int8"), "trainer", {"verdict": lambda seen: seen.verdict})
    with pytest.raises(UserError, match="dense/int8: lacks runs of its arms"):
        regrets(table[(table.seed != 73) | (table.arm != "mask")], about("token", 0.01, 10, "dense/int8"), "trainer", {})


def test_rules_are_tuned_and_scored_on_all_planned_regimes():
    """A regime without records, or without the verdict of one seed, is named, and not left out of the mean."""
    known = about("token", 0.01, 10, "dense/int8", "moe/int8")
    check_complete(known, [Regime("dense", "int8"), Regime("moe", "int8")])
    with pytest.raises(UserError, match=r"^dense/w4a4, moe/int8: lacks uncorrected runs or their verdicts"):
        check_complete(
            known.drop(("moe/int8", 73)), [Regime(*one) for one in (("dense", "int8"), ("moe", "int8"), ("dense", "w4a4"))]
        )


def test_v2_asks_for_size_persistence_and_length():
    rule = Cutoffs(k3=1e-3, persistence=0.3, tokens=10, short="sequence", long="token")
    given = [Seen(5e-4, 1.0, 10, "none"), Seen(1e-2, 0.2, 10, "none"), Seen(1e-2, 0.5, 10, "none"), Seen(1e-2, 0.5, 32, "none")]
    assert [rule(seen) for seen in given] == ["none", "none", "sequence", "token"]


@pytest.mark.slow
def test_tuning_finds_the_length_that_tells_two_levels_apart():
    """Ten tokens want the sequence weight and 32 the token weight; no constant and no other cut-off has both."""
    long = {("long32", "exact", "none"): 0.8}
    table = runs(CONTROL | long | regime("dense", "int8", sequence=0.7) | regime("long32", "int8", token=0.7, mask=0.5))
    known = pd.concat([about("token", 0.01, 10, "dense/int8"), about("token", 0.01, 32, "long32/int8")])
    v2, best = tuned(table, known, "trainer")
    assert v2 == Cutoffs(0.0, -1.0, 10, "sequence", "token") and best == "token"
    assert GRID[0] == Cutoffs()


def test_four_claims_of_a_policy_share_holms_adjustment():
    """Eight regimes. v2 has a regret that is 0.1 to 0.17 less than the others' in each: 2 of 2^8 signs, times four by Holm.
    It is not equivalent to the best constant."""
    names = [f"dense/{i}" for i in range(8)]
    values = {"v2": 0.0, "best constant": 0.1, "always token": 0.1, "verdict": 0.1, "always none": 0.2}
    rows = pd.DataFrame(
        [
            {"arm": arm, "regime": name, "policy": policy, "regret": value * (1 + i / 10), "share": value * (1 + i / 10)}
            for arm, value in values.items()
            for i, name in enumerate(names)
            for policy in ("trainer", "sampler")
        ]
    )
    found = claims(rows)
    assert len(found) == 8 and sum(len(plan.families) for plan in PLANS.values()) == 8
    trainer = found[found.policy == "trainer"].set_index("claim")
    assert trainer.loc["below", "p"].tolist() == pytest.approx([2 / 256] * 3)
    assert trainer.loc["below", "holm_p"].tolist() == pytest.approx([8 / 256] * 3)  # the least of four p-values, times four
    assert trainer.loc["equivalent", "holm_p"] == 1.0
    alone = claims(rows[rows.arm.isin(["v2", "always token"])])  # three that were planned and have no runs count with p = 1
    assert alone.holm_p.tolist() == pytest.approx([8 / 256] * 2)
    assert trainer.loc["below", "difference"].max() == pytest.approx(-0.135)


def test_a_mean_without_one_source():
    """Shares 0.1 and 0.3 of INT8, 0.5 of NVFP4, 0.9 of W4A4. Without INT8 their mean is 0.7, without NVFP4 0.433, without
    W4A4 0.3."""
    shares = {"dense/int8": 0.1, "moe/int8": 0.3, "dense/nvfp4": 0.5, "moe/w4a4": 0.9}
    rows = pd.DataFrame([{"policy": "trainer", "arm": "v2", "regime": name, "share": x} for name, x in shares.items()])
    assert without_a_source(rows).iloc[0].tolist() == ["trainer", "v2", *map(pytest.approx, (0.45, 0.3, 0.7))]


def test_tau_of_what_stays_and_of_what_is_fresh():
    """All 20 correlations 1: 41. All 0: 1, but for ρ_0. Linear from ρ_1 = 1 to ρ_5 = 0: 1 + 3/4 + 1/2 + 1/4 = 2.5, so 6."""
    assert tau({1: 1.0, 5: 1.0, 20: 1.0}) == 41.0 and tau({1: 0.0, 5: 0.0, 20: 0.0}) == 1.0
    assert tau({1: 1.0, 5: 0.0, 20: 0.0}) == pytest.approx(6.0)


def test_costs_are_shares_of_the_gain_and_a_law_is_fitted_on_other_regimes():
    """The control ends at 0.8 after 0.2; without correction 0.5 is left, a cost of one half. K3 0.01 that stays has dose 0.41."""
    row = costs(runs(CONTROL | regime("dense", "int8", none=0.5)), "trainer").iloc[0]
    assert (row.cost, row.dose, row.spread) == pytest.approx((0.5, 0.41, 0.1))
    fitted = pd.DataFrame({"cost": [0.1, 0.2], "dose": [0.01, 0.04], "k3": [0.01, 0.01]})
    other = pd.DataFrame({"cost": [0.3, 0.1], "dose": [0.09, 0.01], "k3": [0.01, 0.01]})
    found = law(fitted, other).set_index("law")
    # cost = √dose exactly. By K3 alone a = (0.1·0.1 + 0.2·0.1)/(2·0.01) = 1.5, so 0.15 twice: off by 0.15 and 0.05.
    assert found.a.tolist() == pytest.approx([1.0, 1.5, 0.0]) and found.error.tolist() == pytest.approx([0.0, 0.1, 0.2])


def test_the_first_of_arms_that_tie_is_the_best():
    """Token is above none on seed 2 alone. But 0.1 + 0.2 > 0.3 in floating point, on seed 0.

    Pairs of seeds without seed 2 tie, so none is the best and loses nothing. Pairs with it choose token, which gains nothing on
    the seeds that are judged. If rounding decided, the pairs (0, 1) and (0, 3) would choose token, with 1/2 each: regret 1/6.
    """
    ends = pd.DataFrame({arm: -1.0 for arm in ARMS}, index=range(4))
    ends["none"], ends["token"] = [0.3, 0.0, 0.0, 0.0], [0.1 + 0.2, 0.0, 1.0, 0.0]
    assert ends.token[0] > ends.none[0]
    assert regret(ends, dict.fromkeys(ends.index, "none")) == pytest.approx(0.0)


def test_a_law_predicts_a_regime_of_negative_tau_too():
    """Correlations of −0.05 have τ = 1 − 2·20·0.05 = −1. Such a regime is predicted to cost 0, and not left out."""
    lags = {1: -0.05, 5: -0.05, 20: -0.05}
    assert tau(lags) == pytest.approx(-1.0) and dose(0.01, lags) == 0
    fitted = pd.DataFrame({"cost": [0.1, 0.2, 0.5], "dose": [0.01, 0.04, 0.0], "k3": [0.01, 0.01, 0.01]})
    other = pd.DataFrame({"cost": [0.3, 0.1], "dose": [0.09, 0.0], "k3": [0.01, 0.01]})
    row = law(fitted, other).set_index("law").loc["K3 times tau"]
    assert (row.a, row.error) == pytest.approx((1.0, 0.05))  # 0.3 is predicted, and 0 in place of 0.1


def test_auc_by_hand():
    """Events 3 and 1, others 2 and 1: 3 beats both, 1 ties once and loses once: 2.5 of 4."""
    assert auc(np.array([3.0, 1.0, 2.0, 1.0]), np.array([True, True, False, False])) == 0.625
    assert np.isnan(auc(np.array([1.0]), np.array([True])))
    table = pd.DataFrame({"cost": [0.5, 0.0, 0.1], "collapsed": [1.0, 0.0, 0.0], "onset": [90.0, np.nan, np.nan]})
    table = table.assign(k3=[3, 1, 2], dose=[1, 1, 1], spread=[0, 1, 2], identity=[5, 5, 1], gradient=[2, 1, 3])
    found = forecast(table).set_index("signal")
    assert found.AUC.tolist() == [1.0, 0.5, 0.0, 0.75, 0.5] and (found.lead == 70).all() and (found.harmed == 1).all()


def folder(sweep, *overrides: str, seed: int, rewards: list[float], **metrics: float) -> None:
    """A finished run of forty steps that is judged every ten: `rewards` of the trainer's policy, half of them the sampler's, 0.1
    more on training prompts. metrics: of its first ten steps; later they are tenfold."""
    config = compose("tracking=disabled", "+regime/bed=dense", *overrides)
    run = RunFolder(sweep / f"{'-'.join(overrides).replace('/', '-')}-{seed}")
    with run.claim():
        run.write("config.json", parse(config | {"seed": seed}).model_dump(mode="json"))
        for step in range(41):
            row = {name: value * (1 if step < EARLY else 10) for name, value in metrics.items()} if step < 40 else {}
            if step % 10 == 0:
                reward = rewards[step // 10]
                row |= {"eval/reward": reward, "eval/rollout_reward": reward / 2, "eval/stderr": 0.01}
                row |= {"eval/train_reward": reward + 0.1, "eval/train_rollout_reward": reward / 2 + 0.1}
            run.log_metrics(step, row | ({"mismatch/persistence_5": 0.7} if step == 5 else {}))
        run.status("done", step=40, steps=40)


METRICS = {
    "rollout_corr/k3_kl": 0.01, "mismatch/ess_sequence": 0.05, "actor/grad_norm": 0.2, "mismatch/ratio_mean": 0.99,
    "rollout/response_tokens": 10.0, "actor/entropy": 0.02,
}  # fmt: skip


@pytest.mark.slow
def test_endpoints_of_runs(tmp_path):
    """The end is the mean of the last three of five evaluations; the mismatch is that of the first twenty steps alone."""
    rewards = [0.2, 0.4, 0.6, 0.7, 0.8]
    folder(tmp_path / "s", "+regime/source=int8", "correction=sequence_mask", seed=71, rewards=rewards, **METRICS)
    found = endpoints(load(tmp_path / "s")).set_index("policy")
    own, sampler = found.loc["trainer"], found.loc["sampler"]
    assert (own.bed, own.source, own.arm, own.seed) == ("dense", "int8", "mask", 71)
    assert (own.start, own.end, own.train) == pytest.approx((0.2, 0.7, 0.8))
    assert (sampler.start, sampler.end, sampler.train) == pytest.approx((0.1, 0.35, 0.45))
    assert (own.k3, own.ess, own.gradient, own.identity, own.tokens) == pytest.approx((0.01, 0.05, 0.2, 0.01, 10))
    assert own.persistence_5 == 0.7 and np.isnan(own.persistence_20)


def test_the_controls_of_an_admission(tmp_path):
    """Gain 0.7 − 0.2 and gap 0.1 as above; the entropy of the last twenty of forty steps is 0.2."""
    folder(tmp_path / "s", "+regime/source=exact", seed=60, rewards=[0.2, 0.4, 0.6, 0.7, 0.8], **METRICS)
    row = controls(load(tmp_path / "s")).iloc[0]
    assert (row.bed, row.seed) == ("dense", 60)
    assert (row.start, row.end, row.train, row.entropy) == pytest.approx((0.2, 0.7, 0.8, 0.2))


def test_the_arm_of_a_verdict():
    assert arm_of_verdict({"proposal": None}) == "none"
    assert arm_of_verdict({"proposal": {"level": "sequence", "upper": 2.0}}) == "sequence"
    assert arm_of_verdict({"proposal": {"level": "token", "upper": 1.03}}) == "token 1.03"


def test_every_arm_is_known_by_its_config():
    found = {arm: arm_of(compose(f"correction={name}")) for arm, name in ARMS.items()}
    assert found == {arm: arm for arm in ARMS}
    assert arm_of(compose("correction=token_truncate", "correction.weight.upper=1.03")) == "token 1.03"
    with pytest.raises(UserError, match="no arm of the study"):
        arm_of(compose("correction=icepop"))


def test_lists_are_whole_and_no_held_out_regime_is_in_the_first_four():
    """Each list runs all arms of its part: 39 regimes, 13 of which calibrate, five seeds; 8 controls."""
    parts, beds = regimes(), ("dense", "moe")
    assert commands(1, parts, beds)[0].split()[5:7] == ["+regime/bed=dense,moe", "+regime/source=exact"]
    for number, part, arms in (
        (2, parts.calibration, 1),
        (3, parts.calibration, 4),
        (5, parts.held_out, 1),
        (6, parts.held_out, 4),
    ):
        named = []
        for line in commands(number, parts, beds):
            values = dict(word.split("=", 1) for word in line.split() if "=" in word)
            assert values["seed"] == "71,72,73,75,77" and len(values["correction"].split(",")) == arms
            named += [Regime(values["+regime/bed"], source) for source in values["+regime/source"].split(",")]
        assert sorted(named) == sorted(part)
    verdicts = pd.DataFrame([(str(parts.calibration[0]), 72, "token 1.03"), (str(parts.held_out[0]), 72, "token 1.5"),
                             (str(parts.calibration[1]), 71, "sequence")], columns=["regime", "seed", "arm"])  # fmt: skip
    (line,) = commands(4, parts, beds, verdicts)
    assert "seed=72" in line and "correction=token_truncate correction.weight.upper=1.03" in line
    for number, match in ((8, "there are lists 1 to 7"), (7, "needs the verdicts of list 5")):
        with pytest.raises(UserError, match=match):
            commands(number, parts, beds)


def test_a_list_leaves_out_the_regimes_whose_runs_are_recorded():
    """Without a correction dense/int8 has all five seeds, moe/int8 lacks one of them: list 2 asks for the second alone."""
    parts = Split([Regime("dense", "int8"), Regime("moe", "int8")], [])
    names = {(name, "none", seed) for name in ("dense/int8", "moe/int8", "dense/exact") for seed in SEEDS}
    left = names - {("moe/int8", "none", 73)}
    assert ["+regime/bed=moe" in line for line in commands(2, parts, [], done=left)] == [True]
    assert commands(1, parts, ["dense"], done=names) == [] and len(commands(3, parts, [], done=names)) == 2
    verdicts = pd.DataFrame([("moe/int8", 72, "token 1.5")], columns=["regime", "seed", "arm"])
    assert commands(4, parts, [], verdicts, {("moe/int8", "token 1.5", 72)}) == []


def test_what_was_recorded_stays():
    """A run that was recorded keeps its row when its folder is gone, and when it ran again with another result."""
    known = runs({("dense", "int8", "none"): 0.5})
    again = runs({("dense", "int8", "none"): 0.9, ("dense", "int8", "mask"): 0.7})
    both = added(known, again, RUN)
    assert both.groupby("arm").end.mean().to_dict() == pytest.approx({"none": 0.5, "mask": 0.7}) and len(both) == 20
    assert done(both) == {("dense/int8", arm, seed) for arm in ("none", "mask") for seed in SEEDS}
    assert len(added(pd.DataFrame(columns=RUN), known, RUN)) == 10


@pytest.mark.slow
def test_rewards_of_prompts_are_kept(tmp_path, monkeypatch):
    """Two prompts in four evaluations: the last three have the means 0.5 and 1.0 for the trainer's policy."""
    monkeypatch.setattr("experiments.verdict_study.ROOT", tmp_path)
    monkeypatch.setattr("experiments.verdict_study.SWEEP", "s")
    folder(tmp_path / "s", "+regime/source=int8", seed=70, rewards=[0.2, 0.4, 0.6, 0.7, 0.8], **METRICS)
    run = RunFolder(next((tmp_path / "s").iterdir()))
    for step, rewards in enumerate(([0.0, 0.0], [0.25, 1.0], [0.5, 1.0], [0.75, 1.0])):
        run.log_questions(step, {"held_out/own": rewards, "held_out/rollout": [0.0, 1.0], "train/own": [1.0]})
    found = questions(load(tmp_path / "s")).set_index("policy")
    assert found.rewards["trainer"] == [0.5, 1.0] and (found.bed["sampler"], found.arm["sampler"]) == ("dense", "none")


def test_rules_as_they_are_frozen_come_back(tmp_path):
    one = Cutoffs(1e-3, 0.3, 20, "mask", "token")
    assert Cutoffs(**json.loads(json.dumps(asdict(one)))) == one and constant("mask")(Seen(0, 0, 0, "none")) == "mask"


def test_controls_made_again_take_the_place_of_their_beds_alone():
    rows = [("dense", "exact", 0.9), ("moe", "exact", 0.8), ("dense", "int8", 0.7)]
    runs = pd.DataFrame(rows, columns=["bed", "source", "end"])
    found = against(runs, pd.DataFrame([("dense", "exact", 0.6)], columns=["bed", "source", "end"]))
    assert sorted(found.itertuples(index=False, name=None)) == [
        ("dense", "exact", 0.6),
        ("dense", "int8", 0.7),
        ("moe", "exact", 0.8),
    ]
