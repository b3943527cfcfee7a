"""Dumps of one model by two engines: equal arithmetic gives equal numbers, and a wrong model or a coarser format shows."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM

from faultline.cli import main
from faultline.tools.replay.sources import Dump
from harness.dumps import files
from tests.harness.tasks import tools_model

PROMPTS = "1 + 2\n\n12 + 3 + 4\n9 - 4\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with an untrained model, and a text file of three prompts beside it."""
    folder = tmp_path_factory.mktemp("scored")
    (folder / "prompts.txt").write_text(PROMPTS)
    return tools_model.make(folder / "model"), folder


def scored(model, source, *more):
    path, folder = model
    main(["score", path, str(folder / source), "--out", str(folder / "made" / "d.parquet"), "--tokens", "12", *more])
    return pq.read_table(folder / "made" / "d.parquet").to_pylist()


def test_engines_of_equal_arithmetic_agree(model):
    """The local engine in FP32 against transformers in FP32: to 1e-4 nats, with logits scaled by 20."""
    rows = scored(model, "prompts.txt", "--sampler", "local:fp32", "--samples", "5")
    assert [row["group"] for row in rows] == [0] * 5 + [1] * 5 + [2] * 5 and {row["step"] for row in rows} == {0}
    assert len({len(row["prompt"]) for row in rows}) == 2, "prompts have their own length"
    assert len({tuple(row["tokens"]) for row in rows}) > 10
    for row in rows:
        np.testing.assert_allclose(row["logp_old"], row["logp_rollout"], atol=1e-4)
        assert all(row["mask"]) and min(row["logp_old"]) < 0


def test_log_probabilities_are_those_of_a_plain_forward_pass(model):
    """Each token's by a forward pass of its own history."""
    rows = scored(model, "prompts.txt", "--sampler", "local:fp32", "--samples", "1")
    net = AutoModelForCausalLM.from_pretrained(model[0])
    for row in rows:
        for t, token in enumerate(row["tokens"]):
            with torch.no_grad():
                logits = net(torch.tensor([row["prompt"] + row["tokens"][:t]])).logits[0, -1].double()
            assert row["logp_old"][t] == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-4)
            repeated = float(logits.softmax(-1)[sorted(set(row["tokens"][:t]))].sum())
            assert row["repeat_prob"][t] == pytest.approx(repeated, abs=1e-5)
            assert row["entropy"][t] == pytest.approx(float(torch.distributions.Categorical(logits=logits).entropy()), abs=1e-4)


def test_a_dump_is_scored_again_with_its_own_tokens(model):
    """Responses, masks and log μ stay; BF16 gives other log π_old. The tokens of one response are masked."""
    first = scored(model, "prompts.txt", "--sampler", "local:fp32", "--samples", "2")
    path = model[1] / "first.parquet"
    (batch,) = files.read(model[1] / "made" / "d.parquet")
    rows = batch.to_pylist()
    rows[1]["mask"][0] = False
    pq.write_table(batch.from_pylist(rows, batch.schema), path)
    second = scored(model, "first.parquet", "--scorer", "local:bf16")
    for before, after in zip(rows, second, strict=True):
        assert all(before[name] == after[name] for name in ("tokens", "prompt", "mask", "group", "logp_rollout"))
    differences = np.abs(np.concatenate([np.subtract(b["logp_old"], a["logp_old"]) for b, a in zip(first, second, strict=True)]))
    assert 1e-3 < differences.max() < 10 and "entropy" in first[0] and "entropy" not in second[0]  # only transformers gives it
    assert sum(len(one.mask) for one in Dump(path).batches()) == sum(len(row["tokens"]) for row in rows)


@pytest.mark.parametrize(("words", "message"), [
    (["prompts.txt", "--sampler", "hf:fp32"], "--sampler hf:fp32: transformers keeps no log-probabilities of its sampling"),
    (["prompts.txt", "--sampler", "local:fp32", "--scorer", "hf:int8"], "--scorer hf:int8: transformers computes in fp32, "),
    (["prompts.txt", "--sampler", "local"], "--sampler local: write ENGINE:FORMAT, as vllm:bf16; engines are hf, local, vllm, "),
    (["prompts.txt", "--scorer", "sglang:bf16"], "--scorer sglang:bf16: write ENGINE:FORMAT"),
    (["nothing.txt", "--sampler", "local:fp32"], "nothing.txt: cannot be read"),
    (["empty.txt", "--sampler", "local:fp32"], "empty.txt: holds no prompt; write one a line"),
    (["poor.parquet"], "poor.parquet: no column prompt and tokens in every row; score a text file of prompts"),
])  # fmt: skip
def test_what_cannot_be_scored_is_refused_in_a_line(model, words, message, capsys):
    (model[1] / "empty.txt").write_text("\n")
    one = np.full((1, 2), -1.0)
    files.write(model[1] / "poor.parquet", {"mask": np.ones((1, 2), bool), "logp_rollout": one, "logp_old": one})
    with pytest.raises(SystemExit) as left:
        scored(model, *words)
    assert left.value.code == 2 and message in capsys.readouterr().err
