"""Replay gives the training step's numbers, from whatever wrote the dump, and names what is bad in it."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.diagnostics.correction import applied
from algos.diagnostics.mismatch import mismatch
from faultline.cli import main
from faultline.tools.replay.collect import alike, collect
from faultline.tools.replay.effect import padded
from faultline.tools.replay.figure import presets_figure
from faultline.tools.replay.page import corrections_table
from faultline.tools.replay.presets import FOLDER, presets
from faultline.tools.replay.sources import Dump
from faultline.tools.replay.verdict import listed
from harness.build import build_objective
from harness.compose import compose
from harness.config import parse
from harness.dumps import files
from harness.errors import UserError
from tests.faultline.tools.replay.cases import random_columns


@functools.cache
def config(preset):
    return parse(compose(f"correction={preset}"))


COLUMNS = random_columns() | {"group": np.arange(24) % 7}


@pytest.fixture(scope="module")
def every_preset(tmp_path_factory):
    """A dump of COLUMNS, and its replay by every preset."""
    folder = tmp_path_factory.mktemp("dump")
    files.write(folder / "step-7.parquet", COLUMNS)
    return Dump(folder), collect(Dump(folder), {name: preset.correction for name, preset in presets().items()})


@pytest.mark.slow
@pytest.mark.parametrize("name", presets())
def test_replay_of_a_dump_is_what_the_training_step_computes(every_preset, name):
    """Through the run's own config and objective on one side, through parquet and `presets` on the other; fp64, 1e-12."""
    dump, found = every_preset
    columns = COLUMNS
    t = {key: torch.tensor(value) for key, value in columns.items()}
    given = Batch(t["logp_rollout"], t["mask"], t["logp_old"], t["advantages"], prompt=t["group"])
    corrected = correct(given, build_objective(config(name)).correction)
    expected = applied(corrected, given.mask) | mismatch(given)
    (row,) = found.corrections[found.corrections.correction == name].to_dict("records")
    for key, value in expected.items():
        actual = row[key] if key in row else found.mismatch[key]
        assert actual == pytest.approx(float(value), rel=1e-12, abs=1e-12, nan_ok=True), key  # NaN: without any
    (batch,) = dump.batches()
    batch = padded(batch)
    again = correct(batch, presets([name])[name].correction)
    width = batch.mask.shape[1]
    assert torch.equal(again.kept, corrected.kept[:, :width]) and torch.equal(again.counted, corrected.counted[:, :width])
    torch.testing.assert_close(again.weights, corrected.weights[:, :width], rtol=1e-12, atol=1e-12)


def test_presets_of_equal_settings_share_a_row():
    """Two truncations at 2 of a token's ratio, whatever their policy; a third at 2 of the sequence's. NeMo's filter has a name of
    its own."""
    names = ["token_truncate", "verl/decoupled_seq_is", "slime/tis", "icepop", "verl/bypass_pg_is", "nemo_rl/icepop"]
    specs = {name: preset.correction for name, preset in presets(names).items()}
    assert alike(specs) == [["token_truncate", "slime/tis"], ["verl/decoupled_seq_is", "verl/bypass_pg_is"], names[3::2]]


def test_a_row_of_the_page_names_the_presets_that_share_it(every_preset):
    _, found = every_preset
    table = corrections_table(found, None).set_index("correction")
    assert len(table) == len(found.groups) < len(found.corrections)
    assert table["same settings"]["none"] == "verl/bypass_ppo_clip, verl/disabled, verl_2025/disabled"
    effects = listed(found, None, ("none", "icepop", "nemo_rl/icepop"))
    left, right = presets_figure({"dump": effects}, found.groups).axes
    rows = [label.get_text() for label in left.get_yticklabels()]
    assert rows == ["IcePop, 0.5 to 5\nnemo_rl/icepop", "no correction"]
    agreement = found.corrections.set_index("correction")["effect/agreement"]
    assert [axis.texts[1].get_text() for axis in (left, right)] == ["100%", f"{agreement['none']:.0%}"]


