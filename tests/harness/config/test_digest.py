"""Run folders keep their names through new keys and new names of keys, and files of old runs are read."""

import csv
import json
from pathlib import Path
from typing import Literal

import pytest
from pydantic import create_model

from harness.compose import compose
from harness.config import ActorConfig, Config, PrecisionConfig, RolloutConfig, parse, parse_recorded, recorded
from harness.config import digest as module
from harness.config.names import RENAMED, first_names, todays_names, write
from harness.errors import UserError

RECORDED = Path(__file__).parent / "recorded"
"""config.json of runs of a version with other names of keys, each named by the digest that it gave."""
DEMO = json.loads((RECORDED / "81801bbadfa6.json").read_text())
TODAY = ("rollout/precision=fp8_tensor", "run.sweep=demo", "checkpoint.every=50", "checkpoint.keep=6", "dump.every=70")
"""Overrides that compose the same run today."""
CORRECTIONS = {
    "none": "none",
    "token-truncate": "token_truncate",
    "sequence-truncate": "sequence_truncate",
    "sequence-mask": "sequence_mask",
    "reject-geo_rs": "verl/decoupled_geo_rs",
}
"""How a table of runs writes a correction -> the option."""


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.json")), ids=lambda path: path.stem)
def test_a_config_of_an_older_version_keeps_its_digest(path):
    assert parse_recorded(json.loads(path.read_text())).digest == path.stem


def test_an_old_file_is_the_config_that_is_composed_today():
    assert parse_recorded(DEMO) == parse(compose(*TODAY))
    assert parse_recorded(DEMO).warmstart_digest == "ee2b3644bc3c"  # of the version that recorded it


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["screening", "fresh"])
def test_the_runs_of_the_study_are_those_that_its_commands_give(folder):
    """The ids in the published tables, made by an older version with other names of keys."""
    option = {"fp32": "control", "bf16": "bf16", "fp8_tensor": "fp8"}
    with open(f"experiments/study/{folder}/runs.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["loss"] in ("ppo", "pg")]
    assert len(rows) > 20
    for row in rows:
        arm = (f"+experiment=screening/{option[row['precision']]}", f"loss={row['loss']}", f"seed={row['seed']}")
        made = parse(compose(*arm, f"correction={CORRECTIONS[row['correction']]}", "actor.lr=5e-4"))
        assert made.digest == row["run"], row


def test_recorded_fills_in_what_runs_did_before_a_key_was_there():
    old = json.loads(json.dumps(DEMO))
    del old["kl"], old["diagnostics"], old["actor"]["epochs"], old["rollout"]["engine"]["noise"]
    values = recorded(old)
    assert values["kl"] == {"name": None, "coef": 0.0, "place": "loss", "target": None, "horizon": None}
    persistence = {"every": None, "responses": 16}
    assert values["diagnostics"] == {"every": None, "persistence": persistence, "changed_weights": False}
    assert values["actor"]["epochs"] == 1 and values["rollout"]["engine"]["noise"] == 0.0
    assert values == recorded(DEMO) == parse(compose(*TODAY)).model_dump(mode="json")
    assert "epochs" not in old["actor"]  # the argument stays as it was


def test_a_damaged_file_is_refused_by_key():
    with pytest.raises(UserError, match=r"^seed='x': must be a whole number$"):
        recorded(DEMO | {"seed": "x"})
    with pytest.raises(UserError, match=r"^actor: missing; give it, as actor=VALUE$"):
        recorded({key: value for key, value in DEMO.items() if key != "actor"})
    with pytest.raises(UserError, match=r"^actor=3: a section"):
        recorded(DEMO | {"actor": 3})


def test_every_rename_leads_to_a_key_of_today_and_back():
    today = compose("model=small")
    assert first_names(todays_names(DEMO)) == DEMO and todays_names(DEMO) != DEMO
    for old in RENAMED:
        *path, name = write(old).split(".")
        section = today
        for key in path:
            section = section[key]
        assert name in section, old


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("actor.minibatches=4", "actor.minibatches: renamed; write actor.num_minibatches"),
        ("+actor.minibatches=4", "actor.minibatches: renamed; write actor.num_minibatches"),
        ("actor.clip_norm=1", "actor.clip_norm: renamed; write actor.max_grad_norm"),
        ("rollout.samples=4", "rollout.samples: renamed; write rollout.group_size"),
        ("model.kv_heads=1", "model.kv_heads: renamed; write model.num_key_value_heads"),
        ("+collapse.detectors.drawdown.m=3",
         "collapse.detectors.drawdown.m: renamed; write collapse.detectors.drawdown.consecutive"),
    ],
)  # fmt: skip
def test_a_renamed_key_is_refused_with_its_name_of_today(override, message):
    with pytest.raises(UserError) as refused:
        parse(compose(override))
    assert str(refused.value) == message


