"""Reward by dose: the fit, its band and the tolerated dose on numbers by hand, and the report of a sweep with a known curve."""

import json
import shutil

import numpy as np
import pytest

from analysis.figures.dose import nearest, response
from analysis.load import load
from analysis.report import report
from analysis.statistics import dose
from analysis.tables import real
from analysis.tables import response as table
from tests.analysis.synthetic import FP8, FP32, write

OWN, SAMPLING = "the trainer's own policy", "the rollout engine's policy"
SLOPES = {("none", 1): 0.5, ("none", 0): 0.1, ("token-truncate", 1): 0.2}
"""(correction, persistence) -> c of the trainer's reward 0.8 − c·√K3. The sampling policy loses half as much."""


def curve(*doses: tuple[float, list[float]], control=(0.79, 0.81)):
    """A curve of these (K3, responses)."""
    key = (OWN, "pg", "", "none", 1.0)
    return dose._curve(key, [(k3, np.array(values)) for k3, values in doses], np.array(control), 1.0)


def test_the_fit_pools_what_rises_and_is_linear_in_the_root_of_the_dose():
    """Means 0.80 | 0.78, 0.79, 0.60 at √K3 = 0 | 0.1, 0.2, 0.4. The rise is pooled: 0.785 twice, and with four runs at 0.79
    (2·0.78 + 4·0.79)/6. At √K3 = 0.3 half of the last fall is done. 0.75 is reached at 0.2 + 0.2·0.035/0.185."""
    pooled = curve((0.01, [0.77, 0.79]), (0.04, [0.78, 0.80]), (0.16, [0.6, 0.6]))
    assert pooled.level == pytest.approx([0.8, 0.785, 0.785, 0.6])
    assert pooled.at(0.09)[0] == pytest.approx(0.785 - 0.185 / 2)
    assert pooled.at(0.0025)[0] == pytest.approx(0.8 - 0.015 / 2)
    assert pooled.tolerated(0.05).value == pytest.approx((0.2 + 0.2 * 0.035 / 0.185) ** 2)
    assert np.isnan(pooled.at(0.2)).all()
    weighted = curve((0.01, [0.78, 0.78]), (0.04, [0.79] * 4), (0.16, [0.6, 0.6]))
    assert weighted.level[1:3] == pytest.approx([4.72 / 6] * 2)


def test_the_band_is_that_of_the_means_of_two_runs():
    """Drawn from two runs a − δ and a + δ, a mean is a − δ with probability 1/4: the 2.5 % quantile is a − δ. Doses lie too far
    apart to be pooled. 0.1 is lost earliest with the control c high and the first dose a low, in 1 of 16 draws. It is lost
    latest with c low and a high, then by the second dose b: that is high in 1 of 64 draws, too few, and 0.50 in 2 of 64."""
    apart = curve((0.04, [0.69, 0.71]), (0.16, [0.49, 0.51]), (0.36, [0.29, 0.31]))
    for k3, mean in ((0.04, 0.7), (0.16, 0.5), (0.36, 0.3)):
        assert apart.at(k3) == pytest.approx([mean, mean - 0.01, mean + 0.01])
    # √K3 is 0.2·0.1/(c − a) where a ≤ c − 0.1, else 0.2 + 0.2·(a − c + 0.1)/(a − b).
    least, most = 0.2 * 0.1 / (0.81 - 0.69), 0.2 + 0.2 * (0.71 - 0.79 + 0.1) / (0.71 - 0.50)
    value, low, high = apart.tolerated(0.1)
    assert value == pytest.approx(0.04)
    assert (low, high) == pytest.approx((least**2, most**2))


