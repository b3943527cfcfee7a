"""docs/options.md is what its command prints, and every key and option has a fate."""

from pathlib import Path

import pytest

from experiments import options


@pytest.mark.slow
def test_the_page_is_what_the_command_prints():
    assert Path("docs/options.md").read_text() == options.page(), "run python -m experiments.options > docs/options.md"


@pytest.mark.slow
def test_every_key_and_option_has_a_fate():
    listed = [option for option in options.options() if option.partition("=")[0] in options.LISTED]
    assert [name for name in (*options.rows(), *listed) if options.fate(name) == options.NONE] == []


def test_every_key_of_a_run_has_a_row_with_a_meaning():
    empty = {"correction.reject", "actor.lora"}  # NAME stands for the first one's keys; the second's have rows
    assert set(options.defaults()) - set(options.rows()) == empty
    assert [row.key for row in options.rows().values() if not row.meaning] == []


def test_plug_ins_and_citations_are_files_that_exist():
    assert [path for path in options.PLUGINS.values() if not Path(path).is_file()] == []
    assert [pattern for patterns in options.TEXTS.values() for pattern in patterns if not list(Path().glob(pattern))] == []


@pytest.mark.parametrize(
    ("text", "keys", "chosen"),
    [
        ("    faultline train actor.lr=1e-3 rollout.staleness=0", {"actor.lr"}, set()),  # 0 is the default
        ("`actor.lr=5e-4` is the default, 0.0005 in the file", set(), set()),
        ('    L="actor.num_minibatches=4"\n    $S $L seed=0', {"actor.num_minibatches"}, set()),
        ("    train loss=pg,topr", set(), {"loss=pg", "loss=topr"}),
        ("    train correction=icepop", {f"correction.weight.{key}" for key in ("level", "action", "lower", "upper")},
         {"correction=icepop"}),
        ("    train rollout/precision@actor.precision=bf16", {"actor.precision"}, {"rollout/precision=bf16"}),
        ("space:\n  correction.weight.upper: {low: 1.05, high: 11}", {"correction.weight.upper"}, set()),
        ("    train actor.nothing=3 nogroup=4", set(), set()),
    ],
)  # fmt: skip
def test_what_a_text_uses(text, keys, chosen):
    assert options.used(text) == (keys, chosen)


def test_an_experiment_counts_for_all_that_it_sets():
    found = options.used("    train +experiment=edge/w4a4_r3")
    assert {"routing.replay", "actor.lr", "task.modulus", "dump.every"} <= found.keys
    assert {"model=moe", "loss=pg", "rollout/precision=nvfp4_w4a4"} <= found.options
    assert "rollout.staleness" not in found.keys


def test_a_renamed_key_of_a_recorded_arm_counts_under_its_name_of_today():
    """An arm of the regime is named fp32 ppo actor.lr=0.0005 actor.minibatches=2 ..."""
    assert "actor.num_minibatches" in options.recorded()["`study/regime`"].keys