def test_steps_are_batches_of_their_own_however_the_rows_are_filed(tmp_path):
    """Batch-normalised weights depend on what a batch is: one file with two steps is the same as two files."""
    spec = {"mis": presets(["slime/mis"])["slime/mis"].correction}
    first, second = random_columns(seed=0), random_columns(seed=1) | {"step": np.full(24, 8)}
    for name, columns in {"apart/step-7": first, "apart/step-10": second}.items():
        files.write(tmp_path / f"{name}.parquet", columns)
    files.write(tmp_path / "one.parquet", {key: np.concatenate([first[key], second[key]]) for key in first})
    apart, one = (collect(Dump(tmp_path / name), spec) for name in ("apart", "one.parquet"))
    assert apart.batches == one.batches == 2
    np.testing.assert_allclose(apart.corrections.iloc[0, 1:].astype(float), one.corrections.iloc[0, 1:].astype(float), rtol=1e-12)
    merged = collect(Dump(tmp_path / "one.parquet"), spec)
    assert merged.corrections.loc[0, "correction/weight_mean"] != 1.0


# --- bad dumps -------------------------------------------------------------------------------------------------------


def jsonl(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_bad_rows_stop_a_replay_and_skip_bad_counts_them(tmp_path):
    sound = {"logp_rollout": [-1.0, -0.5], "logp_old": [-1.1, -0.4]}
    path = jsonl(tmp_path / "d.jsonl", [sound, "{broken", sound | {"logp_old": [0.7, -1.0]}, sound | {"mask": ["yes", 1]}, sound])
    with pytest.raises(UserError) as error:
        list(Dump(path).batches())
    message = str(error.value)
    assert "d.jsonl, line 2, column the whole line: no JSON object" in message
    assert "line 3, column logp_old: log-probability 0.7 at token 0 is above 0; is it −log p?" in message
    assert "line 4, column mask" in message and "--skip-bad" in message
    dump = Dump(path, skip_bad=True)
    assert sum(len(batch) for batch in dump.batches()) == 2 and dump.bad == 3


SOUND = {"logp_rollout": [-1.0, -0.5], "logp_old": [-1.1, -0.4]}
PRIME_RL = {"inference_logprobs": [-1.0, -0.5], "trainer_logprobs": [-1.1, -0.4]}


@pytest.mark.parametrize(
    ("sound", "bad", "message"),
    [
        (SOUND, SOUND | {"step": 2**70}, "line 2, column step: '1180591620717411303424' is no whole number"),
        (SOUND, SOUND | {"tokens": [2**63, 1]}, r"line 2, column tokens: '\[9223372036854775808, 1\]' is no list"),
        (SOUND, SOUND | {"step": 1.5}, "line 2, column step: '1.5' is no whole number"),
        (SOUND, SOUND | {"segments": [0, 0.5]}, r"line 2, column segments: '\[0, 0.5\]' is no list"),
        (SOUND, SOUND | {"segments": 1.5}, "line 2, column segments: '1.5' is no list"),
        (SOUND, SOUND | {"step": [0.5]}, r"line 2, column step: '\[0.5\]' is no whole number"),
        (SOUND, SOUND | {"step": -1}, "line 2, column step: -1 is below 0"),
        (SOUND, SOUND | {"group": -1}, "line 2, column group: -1 is below 0"),
        (SOUND, SOUND | {"tokens": [5, -1]}, "line 2, column tokens: none, or below 0, at token 1"),
        (SOUND, SOUND | {"reward": 1e308}, r"line 2, column reward: 1e\+308 is not finite, or beyond 1e\+09"),
        (SOUND, SOUND | {"advantages": [0.5, -1e308]}, r"line 2, column advantages: -1e\+308 at token 1 is beyond 1e\+09"),
        (SOUND, SOUND | {"mask": [True, None]}, "line 2, column mask: token 1 is neither true nor false"),
        (SOUND, SOUND | {"mask": [1, 2]}, r"line 2, column mask: '\[1, 2\]' is no list"),
        (PRIME_RL, PRIME_RL | {"rewards": 3}, "line 2, column rewards: '3' is no list of one reward per token"),
        (SOUND, "[" * 100_000, "line 2, column the whole line: no JSON object"),
    ],
)
def test_a_bad_line_is_named_and_can_be_skipped(tmp_path, sound, bad, message):
    path = jsonl(tmp_path / "d.jsonl", [sound, bad, sound])
    with pytest.raises(UserError, match=f"d.jsonl, {message}"):
        list(Dump(path).batches())
    dump = Dump(path, skip_bad=True)
    assert sum(len(batch) for batch in dump.batches()) == 2 and dump.bad == 1


def test_a_mask_may_be_of_zeros_and_ones_and_a_row_without_one_uses_all_its_tokens(tmp_path):
    """The masked token has no log-probability: were one row's mask dropped for the other's lack of one, it would count."""
    masked = {"step": 3, "logp_rollout": [-1.0, None], "logp_old": [-1.1, None], "mask": [1, 0]}
    path = jsonl(tmp_path / "d" / "a.jsonl", [masked, SOUND | {"step": 3}])
    jsonl(tmp_path / "d" / "b.jsonl", [SOUND | {"step": 3}])
    (batch,) = Dump(path.parent).batches()
    np.testing.assert_array_equal(batch.mask, [True, False, True, True, True, True])


def test_what_a_dump_lacks_is_told_and_the_rest_replayed(tmp_path):
    """Segments in the first step only: the families at their levels go; a correction that needs what is absent is named."""
    path = jsonl(tmp_path / "d.jsonl", [SOUND | {"step": 1, "segments": [0, 1]}, SOUND | {"step": 2}])
    chosen = {name: presets([name])[name].correction for name in ("icepop", "off_policy_sequence_mask", "gepo")}
    found = collect(Dump(path), chosen)
    families = set(found.thresholds.table().family)
    assert "truncate-sequence" in families and not any("segment" in family for family in families)
    assert found.skipped == {"off_policy_sequence_mask": "needs advantages", "gepo": "needs group"}
    with pytest.raises(UserError, match=r"d.jsonl: off_policy_sequence_mask needs advantages; dump that column"):
        collect(Dump(path), {"off_policy_sequence_mask": chosen["off_policy_sequence_mask"]})


def test_a_dump_with_no_token_on_the_mask_is_refused(tmp_path):
    path = jsonl(tmp_path / "d.jsonl", [SOUND | {"mask": [0, 0]}])
    with pytest.raises(UserError, match=r"d.jsonl: mask is false for every token"):
        collect(Dump(path), {"icepop": presets(["icepop"])["icepop"].correction})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weight: {level: tokn}", r"own.yaml: correction.weight.level='tokn'"),
        ("correction: {weight: {level: token, uper: 2}}", r"correction.weight.uper: unknown key; remove it"),
        ("reject: {far: {level: token, upper: 0.5}}", r"correction.reject.far.upper=0.5 is below 1"),
        ("weight: [", r"own.yaml: neither YAML nor JSON \(line 1: "),
        ("weight: {level: token, upper: '2'}", r"correction.weight.upper='2': must be a number"),
        ("weight: {level: token, upper: true}", r"correction.weight.upper=True: must be a number"),
        ("- 1", r"own.yaml: holds no keys"),
    ],
)
def test_a_correction_of_ones_own_is_a_file_like_those_of_the_presets(tmp_path, text, message):
    own = tmp_path / "own.yaml"
    own.write_text((FOLDER / "icepop.yaml").read_text())
    found = presets([str(own), "icepop"])
    assert found[str(own)] == found["icepop"]
    own.write_text(text)
    with pytest.raises(UserError, match=message):
        presets([str(own)])
    with pytest.raises(UserError, match=r"absent.yaml: cannot be read"):
        presets([str(tmp_path / "absent.yaml")])