def test_a_loss_that_no_dose_reaches_is_above_the_largest_dose():
    """0.78 at most: 0.05 is never lost. Of the draws of a control at 0.80 ± 0.04 the highest lose 0.05 at once."""
    flat = curve((0.01, [0.78] * 2), (0.04, [0.78] * 2), (0.16, [0.78] * 2))
    assert flat.tolerated(0.05) == (np.inf, np.inf, np.inf)
    uncertain = curve((0.01, [0.78] * 2), (0.04, [0.78] * 2), (0.16, [0.78] * 2), control=(0.76, 0.84))
    value, low, high = uncertain.tolerated(0.05)
    assert (value, high) == (np.inf, np.inf)
    assert low == pytest.approx((0.1 * 0.05 / 0.06) ** 2)


def test_two_doses_are_no_curve():
    assert curve((0.01, [0.7, 0.7]), (0.04, [0.6, 0.6])).level is None


def noisy(sweep, seed, overrides, k3, reward, sampling, persistence):
    """The record of a run that is everywhere at this K3 and, from the last three evaluations on, at these rewards."""
    folder = write(sweep, "evaluation.policy=both", *overrides, seed=seed, steps=30)
    path = folder.path / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if "rollout_corr/k3_kl" in row:
            row["rollout_corr/k3_kl"] = k3
        if row["step"] >= 20 and "eval/reward" in row:  # evaluations at 20, 25 and 30, with the mean `reward`
            shift = (row["step"] - 25) / 100
            row |= {"eval/reward": reward + shift, "eval/rollout_reward": sampling + shift}
        if row["step"] == 20 and persistence is not None:
            row["mismatch/persistence_20"] = persistence
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """0.8 − c·√K3 with seeds ∓ 0.01, at √K3 = 0.1, 0.2, 0.4; FP8 on the curve of fixed noise, at √K3 = 0.2, persistence 0.9."""
    folder = tmp_path_factory.mktemp("sweeps") / "doses"
    for seed, shift in enumerate((-0.01, 0.01)):
        noisy(folder, seed, [FP32], 0.0, 0.8 + shift, 0.8 + shift, None)
        noisy(folder, seed, [FP8], 0.04, 0.7 + shift, 0.75 + shift, 0.9)
        for (correction, persistence), slope in SLOPES.items():
            for noise, root in ((0.1, 0.1), (0.2, 0.2), (0.4, 0.4)):
                overrides = [FP32, f"rollout.engine.noise={noise}", f"rollout.engine.noise_persistence={persistence:.1f}"]
                overrides += [f"correction={correction.replace('-', '_')}"]
                own, sampling = 0.8 - slope * root + shift, 0.8 - slope * root / 2 + shift
                noisy(folder, seed, overrides, root**2, own, sampling, 0.05 if persistence == 0 else 0.97)
    return folder


@pytest.mark.slow
def test_a_known_curve_comes_back_from_the_run_folders(sweep):
    """0.05 is lost at √K3 = 0.05/c: K3 0.01 of c 0.5, 0.0625 of 0.2, and of 0.1 at K3 0.25, above the largest, 0.16."""
    results = load(sweep)
    found = {(c.policy, c.correction, c.persistence): c for c in results.curves}
    assert set(found) == {(policy, *key) for policy in (OWN, SAMPLING) for key in SLOPES}
    for (correction, persistence), slope in SLOPES.items():
        own = found[OWN, correction, persistence]
        assert own.doses == pytest.approx([0.01, 0.04, 0.16])
        assert own.level == pytest.approx([0.8 - slope * root for root in (0, 0.1, 0.2, 0.4)])
        expected = (0.05 / slope) ** 2
        assert own.tolerated(0.05).value == pytest.approx(expected if expected < 0.16 else np.inf)
        assert found[SAMPLING, correction, persistence].at(0.16)[0] == pytest.approx(0.8 - slope * 0.2)
    assert [nearest(measured, results.curves) for measured in (0.2, 0.9, np.nan)] == [0, 1, None]


