"""Broken dumps get the name of their fault and no correction; sound ones are consistent, whatever their precision."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy.special import log_softmax

from algos.batch import Batch
from algos.diagnostics.pairs import LogpPairs
from algos.faults import FAULTS
from faultline.cli import main
from faultline.cli.replay import FAULT
from faultline.tools.replay import evidence, terminal
from faultline.tools.replay.advice import Advisor, Target
from faultline.tools.replay.collect import collect
from faultline.tools.replay.effect import padded
from faultline.tools.replay.evidence import Evidence, known
from faultline.tools.replay.example import SOUND, example
from faultline.tools.replay.presets import presets
from faultline.tools.replay.sources import Dump
from faultline.tools.replay.verdict import COMPARE_FIRST, MEND_FIRST, UNNAMED, detailed, judge
from harness.diagnosis import RunFacts
from harness.dumps import files
from harness.errors import UserError
from harness.precisions import PRECISIONS

ROOT = Path(__file__).parents[4]
SHIPPED = [*map(example, SOUND), *sorted((ROOT / "experiments" / "study" / "smollm2").rglob("*.parquet"))]


def scaled(logp, factor):
    """log p of a token whose logit against all others is multiplied."""
    p = np.clip(np.exp(logp), 1e-6, 1 - 1e-6)
    return -np.log1p(np.exp(-factor * np.log(p / (1 - p))))


def columns(change):
    """An edit of each row's mu, pi as arrays."""

    def edit(rows):
        for row in rows:
            mu, pi = change(np.array(row["logp_rollout"]), np.array(row["logp_old"]))
            row |= {"logp_rollout": mu.tolist(), "logp_old": pi.tolist()}
        return rows

    return edit


def with_prompt(rows):
    """Four prompt tokens, which both sides call certain, before each response."""
    for row in rows:
        for name in ("logp_rollout", "logp_old"):
            row[name] = [0.0] * 4 + row[name]
        row["mask"] = [True] * 4 + row["mask"]
    return rows


def top_p(rows):
    """The sampler's column renormalised over a nucleus of 0.9, whose tail was never drawn."""
    for row in rows:
        mu = np.array(row["logp_rollout"])
        row["mask"] = [bool(used and p > 0.05) for used, p in zip(row["mask"], np.exp(mu), strict=True)]
        row["logp_rollout"] = np.minimum(mu - math.log(0.9), 0.0).tolist()
    return rows


def filled(rows):
    for row in rows:
        row["logp_rollout"][0] = -1e9
    return rows


BROKEN = {
    "rotated": (columns(lambda mu, pi: (np.roll(mu, 1), pi)), "shift"),
    "about raw against temperature 0.6": (columns(lambda mu, pi: (scaled(mu, 0.6), pi)), None),
    "log2": (columns(lambda mu, pi: (mu / math.log(2), pi)), "log_base"),
    "both in log2": (columns(lambda mu, pi: (mu / math.log(2), pi / math.log(2))), None),
    "one row 512 times": (lambda rows: rows[:1] * 512, None),
    "every row 8 times": (lambda rows: [row for row in rows[:64] for _ in range(8)], "duplicates"),
    "prompt in the mask": (with_prompt, "mask"),
    "top-p": (top_p, "truncated_sampling"),
    "zeros": (columns(lambda mu, pi: (np.zeros_like(mu), pi)), "fill"),
    "swapped": (columns(lambda mu, pi: (pi, mu)), "swapped"),
    "first at -1e9": (filled, "fill"),
}
"""Edit of the shipped rows → the name of the fault, None where any name or `unknown` will do."""
UNSEEN = {("both in log2", "bf16")}
"""Edits that the diagnosis does not see: the mean ratio of 1.0014 is within the 0.004 that a fault must exceed."""


def written(path, rows, *others):
    names = ("group", "mask", "logp_rollout", "logp_old", *others)
    path.write_text("".join(json.dumps({name: row[name] for name in names if name in row}) + "\n" for row in rows))
    return path


