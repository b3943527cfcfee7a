"""`make gpu` on a CPU and a tiny model: every check runs through, and says what it found."""

import gc
import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.figures.dumped import Dumped, load
from experiments.gpu_check import formats
from experiments.gpu_check.__main__ import CHECKS, main
from experiments.gpu_check.drawing import by_probability, ess_by_length, k3
from experiments.gpu_check.formats import check_casts, check_products
from experiments.gpu_check.model import ARMS, Policy, Scored, Size
from experiments.gpu_check.section import Table, section
from harness.errors import UserError
from harness.rollouts import casts
from tests.harness.tasks.test_text import model  # noqa: F401  a Qwen3 with a tokenizer of words, made there

SMALL = ["rollout.prompts=2", "rollout.group_size=2", "evaluation.prompts=2", "task.held_out=8", "task.max_prompt=32"]


@pytest.fixture(autouse=True)
def small_caches(monkeypatch):
    """A dozen engines in one process would hold as many GiB."""
    monkeypatch.setattr("experiments.gpu_check.model.KV_CACHE_GIB", 0.1)


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):  # noqa: F811
    """Exit code, section and folder of the checks named, with eight responses of four tokens."""

    def made(*checks: str, steps: int = 2, arms: tuple[str, ...] = tuple(ARMS)):
        out = tmp_path_factory.mktemp("gpu_check")
        sizes = ["--model", model, "--responses", "8", "--answer", "4", "--steps", str(steps), "--out", str(out)]
        code = main([*SMALL, "--checks", *checks, "--arms", *arms, *sizes])
        return code, (out / "section.md").read_text(), out

    return made


def cells(text: str, title: str) -> list[dict[str, str]]:
    """The rows of a table of the section."""
    lines = [line for line in text.split(f"### {title}\n")[1].split("###")[0].splitlines() if line.startswith("|")]
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(split[0], row, strict=True)) for row in split[2:]]


@pytest.mark.slow
def test_casts_and_products_agree_here_too(run):
    code, text, _ = run("casts", "products")
    assert code == 0 and re.search(r"^## cpu, \S+, \d{4}-\d\d-\d\d$", text, re.M)
    assert {row["off the CPU"] for row in cells(text, "Casts")} == {"0"}
    products = cells(text, "FP8 products")
    assert [row["tokens x inputs x outputs"] for row in products] == ["16 x 576 x 960"] * 2  # of a CPU
    for row in products:  # BF16 has 8 bits: relative errors uniform up to 2⁻⁸ at a power of two have a root mean square of 2⁻⁸/√3
        assert float(row["emulation's error"]) < 2**-8 / 3**0.5


def test_a_cast_that_is_off_is_counted(monkeypatch):
    monkeypatch.setitem(formats.CASTS, "e4m3", (lambda x: casts.e4m3(x * 1.001), formats.CASTS["e4m3"][1]))
    assert check_casts().rows[0]["off the device's own"] > 1000


def test_a_product_that_is_off_shows(monkeypatch):
    exact = torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda *args, **more: exact(*args, **more) * 1.01)
    row = check_products(((16, 64, 32),)).rows[0]
    assert float(row["differing"]) > 0.5 and float(row["error"]) == pytest.approx(0.01, rel=0.2)


@pytest.mark.slow
def test_anatomy_of_a_tiny_model(run):
    """In five precisions, which are compared here. The local engine samples in the others too, see the next test."""
    code, text, out = run("anatomy", arms=("fp32", "bf16", "fp8_channel", "fp8_block", "int8"))
    assert code == 0
    rows = {(row["engine"], row["arm"]): row for row in cells(text, "Mismatch by precision")}
    assert rows["local", "fp32"]["K3"] == "0" and rows["local", "fp32"]["sequence ESS"] == "1.000"
    assert 0 < float(rows["actor", "training forward, fp32"]["K3"]) < 1e-9
    assert float(rows["local", "bf16"]["K3"]) < float(rows["local", "fp8_channel"]["K3"])
    assert {row["arm"] for row in cells(text, "Mismatch by position")} >= {"fp32", "bf16", "int8"}
    assert float(rows["local", "bf16"]["K3"]) < float(rows["local", "fp8_block"]["K3"])
    assert (out / "dumps" / "local-fp8_channel.parquet").exists()


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_the_local_engine_samples_in_every_precision(arm, model):  # noqa: F811
    policy = Policy(Size(model, responses=4, answer=4, overrides=tuple(SMALL)))
    scored = policy.scored("local", arm)
    assert scored.mask.any() and (scored.log_ratio.abs().max() > 0) == (arm != "fp32")