def test_an_arm_with_noise_is_compared_with_the_control_and_its_remedy_with_it(sweep):
    results = load(sweep)
    noise = "rollout.engine.noise=0.2 rollout.engine.noise_persistence=1.0"
    control = results.runs[results.runs.control].arm.unique().item()
    found = {arm: other for arm, other in results.references.items() if arm.endswith(noise)}
    assert found == {f"fp32 ppo {noise}": control, f"fp32 ppo token-truncate {noise}": f"fp32 ppo {noise}"}


@pytest.mark.slow
def test_the_tables_of_the_report_say_it(sweep):
    rows = table(load(sweep)).set_index(["policy", "correction", "persistence"])["K3 that costs 0.05"]
    assert rows[OWN, "none", 1].startswith("1.0e-02 (")
    assert rows[OWN, "none", 0].startswith("above 1.6e-01 (")
    beside = real(load(sweep)).set_index("policy")
    assert list(beside.reward) == ["0.700", "0.750"]
    assert beside.loc[OWN, "curve of persistence 1"].startswith("0.700 (")
    assert beside.loc[OWN, "curve of persistence 0"].startswith("0.780 (")
    assert beside.loc[OWN, "persistence"] == pytest.approx(0.9)


def test_the_figure_places_a_precision_beside_the_noise_that_persists_as_it_does(sweep):
    """A row per policy and correction, a column per persistence. FP8 measured 0.9, so it stands with the fixed noise, at its K3
    and its reward."""
    fresh, fixed, *_ = axes = response(load(sweep)).axes
    titles = [axis.get_title(loc="left") for axis in axes[:2]]
    assert titles == ["fresh noise, persistence 0", "fixed noise, persistence 1"]
    assert len(axes) == 8
    assert [text.get_text() for axis in (fresh, fixed) for text in axis.texts] == ["fp8_tensor"]
    assert fixed.texts[0].xy == pytest.approx((0.04, 0.7))
    titles = [axis.get_title(loc="left") for axis in axes[2:4]]
    assert titles == ["fresh noise, persistence 0,\ntoken-truncate", "fixed noise, persistence 1,\ntoken-truncate"]
    legend = [text.get_text() for text in axes[0].figure.legends[0].get_texts()]
    assert legend[:4] == ["control", "control − 0.05", "fit to the arms", "fit without a correction"]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_too_few_doses_are_listed_with_the_reason(tmp_path, sweep):
    few = tmp_path / "few"
    few.mkdir()
    for run in sweep.iterdir():
        if "0.4" not in run.name:
            shutil.copytree(run, few / run.name)
    assert response(load(few)) == (
        "no correction and persistence has 3 doses of noise (the most is 2), so no curve can be fitted"
    )
    page = report(few, out=tmp_path / "out").read_text()
    assert "Reward by dose (no correction and persistence has 3 doses of noise (the most is 2)" in page
    assert "too few doses" in page


@pytest.mark.slow
def test_without_noise_or_control_there_is_no_dose(tmp_path):
    for precision in (FP32, FP8):
        write(tmp_path, precision)
    assert response(load(tmp_path)).startswith("no run has noise on its weights beside an exact control")


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_precision_whose_persistence_no_run_measured_has_none(tmp_path):
    """A median of nothing is missing, and numpy is not asked for it: it would warn."""
    for precision in (FP32, FP8):
        write(tmp_path, precision, drop=("mismatch/persistence_20",))
    (found,) = dose.precisions(load(tmp_path).dosed)
    assert found.precision == "fp8_tensor" and np.isnan(found.measured)


@pytest.mark.usefixtures("undrawn")
def test_a_sweep_in_which_no_run_has_ended_has_no_doses(tmp_path):
    """Both runs have evaluations and go on: a table of no rows, and a report that says so."""
    for noise in (0, 0.1):
        write(tmp_path, FP32, f"rollout.engine.noise={noise:g}", steps=30, until=20, state="running")
    assert load(tmp_path).dosed.empty
    assert "No run has ended: 2 running." in report(tmp_path).read_text()
