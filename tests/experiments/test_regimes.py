"""Regimes as options, their parts by a fixed rule, and the admission of beds."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from experiments.regimes import (
    BEDS,
    EACH,
    PLANNED,
    SEEDS,
    STARTS_FILE,
    STUDIED,
    Regime,
    admission,
    admitted,
    bed_of,
    regimes,
    source_of,
    starts,
)
from experiments.sources import ADAPTED, ADAPTERS, GONE, LATER, SOURCES
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.train.warmstart import WarmStart
from harness.validate import check

CONF = Path("experiments/conf/regime")
MAP = (*SOURCES, *LATER, ADAPTED, *ADAPTERS)
"""Sources of the map, which the study of the verdict does not have."""


def test_every_bed_and_source_has_a_file_and_no_file_is_left_over():
    assert {path.stem for path in CONF.glob("bed/*.yaml")} == {*BEDS, "base"}
    assert {path.stem for path in CONF.glob("source/*.yaml")} == {*PLANNED, "exact", *MAP} - {*GONE}


@pytest.mark.slow
def test_every_regime_makes_a_config_that_a_run_accepts_and_is_known_again():
    digests = set()
    for regime in (*regimes().calibration, *regimes().held_out):
        config = parse(compose(f"+regime/bed={regime.bed}", f"+regime/source={regime.source}", "seed=77"))
        check(config)
        recorded = config.model_dump(mode="json")
        assert (bed_of(recorded), source_of(recorded)) == regime
        assert config.warmstart.seed == 77 and config.rollout.engine.params["noise_seed"] is None
        assert config.evaluation.policy == "both" and min(config.evaluation.prompts, config.evaluation.train_prompts) >= 100
        digests.add(config.digest)
    assert len(digests) == 39


@pytest.mark.slow
@pytest.mark.parametrize("source", sorted(path.stem for path in CONF.glob("source/*.yaml")))
def test_a_source_of_another_study_is_refused_by_its_keys(source):
    config = parse(compose("+regime/bed=moe", f"+regime/source={source}")).model_dump(mode="json")
    if source in MAP:
        with pytest.raises(UserError, match=r"(rollout|actor).*: no source of the study of the verdict"):
            source_of(config)
    else:
        assert source_of(config) == source


def test_a_seed_is_a_whole_replicate():
    """Another seed has another warm start. A source does not: arms of one seed begin alike."""
    one, same, other = (
        parse(compose("+regime/bed=dense", f"+regime/source={source}", f"seed={seed}"))
        for source, seed in (("exact", 3), ("int8", 3), ("exact", 4))
    )
    assert one.warmstart_digest == same.warmstart_digest != other.warmstart_digest and one.digest != same.digest


@pytest.mark.slow
def test_what_is_no_bed_is_refused():
    with pytest.raises(UserError, match=r"actor\.lr=1e-05, .*: no bed of the study of the verdict"):
        bed_of(compose("+regime/bed=dense", "actor.lr=1e-5"))


def test_a_third_of_each_source_calibrates():
    """13 sources of three beds: 13 regimes calibrate and 26 are held out. The hash alone decides, so parts do not change."""
    parts = regimes()
    assert (len(parts.calibration), len(parts.held_out)) == (13, 26) and not set(parts.calibration) & set(parts.held_out)
    for source in PLANNED:
        assert [regime.source for regime in parts.calibration].count(source) == 1
        assert [regime.source for regime in parts.held_out].count(source) == EACH - 1
    assert Regime("moe", "w4a4") in parts.calibration and Regime("dense", "w4a4") in parts.held_out


def test_seeds_are_the_first_without_an_unfit_warm_start():
    fit = pd.read_csv(STARTS_FILE).groupby("seed").fit.all()
    assert list(fit[fit].index) == [*STUDIED, *SEEDS] and not set(SEEDS) & set(STUDIED)
    assert list(fit.index) == [*range(70, STUDIED[-1] + 1), *SEEDS]  # none was passed over


def test_a_bed_that_is_not_admitted_is_replaced():
    """Without the dense bed at full rate FP8 moves on to the first other bed, and no mixture leaves no noise on routers."""
    without = regimes([bed for bed in BEDS if bed != "dense"])
    named = {regime.bed for regime in (*without.calibration, *without.held_out) if regime.source == "fp8_tensor"}
    assert named == {"ppo", "moe", "dense_half"}
    dense = regimes([bed for bed in BEDS if not bed.startswith("moe")])
    assert len(dense.calibration) == 12 and len(dense.held_out) == 24
    assert "router_noise" not in {regime.source for regime in dense.calibration}


def test_a_bed_is_admitted_by_gain_gap_and_entropy(tmp_path):
    """Three beds fail by one of the three each; a bed without its third seed is not judged."""
    good = {"start": 0.2, "end": 0.6, "train": 0.7, "entropy": 0.2}
    beds = {
        "dense": good,
        "ppo": good | {"end": 0.4, "train": 0.45},
        "moe": good | {"train": 0.8},
        "long20": good | {"entropy": 0.01},
    }
    rows = [{"bed": bed, "seed": seed, **values} for bed, values in beds.items() for seed in SEEDS]
    table = admission(pd.DataFrame([*rows, {"bed": "long32", "seed": SEEDS[0], **good}]))
    assert dict(zip(table.bed, table.admitted, strict=True)) == {"dense": True, "ppo": False, "moe": False, "long20": False}
    assert table.set_index("bed").gain["dense"] == pytest.approx(0.4) and table.set_index("bed").gap["moe"] == pytest.approx(0.2)
    with pytest.raises(UserError, match=r"table\.csv: not there; python -m experiments\.regimes admit"):
        admitted(tmp_path)
    table.to_csv(tmp_path / "table.csv", index=False)
    assert admitted(tmp_path) == ["dense"]


def test_a_warm_start_counts_by_its_solve_rate_and_its_prompts(tmp_path, monkeypatch):
    """0.2 and 400 are the bounds. A seed that is asked for again keeps one row a start."""
    made = {"dense": (0.2, 400), "moe": (0.9, 864), "long20": (0.5, 399), "long32": (0.9, 864)}

    def small(config, task):
        name = next(name for name in made if bed_of(config.model_dump(mode="json")) == name)
        rate, kept = made[name]
        return WarmStart({}, torch.zeros(kept - 100, 1), torch.zeros(100, 1), rate)

    monkeypatch.setattr("experiments.regimes.warm_start", small)
    monkeypatch.setattr("experiments.regimes.STARTS_FILE", tmp_path / "verdict" / "starts.csv")
    assert starts([7]).fit.tolist() == [True, True, False]  # the fourth is not made
    table = starts([7, 8])
    assert sorted(table.seed) == 3 * [7] + 3 * [8]
    assert pd.read_csv(tmp_path / "verdict" / "starts.csv").equals(table.reset_index(drop=True))