def test_what_the_picture_shows_by_hand():
    """Two responses of two tokens and of one; ρ = 2, 1 and 1/2."""
    log2 = np.log(2.0)
    mu = np.log([0.5, 0.05, 1e-9])
    tokens = Dumped(mu, np.array([log2, 0.0, -log2]), np.array([1, 2, 1]), np.array([log2, -log2]))
    assert k3(tokens.log_ratio) == pytest.approx(((2 - 1 - log2) + 0 + (0.5 - 1 + log2)) / 3)
    probability, off = by_probability(tokens)
    assert probability[0] == 0.1 and off[0] == pytest.approx(log2) and off[1] == 0 and off[-1] == pytest.approx(log2)
    assert np.isnan(off[2:-1]).all()
    lengths, ess = ess_by_length(tokens)  # weights 2 and 1/2 at either length: (5/2)² / (2 · 17/4)
    assert lengths.tolist() == [1, 2] and ess == pytest.approx([6.25 / 8.5] * 2)


def test_the_dump_that_ships_is_the_one_that_was_measured():
    """K3 of RESULTS.md, from the file."""
    found = {arm: k3(load([Path(f"experiments/study/smollm2/{arm}.parquet")]).log_ratio) for arm in ("local-bf16", "vllm-bf16")}
    assert found == {"local-bf16": pytest.approx(1.27e-3, rel=5e-3), "vllm-bf16": pytest.approx(1.29e-3, rel=5e-3)}


@pytest.mark.slow
def test_a_control_that_is_not_exact_fails(run, monkeypatch):
    monkeypatch.setattr(Scored, "log_ratio", property(lambda self: torch.full_like(self.logp, 1e-7)))
    code, text, _ = run("anatomy", "casts", arms=("fp32",))
    assert code == 1 and "- `anatomy` failed: the control is not exact: log ratios up to 1.0e-07 nats" in text
    assert cells(text, "Casts")  # the other check ran
    assert cells(text, "Mismatch by precision")[0]["arm"] == "fp32"  # and what this one measured is not lost


def large_tensors() -> list[torch.Tensor]:
    """Those of 2^24 bytes and more that are referenced from anywhere in this process."""
    gc.unfreeze()  # vLLM freezes what it makes, which is no garbage then
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor and thing.layout is torch.strided]
    return [tensor for tensor in tensors if tensor.nbytes >= 2**24]


@pytest.mark.slow
def test_training_of_a_tiny_model(run):
    before = large_tensors()
    code, text, _ = run("training")
    assert code == 0
    for row in cells(text, "RL steps"):
        assert float(row["step"]) >= float(row["train"]) > 0 and float(row["rollout tokens/s"]) > 0
    kept = [tensor for tensor in large_tensors() if all(tensor is not other for other in before)]
    assert not kept, "each run gave its KV cache of 2^30 bytes back"


def test_what_cannot_be_run_is_refused_by_name(tmp_path, capsys):
    with pytest.raises(UserError, match=r"--model nowhere: there is no such folder"):
        main(["--model", "nowhere", "--out", str(tmp_path)])
    for option, known in (("--checks", CHECKS), ("--arms", ARMS)):
        with pytest.raises(SystemExit):
            main([option, "none"])
        assert f"choose from {', '.join(map(repr, known))}" in capsys.readouterr().err


def test_the_section_names_machine_versions_and_failures():
    text = section([Table("T", "A note.", [{"a": "1.50"}])], {"anatomy": "not exact"}, "make gpu")
    assert "`make gpu` at commit" in text and f"torch {version('torch')}" in text
    assert "- `anatomy` failed: not exact" in text and "| 1.50" in text


def test_the_full_size_is_a_run_that_the_config_accepts():
    assert Size().config().rollout.prompts * Size().config().rollout.group_size == 64
