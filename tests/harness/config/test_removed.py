"""A key that is gone is refused by name with the reason, and an old run that did not use it is read as ever."""

import copy
import json
from pathlib import Path

import pytest

from harness.compose import compose
from harness.config import parse, parse_recorded
from harness.errors import UserError

RECORDED = Path(__file__).parent / "recorded" / "81801bbadfa6.json"
VLLM = ("rollout/engine=vllm", "rollout/precision=bf16")
REASON = "removed in 0.2.0, as no study put noise on the weights of vLLM; use rollout/engine=local for a synthetic mismatch"
DIGEST = "f0b812cac71b"
"""Digest of the run of VLLM at the last commit that had the keys."""


def with_parameters(**parameters) -> dict:
    """The config of a run of vLLM, as a version with more parameters recorded it."""
    values = json.loads(json.dumps(compose(*VLLM)))
    values["rollout"]["engine"] |= parameters
    return values


def test_an_old_config_that_uses_a_removed_key_is_refused_by_name():
    with pytest.raises(UserError) as refused:
        parse_recorded(with_parameters(noise=0.2, noise_persistence=1.0, noise_seed=0))
    assert str(refused.value).splitlines() == [
        f"rollout.engine.noise=0.2: {REASON}",
        f"rollout.engine.noise_persistence=1.0: {REASON}",
    ]


def test_an_old_config_that_has_removed_keys_at_their_defaults_is_read_and_keeps_its_digest():
    old = with_parameters(noise=0.0, noise_persistence=0.0, noise_seed=0)
    before = copy.deepcopy(old)
    assert parse_recorded(old) == parse(compose(*VLLM))
    assert parse_recorded(old).digest == DIGEST
    assert old == before


@pytest.mark.parametrize("value", ["0.0", "0.2"])
def test_a_new_config_is_refused_whatever_the_value(value):
    with pytest.raises(UserError, match=f"^rollout.engine.noise={value}: {REASON}$"):
        parse(compose(*VLLM, f"+rollout.engine.noise={value}"))
    with pytest.raises(UserError, match=f"^rollout.engine.noise: {REASON}$"):  # Hydra knows no such key
        compose(*VLLM, f"rollout.engine.noise={value}")


@pytest.mark.parametrize(
    ("key", "default", "other", "reason"),
    [
        ("baseline", "all", "kept", "no study compared it"),
        ("kl.reference", "start", "rollout", "no study pulled towards the policy that sampled"),
        ("rollout.overlap", False, True, "it changed the wall clock alone"),
    ],
)
def test_a_key_that_every_digest_held_is_refused_and_counts_as_ever(key, default, other, reason):
    """The digest of the recorded run is that of the version that had the key."""
    old = json.loads(RECORDED.read_text())
    section, _, own = key.rpartition(".")
    here = old[section] if section else old
    assert here[own] == default
    assert parse_recorded(old).digest == RECORDED.stem
    del here[own]
    assert parse_recorded(old).digest == RECORDED.stem
    here[own] = other
    with pytest.raises(UserError, match=f"^{key}={other}: removed in 0.2.0, as {reason}"):
        parse_recorded(old)
    with pytest.raises(UserError, match=f"^{key}: removed in 0.2.0, as {reason}"):
        compose(f"{key}={other}")


def test_a_key_that_is_gone_from_one_plug_in_stays_with_another():
    assert parse_recorded(compose("rollout.engine.noise=0.2")).rollout.engine.params["noise"] == 0.2


def test_a_removed_key_of_a_precision_is_found_in_each_of_them():
    """rollout.precision, actor.precision and the precisions of evaluation.probe had `last_layers` for a time."""
    values = json.loads(json.dumps(compose("+experiment=regime")))
    digest = parse_recorded(values).digest
    for place in (values["rollout"]["precision"], values["evaluation"]["probe"]["nvfp4"]):
        place |= {"first_layers": 0, "last_layers": 0, "ignore": []}
    assert parse_recorded(values).digest == digest
    values["evaluation"]["probe"]["nvfp4"]["last_layers"] = 1
    with pytest.raises(UserError, match=r"^evaluation\.probe\.nvfp4\.last_layers=1: removed in 0\.2\.0, as the map of sources"):
        parse_recorded(values)
