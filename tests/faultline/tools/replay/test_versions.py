"""Dumps whose responses were sampled by several versions of the weights: each token counts with its own."""

import json

import numpy as np
import pandas as pd
import pytest

import faultline
from faultline.tools.replay.command import replay_command
from faultline.tools.replay.page import BY_AGE
from harness.dumps import files
from harness.errors import UserError

HALF, ONE = np.exp(0.5) - 1 - 0.5, np.exp(-1) - 1 + 1
"""K3 of a token with l = 0.5 and of one with l = −1; that of l = 0 is 0."""


def columns(version):
    """Responses of three and two tokens with l = (0, 0, 0.5) and (0, −1)."""
    return {
        "step": np.array([4, 4]),
        "mask": np.array([[True, True, True], [True, True, False]]),
        "logp_rollout": np.array([[-1.0, -1.0, -1.0], [-1.0, -1.0, 9.0]]),
        "logp_old": np.array([[-1.0, -1.0, -0.5], [-1.0, -2.0, 9.0]]),
        "version": np.array(version),
    }


def test_mismatch_by_the_age_of_the_weights(tmp_path):
    """The newest weights (7) have l = 0.5 and 0, with ESS (√e + 1)²/(2·(e + 1)); one step behind: −1; two: 0 and 0."""
    files.write(tmp_path / "step-4.parquet", columns([[5, 5, 7], [7, 6, 0]]))
    versions = faultline.replay(tmp_path / "step-4.parquet", ["none"]).versions
    assert versions.behind.tolist() == [0, 1, 2] and versions.tokens.tolist() == [2, 1, 2]
    assert versions.k1.tolist() == pytest.approx([-0.25, 1, 0])
    assert versions.k3.tolist() == pytest.approx([HALF / 2, ONE, 0])
    assert versions.ess_token.tolist() == pytest.approx([(1 + np.exp(0.5)) ** 2 / (2 * (1 + np.e)), 1, 1])


def test_the_newest_weights_are_those_of_each_batch(tmp_path):
    """Step 4 has versions 5 to 7 and step 5 the versions 7 and 8; both count from their own newest."""
    files.write(tmp_path / "step-4.parquet", columns([[5, 5, 7], [7, 6, 0]]))
    files.write(tmp_path / "step-5.parquet", columns([[8, 8, 8], [7, 7, 0]]) | {"step": np.array([5, 5])})
    versions = faultline.replay(tmp_path, ["none"]).versions.set_index("behind")
    assert versions.tokens.to_dict() == {0: 5, 1: 3, 2: 2}
    assert versions.k3[1] == pytest.approx(2 * ONE / 3)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_ages_are_printed_and_written_when_there_are_several(tmp_path, capsys):
    path = tmp_path / "step-4.parquet"
    files.write(path, columns([[5, 5, 7], [7, 6, 0]]))
    replay_command(path, corrections=["none"], out=tmp_path / "out", tables=True)
    assert BY_AGE in capsys.readouterr().out and BY_AGE in (tmp_path / "out/replay.html").read_text()
    assert pd.read_csv(tmp_path / "out/versions.csv").behind.tolist() == [0, 1, 2]
    files.write(path, columns([[5, 5, 5], [5, 5, 0]]))
    replay_command(path, corrections=["none"], out=tmp_path / "out", tables=True)
    assert BY_AGE not in capsys.readouterr().out and BY_AGE not in (tmp_path / "out/replay.html").read_text()


def test_without_versions_nothing_is_told(tmp_path):
    without = columns([[0] * 3] * 2)
    del without["version"]
    files.write(tmp_path / "step-3.parquet", columns([[5, 5, 7], [7, 6, 0]]))
    files.write(tmp_path / "step-4.parquet", without)
    assert faultline.replay(tmp_path, ["none"]).versions.empty


def test_spans_of_versions_as_vllm_tells_them(tmp_path):
    """CompletionOutput.weight_versions: contiguous spans over the tokens, each with the label of its weights."""
    path = tmp_path / "step-4.jsonl"
    tokens = {"logp_rollout": [-1.0, -1.0, -1.0], "logp_old": [-1.0, -1.0, -0.5]}
    spans = [{"version": "5", "start": 0, "end": 2}, {"version": "7", "start": 2, "end": 3}]
    path.write_text(json.dumps(tokens | {"weight_versions": spans}) + "\n")
    versions = faultline.replay(path, ["none"]).versions
    assert versions.behind.tolist() == [0, 2] and versions.tokens.tolist() == [1, 2]
    assert versions.k3.tolist() == pytest.approx([HALF, 0])


@pytest.mark.parametrize(
    ("spans", "what"),
    [
        ([{"version": "default", "start": 0, "end": 2}], "'default'.* at token 0 is no span"),
        ([{"version": "5", "start": 0, "end": 1}, {"version": "7", "start": 2, "end": 3}], "at token 1 is no span"),
        (7, "'None' at token 0 is no span"),
        ([{"version": "5", "start": 0, "end": 3}], "column version: 3 values, logp_rollout has 2"),
    ],
)
def test_spans_that_are_none_are_named(tmp_path, spans, what):
    path = tmp_path / "step-4.jsonl"
    path.write_text(json.dumps({"logp_rollout": [-1.0, -1.0], "logp_old": [-1.0, -1.0], "weight_versions": spans}) + "\n")
    with pytest.raises(UserError, match=what):
        faultline.replay(path, ["none"])