def with_a_new_key(section: type, **keys) -> type[Config]:
    """Config as a later version may have it: a section with one more key."""
    later = create_model(section.__name__, __base__=section, **keys)
    field = {ActorConfig: "actor", RolloutConfig: "rollout", Config: None}[section]
    return later if field is None else create_model("Config", __base__=Config, **{field: (later, ...)})


@pytest.mark.parametrize(
    ("section", "place", "key"),
    [(Config, (), "curriculum"), (ActorConfig, ("actor",), "warmup"), (RolloutConfig, ("rollout",), "min_p")],
)
def test_a_new_key_changes_no_digest_until_it_has_another_value(section, place, key):
    later = with_a_new_key(section, **{key: (float, 0.0)})
    old, values = parse(compose()), compose()
    assert later.model_validate(values).digest == old.digest
    assert later.model_validate(values).warmstart_digest == old.warmstart_digest
    here = values
    for name in place:
        here = here[name]
    here[key] = 0.0  # as experiments/conf says it then
    assert later.model_validate(values).digest == old.digest
    here[key] = 0.5
    assert later.model_validate(values).digest != old.digest


def test_a_new_key_deep_in_the_config():
    """The key is one of a precision, which stands under rollout and under evaluation.probe.<name>."""
    precision = create_model("PrecisionConfig", __base__=PrecisionConfig, rounding=(Literal["nearest", "stochastic"], "nearest"))
    rollout = create_model("RolloutConfig", __base__=RolloutConfig, precision=(precision, ...))
    evaluation = type(parse(compose()).evaluation)
    evaluation = create_model("EvaluationConfig", __base__=evaluation, probe=(dict[str, precision], {}))
    later = create_model("Config", __base__=Config, rollout=(rollout, ...), evaluation=(evaluation, ...))
    values = compose("+experiment=regime")
    assert later.model_validate(values).digest == parse(values).digest
    values["evaluation"]["probe"]["bf16"]["rounding"] = "stochastic"
    assert later.model_validate(values).digest != parse(compose("+experiment=regime")).digest


@pytest.mark.parametrize(
    ("plugin", "override", "key"),
    [
        ("loss=ppo", (), "loss.temper"),
        ("rollout.engine=local", (), "rollout.engine.round"),
        ("collapse.detectors=entropy", (), "collapse.detectors.entropy.margin"),
        ("correction.reject=m2po", ("correction=m2po",), "correction.reject.m2po.params.order"),
    ],
)
def test_a_new_parameter_of_a_plugin_changes_no_digest_until_it_has_another_value(monkeypatch, plugin, override, key):
    old = parse(compose(*override)).digest
    assert parse(compose(*override, f"+{key}=0.0")).digest != old  # nobody said that it came later
    before = module.PARAMETERS.get(plugin, {})
    monkeypatch.setitem(module.PARAMETERS, plugin, before | {key.rpartition(".")[2]: 0.0})
    assert parse(compose(*override, f"+{key}=0.0")).digest == old
    assert parse(compose(*override, f"+{key}=0.5")).digest != old
    assert parse_recorded(compose(*override)).digest == old


def test_a_default_in_experiments_conf_that_changes_changes_the_digest():
    """The default of the schema is what runs did before the key was there; it stays."""
    later = with_a_new_key(ActorConfig, warmup=(float, 0.0))
    values = compose()
    values["actor"]["warmup"] = 10.0  # a new default there
    assert later.model_validate(values).digest != parse(compose()).digest