def test_nothing_sound_is_an_error_even_when_skipping(tmp_path):
    path = jsonl(tmp_path / "d.jsonl", ["no", "nothing"])
    with pytest.raises(UserError, match="no sound row among 2"):
        list(Dump(path, skip_bad=True).batches())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"logp_rollout": [-1.0]}], "no column logp_old"),
        ([{"input": "2+2", "output": "4", "score": 1.0, "gts": "4", "step": 3}], "rollout_data_dir, which holds texts"),
    ],
)
def test_a_dump_without_log_probabilities_is_refused(tmp_path, rows, message):
    with pytest.raises(UserError, match=message):
        list(Dump(jsonl(tmp_path / "d.jsonl", rows)).batches())


def test_paths_that_hold_no_dump_are_refused(tmp_path):
    with pytest.raises(UserError, match="none: no such file or folder"):
        Dump(tmp_path / "none")
    foreign = jsonl(tmp_path / "foreign.jsonl", [{"rollout_log_probs": [-1.0], "old_log_probs": [-1.1]}])
    with pytest.raises(UserError, match=r"no column logp_rollout and logp_old \(its keys are rollout_log_probs, old_log_probs\)"):
        list(Dump(foreign).batches())
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="no dump there"):
        Dump(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"this run wrote no dumps; set dump.every"):
        Dump(tmp_path / "run")
    (tmp_path / "second" / "dumps").mkdir(parents=True)
    (tmp_path / "second" / "config.json").write_text("{}")
    (tmp_path / "run" / "checkpoint.pt").write_text("of the actor, no dump")
    with pytest.raises(UserError, match=r": a sweep; give one of its runs, as .*/second$"):
        Dump(tmp_path)
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(UserError, match=r"cannot tell what it is by .csv"):
        Dump(tmp_path / "a.csv")
    with pytest.raises(UserError, match="unknown; known are"):
        presets(["nonesuch"])


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_prints_and_writes(tmp_path):
    files.write(tmp_path / "d" / "step-7.parquet", random_columns())
    files.write(tmp_path / "null" / "step-7.parquet", random_columns(scale=0.0))
    command = [sys.executable, "-m", "faultline", "replay", str(tmp_path / "d"), "--null", str(tmp_path / "null")]
    command += ["--corrections", "icepop,verl/decoupled_token_is"]
    done = subprocess.run([*command, "--all"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "icepop" in done.stdout and "K3" in done.stdout and "false rejections" in done.stdout
    page = (tmp_path / "d" / "replay" / "replay.html").read_text()
    assert page.count("<svg") == 4 and "verl/decoupled_token_is" in page and "http-equiv" not in page
    lines = (tmp_path / "d" / "replay" / "thresholds.csv").read_text().splitlines()
    assert len(lines) == 1 + 1000 * len({line.split(",")[0] for line in lines[1:]})
    table = pd.read_csv(tmp_path / "d" / "replay" / "corrections.csv").set_index("correction")
    assert (table.false_rejections == 0).all()  # equal policies
    bad = subprocess.run([*command[:-1], "nonesuch"], capture_output=True, text=True)
    assert bad.returncode == 2 and bad.stderr.startswith("correction nonesuch: unknown") and bad.stderr.count("\n") == 1


@pytest.mark.usefixtures("no_page")
def test_the_line_of_the_readme_is_a_dump_of_its_own(tmp_path, capsys):
    """One response of one prompt has no other response to be compared with."""
    (line,) = re.findall(
        r"lines of JSON in `batch.jsonl`: `(\{.*?\})`", (Path(__file__).parents[4] / "README.md").read_text(encoding="utf-8")
    )
    (tmp_path / "mine.jsonl").write_text(f"{line}\n")
    main(["replay", str(tmp_path / "mine.jsonl"), "--out", str(tmp_path / "out")])
    assert capsys.readouterr().out.startswith("LOG-PROBABILITIES  too few prompts for a standard error")