def verdict_of(path, facts=None):
    advisor, seen = Advisor(Target(0.99, 0.9)), Evidence(known(path) if facts is None else facts)
    replayed = collect(Dump(path), {"icepop": presets(["icepop"])["icepop"].correction}, advisor, seen)
    return judge("it", replayed, None, advisor.propose(), advisor.target, seen.diagnosis()[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("edit", BROKEN)
def test_a_broken_dump_gets_no_correction(tmp_path, edit, name):
    change, fault = BROKEN[edit]
    path = written(tmp_path / "d.jsonl", change(pq.read_table(example(name)).to_pylist()))
    verdict = verdict_of(path)
    if (edit, name) in UNSEEN:
        assert verdict.diagnosis.consistent and verdict.diagnosis.mean_ratio == pytest.approx(1.0014, abs=1e-4)
        return
    assert verdict.diagnosis.kind in ("fault", "unknown"), verdict.diagnosis
    assert fault is None or verdict.diagnosis.fault == fault, verdict.diagnosis
    assert (verdict.by_size, verdict.proposal) == ("not asked", None)
    shown = terminal.lines(verdict)
    assert shown[0].startswith(("FAULT  ", "UNKNOWN  ")) and "VERDICT  No correction is proposed." in shown
    assert len(shown) <= 23 and max(map(len, shown)) <= 100 and not any("Try a" in line for line in shown)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_shipped_dump_is_consistent(path):
    seen = Evidence(RunFacts())
    for responses in Dump(path).batches():
        seen.add(responses)
    found, _ = seen.diagnosis()
    assert found.kind == "consistent", found


@pytest.fixture(scope="module")
def swapped(tmp_path_factory):
    """The shipped FP8 dump with its columns exchanged."""
    rows = pq.read_table(example("fp8")).to_pylist()
    return written(tmp_path_factory.mktemp("swapped") / "d.jsonl", BROKEN["swapped"][0](rows))


@pytest.mark.usefixtures("undrawn")
def test_the_command_says_it_first_and_in_its_exit_code(swapped, tmp_path):
    with pytest.raises(SystemExit) as left:
        main(["replay", str(swapped), "--corrections", "icepop", "--out", str(tmp_path)])
    assert left.value.code == FAULT == 3
    page = (tmp_path / "replay.html").read_text()
    assert page.index("FAULT  swapped") < page.index("No correction is proposed")
    assert page.index("Are the logged numbers") < page.index("What each preset leaves")
    assert "algorithm.rollout_correction.rollout_is" not in page


@pytest.mark.usefixtures("no_page")
def test_the_json_says_it(swapped, capsys):
    with pytest.raises(SystemExit) as left:
        main(["replay", str(swapped), "--corrections", "icepop", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert left.value.code == FAULT
    assert found["diagnosis"]["fault"] == "swapped" and found["proposal"] is None and found["by_size"] == "not asked"
    assert found["diagnosis"]["check"]["verl"] == "rollout_log_probs against old_log_probs in the dump"


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(
    ("words", "kind", "reason"),
    [(["--precision", "fp16"], "unknown", COMPARE_FIRST), (["--baseline", str(example("bf16"))], "fault", MEND_FIRST)],
)
def test_a_size_above_that_of_smollm2_alone_is_no_fault_to_mend(words, kind, reason, capsys):
    """The FP8 example against FP16, whose bound is 9.2e-5, or against a dump of its own model, whose bound is 3 · 1.3e-3."""
    with pytest.raises(SystemExit) as left:
        main(["replay", str(example("fp8")), "--corrections", "icepop", "--json", *words])
    found = json.loads(capsys.readouterr().out)
    assert left.value.code == FAULT and found["diagnosis"]["kind"] == kind and found["reason"] == reason


@pytest.mark.usefixtures("no_page")
def test_an_alarm_without_a_name_says_what_to_look_at(tmp_path, capsys):
    """Two columns that have little to do with each other: no known pattern."""
    rows = [
        {"group": i, "logp_rollout": [-0.5 - 0.1 * (i % 7), -1.0], "logp_old": [-1.2 - 0.2 * (i % 5), -0.1 * (i % 3)]}
        for i in range(40)
    ]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(SystemExit):
        main(["replay", str(tmp_path / "mine.jsonl"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["diagnosis"]["kind"] == "unknown" and found["reason"] == UNNAMED


def copies(folder: Path, spread: float = 0.01) -> Path:
    """A dump of 40 responses whose two columns are one. spread: difference of the first tokens of two responses."""
    rows = [{"group": i // 4, "logp_rollout": [x := -0.5 - spread * i, -1.0], "logp_old": [x, -1.0]} for i in range(40)]
    (folder / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "mine.jsonl"


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(("words", "asked"), [([], True), (["--precision", "bf16"], True), (["--precision", "fp32"], False)])
def test_a_copied_column_is_not_tested(words, asked, tmp_path, capsys):
    """As in verl's bypass mode. In fp32 an exact control has equal columns too."""
    main(["replay", str(copies(tmp_path)), *words, "--junit", str(tmp_path / "junit.xml")])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("NOT TESTED  Every ratio is exactly 1" if asked else "LOG-PROBABILITIES  consistent")
    assert any(line.startswith("IF YOU DEPLOY") for line in printed) != asked
    assert ('errors="1"' in (tmp_path / "junit.xml").read_text()) == asked


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_copied_column_has_no_power_and_passes_no_gate(tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["replay", str(copies(tmp_path)), "--json", "--gate", "k3<1"])
    found = json.loads(capsys.readouterr().out)
    assert left.value.code == 5 and found["gates"][0]["outcome"] == "undecided" and found["by_size"] == "undecided"
    assert found["diagnosis"]["copied"] and found["diagnosis"]["error"] is found["diagnosis"]["power"] is None


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_fault_of_one_column_is_named_in_copies_too(tmp_path, capsys):
    """Every response has the same two numbers, as where a mask counts what no policy sampled."""
    with pytest.raises(SystemExit) as left:
        main(["replay", str(copies(tmp_path, spread=0.0)), "--precision", "bf16", "--json"])
    found = json.loads(capsys.readouterr().out)["diagnosis"]
    assert left.value.code == FAULT and found["kind"] == "fault" and not found["copied"]


def test_a_copied_column_is_no_baseline(tmp_path):
    with pytest.raises(UserError, match=r"mine.jsonl: every ratio is exactly 1; give a dump whose logp_old the trainer"):
        known(example("bf16"), baseline=copies(tmp_path))


def run_folder(path, **rollout):
    """A run folder with the BF16 example as its dump."""
    config = {
        "rollout": {"precision": {"name": "bf16"}, "kv_cache": "compute", "engine": {"name": "local"}, "staleness": 0} | rollout,
        "actor": {"dtype": "fp32", "precision": None},
        "model": {"name": "qwen3"},
    }
    (path / "dumps").mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("rollout", "facts"), [
    ({}, RunFacts("bf16")),
    ({"precision": {"name": "fp32"}}, RunFacts("fp32")),
    ({"kv_cache": "fp8_e4m3"}, RunFacts("fp8_cache")),
    ({"precision": {"name": "nvfp4_w4a4"}}, RunFacts()),
    ({"staleness": 2}, RunFacts(behind=2)),
    ({"partial_tokens": 5}, RunFacts()),
    ({"engine": {"name": "local", "noise": 0.1}}, RunFacts(noise=True)),
    ({"engine": {"name": "local", "router_noise": 0.1}}, RunFacts(noise=True)),
])  # fmt: skip
def test_a_runs_config_explains_its_dumps(tmp_path, rollout, facts):
    run = run_folder(tmp_path / "run", **rollout)
    (run / "dumps" / "step-1.parquet").write_bytes(example("bf16").read_bytes())
    assert known(run) == known(run / "dumps") == known(run / "dumps" / "step-1.parquet") == facts
    assert verdict_of(run).diagnosis.consistent or facts.precision == "fp32"


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_precision_that_is_named_bounds_k3(tmp_path, capsys):
    """K3 of the shipped BF16 dump is 1.3e-3: at most 4 x 1.3e-3 by rounding to BF16, and at most 4e-8 by FP32."""
    (tmp_path / "d.parquet").write_bytes(example("bf16").read_bytes())
    replay = ["replay", str(tmp_path / "d.parquet"), "--corrections", "icepop", "--precision"]
    main([*replay, "bf16"])
    with pytest.raises(SystemExit) as left:
        main([*replay, "fp32"])
    assert left.value.code == FAULT and "above the bound of rounding, 4e-08" in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        main([*replay, "fp7"])
    assert (
        left.value.code == 2 and "--precision fp7: its rounding was not measured; accepted are fp32, " in capsys.readouterr().err
    )
    with pytest.raises(SystemExit) as left:
        main([*replay, "fp8"])
    said = capsys.readouterr().err
    assert left.value.code == 2 and "fp8_tensor for vLLM's quantization=fp8" in said
    assert "fp8_block for its fp8_per_block and for verl's quantization=fp8" in said
    assert {name: PRECISIONS[name].vllm for name in ("fp8_tensor", "fp8_channel", "fp8_block")} == {
        "fp8_tensor": "fp8_per_tensor", "fp8_channel": "fp8_per_channel", "fp8_block": "fp8_per_block"
    }  # fmt: skip
    run = run_folder(tmp_path / "run")
    assert known(run, "fp8_block") == RunFacts("fp8_block")


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_the_note_that_k3_was_not_compared_stands_where_no_precision_is_known(tmp_path, capsys):
    """By name, by a baseline, by the run's config, or as an example's own, the precision is known."""
    path, run = tmp_path / "d.parquet", run_folder(tmp_path / "run")
    for copy in (path, run / "dumps" / "step-1.parquet"):
        copy.write_bytes(example("bf16").read_bytes())
    words = ["--corrections", "icepop", "--out", str(tmp_path / "out")]
    main(["replay", str(path), *words])
    shown = capsys.readouterr().out.splitlines()
    assert shown[1] == f"  {evidence.UNCOMPARED}" and len(shown) <= 26
    known_by = [
        [str(path), "--precision", "bf16"], [str(path), "--baseline", str(path)], [str(run)], ["--example", "fp8"]
    ]  # fmt: skip
    for dump in known_by:
        main(["replay", *dump, *words])
        assert evidence.UNCOMPARED not in capsys.readouterr().out


@pytest.mark.usefixtures("no_page")
def test_the_note_that_a_precision_was_not_used_stands_where_all_weights_lag(tmp_path, capsys):
    """The first token of half of the responses, or of all, is of older weights. The tokens after it are not compared."""
    rows = pq.read_table(example("bf16")).to_pylist()
    for lagging, noted in ((range(256), False), (range(512), True)):
        for i, row in enumerate(rows):
            n = len(row["mask"])
            row["version"] = [4, *[5] * (n - 1)] if i in lagging else [5] * n
        path = written(tmp_path / "d.jsonl", rows, "version")
        main(["replay", str(path), "--precision", "bf16", "--corrections", "icepop"])
        assert (f"  {evidence.LAGGING}" in capsys.readouterr().out.splitlines()) == noted


def test_what_else_explains_k3_is_not_asked_for_a_precision():
    """Noise that the run adds, and weights of other steps, are compared with no precision."""
    noisy, stale = Evidence(RunFacts(noise=True)), Evidence(RunFacts(behind=2))
    stale.lags = [np.ones((1, 1))]
    assert Evidence(RunFacts()).uncompared and not noisy.uncompared and not stale.uncompared


def test_a_damaged_or_foreign_config_explains_nothing(tmp_path):
    run = run_folder(tmp_path / "run")
    for text in ("{", "[]", '{"rollout": 3}', '{"rollout": {"precision": [], "staleness": "x"}, "actor": {"dtype": []}}'):
        (run / "config.json").write_text(text)
        assert known(run) == RunFacts()
    assert known(tmp_path / "d.parquet") == RunFacts()


def test_the_precision_is_the_coarser_one_of_both_sides(tmp_path):
    run = run_folder(tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    for actor, precision in (({"dtype": "fp16"}, "bf16"), ({"dtype": "bf16", "precision": {"name": "fp8_block"}}, "fp8_block")):
        (run / "config.json").write_text(json.dumps(config | {"actor": actor}))
        assert known(run).precision == precision


def drawn(path, sampled, logged, trained):
    """512 responses of 20 tokens of 50: logits over the temperatures of sampling, of log μ and of log π."""
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 2, (512, 20, 50))
    chosen = (logits / sampled + rng.gumbel(size=logits.shape)).argmax(-1)[..., None]
    picked = lambda t: np.take_along_axis(log_softmax(logits / t, -1), chosen, -1)[..., 0]  # noqa: E731
    files.write(path, {"mask": np.ones((512, 20), bool), "logp_rollout": picked(logged), "logp_old": picked(trained)})
    return path


def test_raw_log_probabilities_against_a_temperature(tmp_path):
    """Sampled at 0.6, logged at 1, trained at 0.6; and the same with an honest log μ."""
    raw = verdict_of(drawn(tmp_path / "raw.parquet", 0.6, 1.0, 0.6))
    assert raw.diagnosis.fault == "raw_logprobs" and raw.proposal is None and raw.diagnosis.mean_ratio > 1.1
    assert verdict_of(drawn(tmp_path / "sound.parquet", 0.6, 0.6, 0.6)).diagnosis.consistent


@pytest.mark.parametrize("temperature", [0.6, 1.5])
def test_the_temperature_of_raw_log_probabilities_is_at_most_the_estimate(tmp_path, temperature):
    """A vocabulary of fifty tokens moves it by less than a tenth."""
    evidence = verdict_of(drawn(tmp_path / "raw.parquet", temperature, 1.0, temperature)).diagnosis.evidence
    (estimate,) = re.findall(r"a temperature of about (\d\.\d\d) or less was applied", evidence)
    assert temperature <= float(estimate) <= 1.1 * temperature


def test_noise_that_the_run_adds_is_no_fault(swapped, tmp_path):
    """The trainer's logits are 0.7 of the sampler's: a temperature, unless the run is known to add noise. Columns that are
    swapped are no noise."""
    path = drawn(tmp_path / "d.parquet", 0.7, 0.7, 1.0)
    assert verdict_of(path).diagnosis.fault == "temperature"
    noisy = verdict_of(path, RunFacts(noise=True)).diagnosis
    assert noisy.consistent and noisy.evidence == "this run adds noise to its sampler" and not noisy.check
    assert verdict_of(swapped, RunFacts(noise=True)).diagnosis.fault == "swapped"


def batches(groups, lengths, versions=(0, 0)):
    """Two batches of random responses."""
    rng = np.random.default_rng(0)
    for group, length, version in zip(groups, lengths, versions, strict=True):
        shape = (len(group), length)
        mu = -rng.exponential(1.0, shape)
        yield {
            "mask": np.ones(shape, bool), "logp_rollout": mu, "logp_old": mu, "group": np.array(group),
            "version": np.broadcast_to(version, shape),
        }  # fmt: skip


def read(tmp_path, made):
    for i, one in enumerate(made):
        files.write(tmp_path / f"step-{i}.parquet", one)
    return list(Dump(tmp_path).batches())


def test_prompts_of_two_batches_are_not_one_and_ages_are_of_their_batch(tmp_path):
    """Prompts 0, 0, 1 and 0, 7, 7: four prompts. Versions 3 to 5 and 9: behind by 2 − place and by 0, and one more by config."""
    made = batches([[0, 0, 1], [0, 7, 7]], [3, 2], ([3, 4, 5], [9, 9]))
    seen = Evidence(RunFacts(behind=1))
    for one in read(tmp_path, made):
        seen.add(one)
    whole = evidence._joined(seen.batches)
    assert len(set(whole.group)) == 4 and list(np.diff(whole.offsets)) == [3, 3, 3, 2, 2, 2]
    found, profile = seen.diagnosis()
    assert found.statistics["size/lag"] == pytest.approx((3 * (3 + 2 + 1) + 3 * 2 * 1) / 15)
    assert found.statistics["size/lag_spread"] == 2 and found.statistics["size/prompts"] == 4
    assert profile.version.tolist() == [[3, 4, 5]] * 3 + [[9, 9, 0]] * 3
    assert torch.equal(profile.pairs.l, LogpPairs(padded(whole)).l)


def test_a_large_dump_is_thinned_by_batches_and_prompts(tmp_path, monkeypatch):
    """40 values a batch of 8 responses of 5 tokens. At most 80: batches 0, 2 and 4 would be 120, so 0 and 4 are left, and 5 is
    passed over. At most 20, prompts 0 and 2 of four in batch 0."""
    every = read(tmp_path, batches([[0, 0, 1, 1, 2, 2, 3, 3]] * 6, [5] * 6, [0] * 6))
    for cells, responses, kept in ((80, 16, [0, 4]), (20, 4, [0])):
        monkeypatch.setattr(evidence, "CELLS", cells)
        seen = Evidence(RunFacts())
        for one in every:
            seen.add(one)
        whole = evidence._joined(seen.batches)
        assert len(whole) == responses
        np.testing.assert_array_equal(whole.logp_old[:5], every[0].logp_old[:5])
        assert len(seen.batches) == len(kept)
        np.testing.assert_array_equal(seen.batches[-1].logp_old[:5], every[kept[-1]].logp_old[:5])
    assert set(seen.batches[0].group) == {0, 2}


def test_every_fault_is_documented():
    text = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    wrong = {"a": "logged numbers", "b": "policies", "c": "nothing: a note"}
    for name in FAULTS.names():
        assert f"| `{name}` | {wrong[FAULTS[name].question]} |" in text, name


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_baseline_of_the_model_is_stricter_than_its_precision(tmp_path, capsys):
    """The BF16 example as a baseline of the FP8 one, whose K3 is 30 times as large: 3 times is what rounding may leave."""
    with pytest.raises(SystemExit) as left:
        main(["replay", "--example", "fp8", "--baseline", str(example("bf16")), "--json", "--out", str(tmp_path)])
    found = json.loads(capsys.readouterr().out)["diagnosis"]
    assert left.value.code == FAULT and found["question"] == "b" and "above the bound of rounding, 0.00379" in found["evidence"]
    assert evidence.known(example("fp8"), baseline=example("fp8")).baseline == pytest.approx(0.0391, abs=1e-3)


def test_a_baseline_with_a_fault_is_refused(tmp_path):
    broken = written(tmp_path / "d.jsonl", BROKEN["zeros"][0](pq.read_table(example("bf16")).to_pylist()))
    with pytest.raises(UserError, match=r"--baseline .*d.jsonl: FAULT fill.*give a dump of this model without a fault"):
        known(example("bf16"), baseline=broken)


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_the_json_has_the_statistics_and_the_strength(tmp_path, capsys):
    """ρ = 1/2, 1/2, 1, 2 at four tokens of one place: E[(1−ρ)+] = E[(ρ−1)+] = 1/4, and the mean is 1."""
    mu, pi = (np.log(np.array(part)) for part in ([[0.5], [0.5], [0.25], [0.25]], [[0.25], [0.25], [0.25], [0.5]]))
    files.write(tmp_path / "d.parquet", {"logp_rollout": mu, "logp_old": pi, "mask": np.ones((4, 1), bool)})
    main(["replay", str(tmp_path / "d.parquet"), "--json", "--out", str(tmp_path / "out")])
    told = json.loads(capsys.readouterr().out)["diagnosis"]
    assert told["strength"] == 0 and told["statistics"]["identity/mean"] == pytest.approx(1)
    assert told["statistics"]["identity/below"] == told["statistics"]["identity/above"] == pytest.approx(0.25)
    assert told["statistics"]["surprise/z"] is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["turns", "plain"])
def test_the_mean_ratio_is_told_by_place_log_probability_turn_and_version(tmp_path, capsys, request, name):
    """Four responses of two turns of one token, by weights 3 and 4: ρ = 1 at the first token and 1/2 at the second.

    Both have log μ = log 1/2 = −0.69, between −1 and −0.5. A dump without turns and versions has neither.
    """
    mu, pi = np.full((4, 2), math.log(0.5)), np.log([[0.5, 0.25]] * 4)
    columns = {"logp_rollout": mu, "logp_old": pi, "mask": np.ones((4, 2), bool)}
    expected = {("place", 1): 1, ("place", 2): 0.5, ("log_probability", -0.5): 0.75}
    request.getfixturevalue("undrawn" if name == "turns" else "no_page")
    if name == "turns":
        columns |= {"segments": np.array([[0, 1]] * 4), "version": np.array([[3, 4]] * 4)}
        expected |= {("turn", 0): 1, ("turn", 1): 0.5, ("version", 3): 1, ("version", 4): 0.5}
    files.write(tmp_path / "d.parquet", columns)
    with pytest.raises(SystemExit):  # a mean of 0.75 without a spread is a fault
        main(["replay", str(tmp_path / "d.parquet"), "--json", "--out", str(tmp_path / "out")])
    told = json.loads(capsys.readouterr().out)["diagnosis"]
    assert {(part["by"], part["at"]): part["mean"] for part in told["mean_ratio_by"]} == pytest.approx(expected)
    if name == "turns":
        assert "log_probability</td>" in (tmp_path / "out" / "replay.html").read_text(encoding="utf-8")


def test_the_share_of_weights_at_the_proposed_bound_is_told():
    """Ratios 3, 1 and 1, 1/2 per token; products 3 and 1/2: a quarter of token weights and half of the sequence weights are 2."""
    pi = np.log([[0.75, 0.5], [0.5, 0.25]])
    pairs = LogpPairs(
        Batch(torch.tensor(np.log([[0.25, 0.5], [0.5, 0.5]])), torch.ones(2, 2, dtype=torch.bool), torch.tensor(pi))
    )
    verdict = verdict_of(example("fp8"))
    for level, share in (("token", 0.25), ("sequence", 0.5)):
        proposal = verdict.proposal.model_copy(update={"level": level, "upper": 2.0})
        told = detailed(verdict.model_copy(update={"proposal": proposal}), evidence.DiagnosedTokens(pairs, None))
        assert told.proposal.at_bound == share and verdict.proposal.at_bound is None


def test_entropies_of_a_dump_show_another_sampler(tmp_path):
    """Both columns give heads the odds 0.7, whose entropy is 0.6109 nats, and three tokens of four are heads.

    Their mean surprise is 0.75·0.3567 + 0.25·1.2040 = 0.5685 nats. The root mean square of surprise − entropy is 0.369.
    So V = 400·0.369² = 54.5 nats², and the sum of −0.0424·400 = −17.0 nats is above V/15: z² = 2·17.0/15 − 54.5/15².
    """
    heads = np.random.default_rng(0).permutation(np.arange(400) % 4 > 0).reshape(20, 20)
    mu = np.where(heads, math.log(0.7), math.log(0.3))
    own = {"logp_rollout": mu, "logp_old": mu - 1e-4, "mask": np.ones(mu.shape, bool)}
    files.write(tmp_path / "bare.parquet", own)
    files.write(tmp_path / "d.parquet", own | {"entropy": np.full(mu.shape, 0.6109)})
    assert verdict_of(tmp_path / "bare.parquet").diagnosis.consistent
    seen = Evidence(RunFacts())
    for batch in Dump(tmp_path / "d.parquet").batches():
        seen.add(batch)
    statistics = seen.diagnosis()[0].statistics
    assert statistics["surprise/excess"] == pytest.approx(0.5685 - 0.6109, abs=2e-4)
    assert statistics["surprise/z"] == pytest.approx(-math.sqrt(2 * 16.96 / 15 - 54.5 / 225), rel=0.02)
