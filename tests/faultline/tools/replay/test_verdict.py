"""The verdict: its numbers by hand, when it asks for a correction, how it looks in a terminal and as JSON."""

import html
import json
import math
import re
from contextlib import suppress
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from scipy.stats import binom

from faultline import records
from faultline.cli import main
from faultline.tools.import_config import import_config
from faultline.tools.replay import terminal
from faultline.tools.replay.advice import Advisor, Target
from faultline.tools.replay.collect import collect
from faultline.tools.replay.deployed import answers
from faultline.tools.replay.evidence import Evidence
from faultline.tools.replay.example import EXAMPLES, FOLDER, SOUND, example
from faultline.tools.replay.persistence import Lasting
from faultline.tools.replay.presets import presets
from faultline.tools.replay.scales import LARGE, NEGLIGIBLE, SCALES
from faultline.tools.replay.settings import settings
from faultline.tools.replay.sources import Dump
from faultline.tools.replay.verdict import KNOWN, USUAL, Verdict, compared, judge
from harness.compose import compose
from harness.config import parse
from harness.diagnosis import RunFacts
from harness.dumps import files
from tests.faultline.tools.replay.cases import CONSISTENT, random_columns

TARGET = Target(kept=0.99, ess=0.9)
LOGPS = ("logp_rollout", "logp_old")


def verdict_of(path, names=tuple(KNOWN), null=None):
    advisor = Advisor(TARGET)
    specs = {name: preset.correction for name, preset in presets(list(names)).items()}
    replayed = collect(Dump(path), specs, advisor)
    return judge("it", replayed, null, advisor.propose(), TARGET, CONSISTENT)


@pytest.fixture(scope="module", params=SOUND)
def shipped(request):
    """A shipped dump: its verdict, and l = log π_old − log μ of each response."""
    rows = pq.read_table(example(request.param)).to_pylist()
    ratios = [np.array(r["logp_old"]) - np.array(r["logp_rollout"]) for r in rows]
    return request.param, verdict_of(example(request.param)), ratios


def test_the_examples_are_small_and_ship_with_the_package():
    shipped = sorted(path.name for path in FOLDER.iterdir())
    assert shipped == sorted(f"{name}.parquet" for name in EXAMPLES)
    assert sum((FOLDER / name).stat().st_size for name in shipped) < 2e6


def weights_by_hand(ratios):
    """Weight g of each token by preset, and e^s of its response. n, s: lengths and sums of l. verl bounds 1/ρ."""
    n = np.array([len(l) for l in ratios])
    total, flat = np.array([l.sum() for l in ratios]), np.concatenate(ratios)
    k3 = np.array([(np.exp(l) - 1 - l).mean() for l in ratios])
    ones, sequence = np.ones(len(flat)), np.repeat(np.exp(total), n)
    geo = np.repeat(np.exp(total / n), n)
    return sequence, {
        "verl/decoupled_geo_rs": ones * ((geo >= 1 / 1.001) & (geo <= 1 / 0.999)),
        "verl/decoupled_k3_rs": ones * np.repeat(k3 <= 0.01, n),
        "skyrl/geometric_mask": ones * ((geo >= 0.99) & (geo <= 1.01)),
        "skyrl/product_mask": ones * ((sequence >= 0.5) & (sequence <= 2)),
        "trl/sequence_mask": sequence * (sequence <= 3),
        "verl/decoupled_seq_is": np.minimum(sequence, 2),
        "skyrl/sequence_tis": np.minimum(sequence, 5),
        "icepop": np.exp(flat) * ((np.exp(flat) >= 0.5) & (np.exp(flat) <= 5)),
        "verl/decoupled_token_is": np.minimum(np.exp(flat), 2),
        "none": ones,
    }


def test_shares_and_ess_of_the_presets_by_hand(shipped):
    """ESS = (Σg)²/(N·Σg²) over N tokens. The agreement is the squared cosine of g and e^s, its response's exact weight."""
    _, verdict, ratios = shipped
    sequence, g = weights_by_hand(ratios)
    assert {row.preset for row in verdict.presets} == set(g)
    for row in verdict.presets:
        w = g[row.preset]
        assert row.tokens_kept == pytest.approx((w > 0).mean(), abs=1e-12), row.preset
        ess = w.sum() ** 2 / (len(w) * (w**2).sum()) if w.any() else 0.0
        assert row.ess == pytest.approx(ess, rel=1e-5), row.preset  # the correction is computed in the dump's fp32
        cosine = (w * sequence).sum() / np.sqrt((w**2).sum() * (sequence**2).sum()) if w.any() else 0.0
        assert row.agreement == pytest.approx(cosine**2, rel=1e-5), row.preset
    n, total, flat = [len(l) for l in ratios], np.array([l.sum() for l in ratios]), np.concatenate(ratios)
    geo = np.repeat(np.exp(total / n), n)
    band = next(bound for bound in verdict.bounds if bound.family == "reject-geometric")
    inside = np.maximum(geo, 1 / geo) <= band.c  # the smallest of the grid that keeps 99 %; 1.7 % less in log C keeps less
    assert band.tokens_kept == pytest.approx(inside.mean(), abs=1e-9) and inside.mean() >= 0.99
    assert (np.maximum(geo, 1 / geo) <= np.exp(np.log(band.c) / 1.035)).mean() < 0.99
    assert [row.ess for row in verdict.presets] == sorted(row.ess for row in verdict.presets)
    assert verdict.mismatch.k3 == pytest.approx((np.expm1(flat) - flat).mean(), rel=1e-4)
    assert verdict.mismatch.ess_sequence == pytest.approx(np.exp(total).sum() ** 2 / (len(n) * np.exp(2 * total).sum()), rel=1e-4)


def test_in_each_resample_of_the_fp8_example_four_filters_agree_less_than_no_correction(shipped):
    """docs/replay.md. Sums over a response's tokens are drawn with the response."""
    name, _, ratios = shipped
    if name != "fp8":
        return
    sequence, g = weights_by_hand(ratios)
    starts = np.cumsum([0, *(len(l) for l in ratios[:-1])])
    drawn = np.random.default_rng(0).integers(0, len(ratios), (500, len(ratios)))
    agreement = {}
    for preset, w in g.items():
        along, square = (np.add.reduceat(values, starts)[drawn].sum(1) for values in (w * sequence, w**2))
        agreement[preset] = along**2 / (square * np.add.reduceat(sequence**2, starts)[drawn].sum(1))
    filters = ("verl/decoupled_geo_rs", "verl/decoupled_k3_rs", "skyrl/geometric_mask", "skyrl/product_mask")
    assert all((agreement[preset] < agreement["none"]).all() for preset in filters)
    assert not (agreement["trl/sequence_mask"] < agreement["none"]).all()


def test_what_the_shipped_dumps_say(shipped):
    """BF16 affords the sequence weight, which is the exact one; FP8 does not, and the usual bands keep next to nothing of it."""
    name, verdict, _ = shipped
    kept = {row.preset: row.tokens_kept for row in verdict.presets}
    level = {"bf16": "sequence", "fp8": "token"}[name]
    assert verdict.by_size == "weight"
    assert verdict.proposal.level == level and verdict.proposal.upper == USUAL and verdict.proposal.interval is None
    same = {"token": "verl/decoupled_token_is", "sequence": "verl/decoupled_seq_is"}[level]
    assert verdict.proposal.ess == pytest.approx(next(row.ess for row in verdict.presets if row.preset == same), rel=1e-5)
    if name == "fp8":
        assert kept["verl/decoupled_geo_rs"] < 0.05 and kept["skyrl/geometric_mask"] < 0.15
        (line,) = terminal.starved(verdict)
        assert line.startswith("Not here: verl k3_rs, verl geo_rs: ESS under 0.1. A geometric band needs 0.8")


def dump(path, ratios):
    """Responses whose log ratios are the rows of `ratios`."""
    shape = ratios.shape
    rollout = np.full(shape, -30.0)
    files.write(path, {"mask": np.ones(shape, bool), "logp_rollout": rollout, "logp_old": rollout + ratios})
    return path


def test_equal_policies_need_no_correction(tmp_path):
    verdict = verdict_of(dump(tmp_path / "d.parquet", np.zeros((20, 5))))
    assert (verdict.by_size, verdict.proposal, verdict.reason) == ("none", None, "Every ratio is exactly 1.")
    assert "  By its size alone: it needs none of this. Every ratio is exactly 1." in terminal.lines(verdict)
    assert verdict.mismatch.pareto_k is None


@pytest.mark.parametrize(("k3", "asked"), [(NEGLIGIBLE / 2, "none"), (NEGLIGIBLE * 2, "weight"), (LARGE * 2, "weight")])
def test_the_size_asks_for_a_weight_from_the_cut_off_on(tmp_path, k3, asked):
    """Half of the tokens at l = ±a each: K3 = cosh a − 1. Single tokens, so that sequence and token weights are the same."""
    a = math.acosh(1 + k3)
    ratios = np.where(np.arange(400) % 2, a, -a)[:, None]
    verdict = verdict_of(dump(tmp_path / "d.parquet", ratios))
    assert verdict.mismatch.k3 == pytest.approx(k3, rel=1e-9) and verdict.by_size == asked
    assert (verdict.proposal is None) == (asked == "none")
    assert any("By its size alone: it needs none of this." in line for line in terminal.lines(verdict)) == (asked == "none")
    assert asked == "none" or verdict.reason == "K3 is above 1e-04, our uncalibrated cut-off."


def test_the_published_scales_ascend_and_name_the_runs_that_collapsed():
    """docs/k3.md: of arXiv 2510.11370 the mixture at 1.5e-3, and with routing replay, at 7.5e-4, not; of Liu et al. 14B."""
    assert [scale.low for scale in SCALES] == sorted(scale.low for scale in SCALES)
    assert SCALES[0].high < NEGLIGIBLE < SCALES[1].low
    mixtures = {scale.low: scale.what for scale in SCALES if scale.source == "arXiv 2510.11370" and "mixture" in scale.what}
    dense = {scale.what: (scale.low, scale.high) for scale in SCALES if scale.source == "Liu et al. 2025"}
    assert mixtures == {7.5e-4: "BF16, 30B mixture with routing replay, no collapse", 1.5e-3: "BF16, 30B mixture, collapsed"}
    assert dense == {
        "BF16, 14B on H20 GPUs, one recovered": (5e-4, 1e-3),
        "BF16, 14B on L20 GPUs, crashed": (1e-3, 1e-2),
        "BF16, 14B on A100, crashed": (1e-2, 1.0),
    }


@pytest.mark.slow
def test_a_negligible_k3_needs_a_correction_where_long_responses_add_it_up(tmp_path):
    """l ~ N(−s²/2, s²) with s² = 1e-4 has K3 = s²/2 = 5e-5. Over 8,000 tokens log R has the variance .8: ESS e^−.8 = .45,
    and that of 64 draws is (ΣR)²/(64·ΣR²)."""
    rng = np.random.default_rng(0)
    short, long = (rng.normal(-5e-5, 1e-2, (64, length)) for length in (10, 8000))
    assert verdict_of(dump(tmp_path / "short.parquet", short)).by_size == "none"
    verdict = verdict_of(dump(tmp_path / "long.parquet", long))
    assert verdict.mismatch.k3 == pytest.approx(5e-5, rel=0.02) and verdict.mismatch.k3_interval[1] < NEGLIGIBLE
    exact = np.exp(long.sum(1))
    assert verdict.mismatch.ess_sequence == pytest.approx(exact.sum() ** 2 / (64 * (exact**2).sum()), rel=1e-6)
    assert verdict.mismatch.ess_sequence < 0.75 < TARGET.ess
    assert verdict.by_size == "weight" and verdict.proposal is not None
    assert f"but the sequence ESS is {verdict.mismatch.ess_sequence:.3f}" in verdict.reason


def test_the_reason_of_none_quotes_the_published_range(tmp_path):
    verdict = verdict_of(dump(tmp_path / "d.parquet", np.tile([-0.01, 0.01], 200)[:, None]))
    assert "FP16, K3 8.0e-06 to 1.5e-05" in verdict.reason and len(verdict.reason) <= terminal.WIDTH - 2


def test_an_interval_across_the_cut_off_decides_nothing(tmp_path):
    """10 of n responses with l = 0.1, K3 e^.1 − 1.1 = .00517, the others with 0. A resample has Binomial(n, 10/n) of them,
    95 % of the resamples 5 to 16 or so, with quantiles of 200 resamples one or two apart. n = 100: K3 2.6e-4 to 8e-4.
    n = 718: 3.6e-5 to 1.2e-4."""
    found = {}
    for n in (100, 718):
        ratios = np.where(np.arange(n) < 10, 0.1, 0.0)[:, None]
        found[n] = verdict_of(dump(tmp_path / f"{n}.parquet", ratios))
        drawn = np.array(found[n].mismatch.k3_interval) * n / (math.exp(0.1) - 1.1)
        assert drawn == pytest.approx(binom.ppf([0.025, 0.975], n, 10 / n), abs=2)
    assert (found[100].by_size, found[718].by_size) == ("weight", "undecided")
    assert found[718].reason.endswith(" (95 %): our cut-off 1e-04 lies between.") and found[718].proposal is not None


def test_one_response_decides_nothing(tmp_path):
    verdict = verdict_of(dump(tmp_path / "d.parquet", np.full((1, 5), 1.0)))
    assert (verdict.by_size, verdict.mismatch.k3_interval) == ("undecided", None)


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_dump_of_three_prompts_gets_no_setting(tmp_path, capsys):
    """Three clusters give no standard error of the mean ratio, so no fault could show; four do."""
    rng = np.random.default_rng(0)
    for prompts, told in ((3, "too few prompts for a standard error: mean ratio "), (4, "consistent: mean ratio ")):
        path = dump(tmp_path / f"{prompts}.parquet", rng.normal(0, 0.1, (prompts, 9)))
        main(["replay", str(path)])
        shown = capsys.readouterr().out
        assert f"LOG-PROBABILITIES  {told}" in shown and ("rollout_is" in shown) == (prompts == 4)


def test_a_doubtful_bound_is_told_of(tmp_path):
    """l ~ Exp(1.5), one token per response: ρ is Pareto with k = 1.5. The ESS of an uncapped weight is far below the target."""
    ratios = np.random.default_rng(0).exponential(1.5, (8000, 1))
    target = Target(0.99, 0.6)
    advisor = Advisor(target)
    path = dump(tmp_path / "d.parquet", ratios)
    replayed = collect(Dump(path), {"icepop": presets(["icepop"])["icepop"].correction}, advisor)
    verdict = judge("it", replayed, None, advisor.propose(), target, CONSISTENT)
    same = next(b for b in verdict.bounds if b.family == f"truncate-{verdict.proposal.level}")
    assert verdict.proposal.verdict == same.verdict and same.verdict.startswith("not to be trusted: Pareto k = 1.")


def comparison(path, facts):
    """What the K3 of a dump was compared with."""
    evidence = Evidence(facts)
    for batch in Dump(path).batches():
        evidence.add(batch)
    return compared(evidence.diagnosis()[0], facts)


@pytest.mark.parametrize(
    ("precision", "baseline", "most", "what"),
    [
        ("bf16", None, 4 * 1.3e-3, "4 times the K3 of SmolLM2-135M in bf16"),
        ("bf16", 2e-3, 3 * 2e-3, "3 times that of the baseline"),
        (None, 2e-3, 3 * 2e-3, "3 times that of the baseline"),
    ],
)
def test_what_k3_was_compared_with_stands_among_the_published(tmp_path, precision, baseline, most, what):
    """4 and 3 times, and the 1.3e-3 of BF16: `rounding`. The line stands by its value, here above the K3 of the dump."""
    path = dump(tmp_path / "d.parquet", np.random.default_rng(0).normal(0, 0.03, (400, 3)))
    found = comparison(path, RunFacts(precision, baseline=baseline))
    assert found.most == pytest.approx(most) and found.what == what
    shown = terminal.lines(verdict_of(path).model_copy(update={"compared": found}))
    own = next(i for i, line in enumerate(shown) if line.startswith(">>>"))
    told = f"    {most:.1e}             {what}: above it the dump is UNKNOWN"
    assert own < shown.index(told)


def test_a_k3_that_nothing_was_compared_with_has_no_such_line(tmp_path):
    path = dump(tmp_path / "d.parquet", np.random.default_rng(0).normal(0, 0.03, (400, 3)))
    assert comparison(path, RunFacts()) is None
    assert not any("UNKNOWN" in line for line in terminal.lines(verdict_of(path)))


def test_responses_of_unknown_prompts_are_told_of(tmp_path):
    ratios = np.random.default_rng(0).normal(0, 0.1, (40, 3))
    rollout = np.full((40, 3), -30.0)
    columns = {"mask": np.ones((40, 3), bool), "logp_rollout": rollout, "logp_old": rollout + ratios}
    files.write(tmp_path / "known.parquet", columns | {"group": np.arange(40) // 4})
    unknown = "No column group: intervals take responses for independent, and may be too narrow."
    known, single = verdict_of(tmp_path / "known.parquet"), verdict_of(dump(tmp_path / "single.parquet", ratios))
    assert known.limitations[0].startswith("40 responses to 10 prompts: ") and unknown not in known.limitations
    assert single.limitations[:2] == ["40 responses: intervals are wide; 1,000 are better.", unknown]
    assert f"Note: {unknown}" in terminal.lines(single) and not any(unknown in line for line in terminal.lines(known))
    assert "Note: 40 responses: intervals are wide; 1,000 are better." in terminal.lines(single)


def test_no_correction_does_not_read_as_the_best(tmp_path):
    """Its ESS is 1, the largest of the table. Its weights agree with the exact ones by their ESS, (Σ R)²/(n·Σ R²), as all
    responses have three tokens; R is the exponential of a response's sum."""
    ratios = np.random.default_rng(0).normal(0, 0.5, (400, 3))
    verdict, exact = verdict_of(dump(tmp_path / "d.parquet", ratios)), np.exp(ratios.sum(1))
    last = verdict.presets[-1]
    assert (last.preset, last.label, last.tokens_kept, last.ess) == ("none", "no correction", 1, 1)
    assert last.agreement == pytest.approx(exact.sum() ** 2 / (400 * (exact**2).sum()))


def test_a_bound_comes_from_the_data_where_the_ess_lacks(tmp_path):
    """Single tokens, half of ρ = ½ and half of ρ = 3: ESS (1.75)²/4.625 = .66. With 1 ≤ C ≤ 3 it is (½ + C)²/(2·(¼ + C²)).
    It is .79 where .58·C² − C + .145 = 0, C = (1 + √(1 − .3364))/1.16 = 1.564; the grid is 1.7 % apart in log C."""
    target, advisor = Target(0.99, 0.79), Advisor(Target(0.99, 0.79))
    path = dump(tmp_path / "d.parquet", np.log(np.tile([0.5, 3.0], 500))[:, None])
    replayed = collect(Dump(path), {"icepop": presets(["icepop"])["icepop"].correction}, advisor)
    found = judge("it", replayed, None, advisor.propose(), target, CONSISTENT).proposal
    assert found.level == "token" and 1.54 <= found.upper <= 1.5643 and found.upper == round(found.upper, 2)
    assert found.ess == pytest.approx((0.5 + found.upper) ** 2 / (2 * (0.25 + found.upper**2)), abs=0.005)
    assert found.interval[0] <= found.upper + 0.01 and found.upper <= found.interval[1]


def test_no_weight_suffices_where_none_has_the_ess(tmp_path):
    """ρ = .01 on half of each response's tokens, which no bound lifts: ESS ½. R = 1e-4 to 1e-20, so sequences have less."""
    ratios = np.log(np.where(np.arange(20) % 2, 0.01, 1.0))[None] * np.arange(1, 401)[:, None] / 200
    verdict = verdict_of(dump(tmp_path / "d.parquet", ratios))
    assert verdict.by_size == "no weight suffices" and verdict.proposal is None
    assert any("By its size alone: no importance weight suffices." in line for line in terminal.lines(verdict))


def test_nothing_is_required_that_leaves_what_no_correction_leaves(tmp_path):
    """ρ = 4 everywhere but on one of 4,000 single tokens: K3 1.6, and a weight truncated at 2 is 2, which scales the loss.

    Its ESS is (3999·2 + ½)²/(4000·(3999·4 + ¼)) = .99986, and nearer to 1 at a smaller C."""
    ratios = np.log(np.where(np.arange(4000) == 7, 0.5, 4.0))[:, None]
    verdict = verdict_of(dump(tmp_path / "d.parquet", ratios))
    assert (verdict.by_size, verdict.proposal) == ("no weight suffices", None) and verdict.mismatch.k3 > LARGE
    assert "No bound leaves weights that differ" in verdict.reason


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_settings_are_those_that_the_frameworks_read(tmp_path, level):
    """Through the importer, whose reading of each framework is compared with the framework itself."""
    made = settings(level, 1.75)
    for name in ("verl", "SkyRL", "TRL"):
        pairs = dict(line.split("=") for line in made[name])
        values = {key: yaml.safe_load(value) for key, value in pairs.items()}
        (tmp_path / "theirs.json").write_text(json.dumps(values | ({"use_vllm": True} if name == "TRL" else {})))
        text = import_config(tmp_path / "theirs.json")
        assert "not translated" not in text
        assert f"level: {level}\n    action: truncate\n    lower: null\n    upper: 1.75\n  reject: {{}}" in text, name
    config = parse(compose(*made["Faultline"]))
    assert (config.correction.weight.level, config.correction.weight.upper) == (level, 1.75)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_settings_are_whole(level):
    """Without calculate_log_probs verl 0.7.0 skips the weight, and without logprobs SkyRL has no log μ (docs/collapsed.md)."""
    made = settings(level, 2.0)
    page = Path("docs/collapsed.md").read_text()
    blocks = [body.splitlines() for body in re.findall(r"^```text\n(.*?)^```", page, re.M | re.S)]
    assert [[line.replace(level, "token") for line in made[name]] for name in ("verl", "SkyRL")] == blocks


def test_pasted_settings_fill_lines_of_104_characters():
    """The first line is the widest: 7 + 50 + 1 + 46 characters."""
    shown = terminal.pasted(settings("token", 2.0))
    assert shown[:2] == [
        "verl   actor_rollout_ref.rollout.calculate_log_probs=True algorithm.rollout_correction.bypass_mode=False",
        "       algorithm.rollout_correction.rollout_is=token algorithm.rollout_correction.rollout_is_threshold=2",
    ]
    assert len(shown[0]) == 104 and [line[:6].strip() for line in shown] == ["verl", "", "SkyRL", "", "TRL"]
    for level in ("token", "sequence"):
        assert max(map(len, terminal.pasted(settings(level, 1.75)))) <= terminal.PASTED


@pytest.mark.slow
def test_the_terminal_shows_the_verdict_in_20_lines(tmp_path, capsys, monkeypatch):
    """The page's line is the last. Nothing is wider than 104 characters but the path."""
    monkeypatch.chdir(tmp_path)
    main(["replay", "--example"])
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) <= 20 and max(map(len, shown[:-1])) <= terminal.PASTED
    assert shown[0].startswith("LOG-PROBABILITIES  consistent: mean ratio 1.0005 ± 0.0024 ")
    assert shown[1] == "  Not tested well, for lack of entropy: whether top-p, penalties or another sampler drew the tokens."
    assert shown[2].startswith("SmolLM2-135M from a 4-bit file, FP8 rollout: ")
    assert shown[3] == f"VERDICT  {terminal.FIXED}"
    assert shown[4] == "IF YOU DEPLOY THE TRAINER'S WEIGHTS: truncate token weights at 2 (set below)"
    assert shown[5] == "IF YOU DEPLOY THE ENGINE'S WEIGHTS: no correction"
    assert shown[-1] == f"Page: {tmp_path}/replay-example-fp8/replay.html"
    page = html.unescape((tmp_path / "replay-example-fp8" / "replay.html").read_text())
    places = [
        page.index(f"IF YOU DEPLOY THE {whose} WEIGHTS: {what}") for whose, what in (("TRAINER'S", "trunc"), ("ENGINE'S", "no"))
    ]
    assert page.index(terminal.FIXED) < places[0] < places[1]
    assert page.index("What each preset leaves") < page.index("<svg") < page.index("algorithm.rollout_correction.rollout_is")
    assert (tmp_path / "replay-example-fp8" / "replay.png").stat().st_size < 200_000


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(("words", "policies"), [([], ["TRAINER", "ENGINE"]), (["--deploy", "sampler"], ["ENGINE"])])
def test_the_answer_is_that_for_the_deployed_policy(tmp_path, monkeypatch, capsys, words, policies):
    monkeypatch.chdir(tmp_path)
    main(["replay", "--example", "--corrections", "icepop", *words])
    shown = capsys.readouterr().out
    assert re.findall(r"^IF YOU DEPLOY THE (\w+)'S WEIGHTS: ", shown, re.M) == policies
    assert ("rollout_is=token" in shown) == ("TRAINER" in policies)  # the sampling policy gets no correction to paste


def test_a_size_that_asks_for_no_weight_stands_beside_the_rule(tmp_path):
    verdict = verdict_of(dump(tmp_path / "d.parquet", np.zeros((20, 5))))
    deployed = answers(verdict, Lasting(None, "one step"), records.verdict(), ["sampler"])
    shown = terminal.lines(verdict.model_copy(update={"deployed": deployed}))
    assert shown[2] == f"VERDICT  {terminal.FIXED}"
    assert shown[4] == "  By its size alone: it needs none of this. Every ratio is exactly 1."


@pytest.mark.slow
def test_the_page_of_a_fault_has_its_name_whole_and_what_to_check_in_sight(tmp_path, monkeypatch, capsys):
    """The terminal wraps both."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["replay", "--example", "raw", "--json"])
    found = json.loads(capsys.readouterr().out)["diagnosis"]
    page = (tmp_path / "replay-example-raw" / "replay.html").read_text()
    heading = html.unescape(re.search(r"<h1>(.*?)</h1>", page, re.S)[1])
    assert " ".join(heading.split()) == f"FAULT raw_logprobs: {found['evidence']}"
    assert "raw logprobs: what is wrong with its log-probabilities?</title>" in page
    table = page.split("What to check</h2>")[1].split("</section>")[0]
    assert (
        len(found["check"]) == 8
        and all(what in html.unescape(table) for what in found["check"].values())
        and "<details" not in table
    )


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_the_faulty_example_is_named_and_gets_no_correction(tmp_path, monkeypatch, capsys):
    """A first batch of SkyRL's trainer at temperature 0.7, in vLLM's default logprobs_mode. The mean ratio is the file's."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["replay", "--example", "raw", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert ended.value.code == 3 and told["diagnosis"]["fault"] == "raw_logprobs" and told["proposal"] is None
    rows = pq.read_table(example("raw")).to_pylist()
    ratios = np.concatenate([np.exp(np.array(r["logp_old"]) - np.array(r["logp_rollout"])) for r in rows])
    assert told["diagnosis"]["mean_ratio"] == pytest.approx(ratios.mean(), abs=1e-6) == pytest.approx(1.284, abs=1e-3)
    slope = told["diagnosis"]["statistics"]["slope/temperature"]
    assert slope == pytest.approx(1.34, abs=0.005) and slope < 1 / 0.7  # which it is without rounding and noise


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "fp8")) for name in EXAMPLES])
def test_no_words_of_the_verdict_require_anything(tmp_path, monkeypatch, capsys, name):
    """No K3 is known to harm."""
    monkeypatch.chdir(tmp_path)
    with suppress(SystemExit):  # the faulty one
        main(["replay", "--example", name, "--all"])
    page = (tmp_path / f"replay-example-{name}" / "replay.html").read_text()
    assert "required" not in capsys.readouterr().out.lower() + re.sub(r"<style.*?</style>", "", page, flags=re.S).lower()


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_json_is_one_valid_document_of_the_documented_schema(tmp_path, capsys):
    """A dump of one token: Pareto k and intervals do not exist, and no NaN stands for them."""
    dump(tmp_path / "d" / "step-1.parquet", np.full((1, 1), 0.1))
    main(["replay", str(tmp_path / "d"), "--json"])
    text = capsys.readouterr().out
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    jsonschema.validate(found, Verdict.model_json_schema())
    assert found["mismatch"]["pareto_k"] is None and found["dump"]["tokens"] == 1
    assert found["presets"][0].keys() == {"preset", "label", "tokens_kept", "responses_kept", "ess", "agreement",
                                          "largest_weight", "false_rejections"}  # fmt: skip
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found | {"by_size": "perhaps"}, Verdict.model_json_schema())


def test_the_documented_fields_are_those_of_the_schema():
    text = Path("docs/replay.md").read_text(encoding="utf-8")
    for name in Verdict.model_fields:
        assert f"| `{name}` |" in text, name


@pytest.mark.slow
def test_names_of_files_are_neither_formulas_nor_markup(tmp_path):
    own = tmp_path / r"own$\frac$<b>.yaml"
    own.write_text("weight: {level: token, upper: 2}")
    path = tmp_path / r"my_$\frac$_<i>run.parquet"
    files.write(path, random_columns())
    main(["replay", str(path), "--corrections", str(own), "--out", str(tmp_path / "out")])
    page = (tmp_path / "out" / "replay.html").read_text()
    assert "&lt;i&gt;run.parquet" in page and "<i>run" not in page and "<b>" not in page


def test_presets_that_were_chosen_are_the_ones_shown(tmp_path):
    files.write(tmp_path / "d.parquet", random_columns())
    verdict = verdict_of(tmp_path / "d.parquet", ("m2po", "slime/tis"))
    assert {row.preset for row in verdict.presets} == {"m2po", "slime/tis"}


@pytest.mark.slow
@pytest.mark.parametrize("fill", [-1e9, float(np.finfo(np.float32).min), -1e308])
@pytest.mark.parametrize("column", ["logp_rollout", "logp_old"])
def test_the_fill_of_a_mask_is_named_and_changes_no_sign(tmp_path, column, fill):
    """The shipped FP8 dump with a fill at the first token of each tenth of its 512 responses: 52 of them.

    ρ − 1 − log ρ is never negative. At −1e9 of log μ it was: e²⁰ − 1e9 < 0."""
    rows = pq.read_table(example("fp8")).to_pylist()
    for row in rows[::10]:
        row[column][0] = fill
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({key: row[key] for key in LOGPS} | {"mask": row["mask"]}) + "\n"
                                              for row in rows))  # fmt: skip
    verdict = verdict_of(tmp_path / "d.jsonl")
    assert 0 < verdict.mismatch.k3_interval[0] < verdict.mismatch.k3 < verdict.mismatch.k3_interval[1]
    assert (verdict.by_size, verdict.proposal) == ("undecided", None)
    assert verdict.reason.startswith("52 of ") and "log-probability below -1000, a mask's fill" in verdict.reason
    assert "the fill values count" in verdict.limitations[0]
    (answer,) = answers(verdict, Lasting(None, "one step"), records.verdict(), ["trainer"])
    assert answer.arm is None and terminal.headline(verdict) == "Undecided whether to correct it."


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_corrections_that_nobody_knows_are_shown_however_many(tmp_path, monkeypatch, capsys):
    """Nine, one more than the well-known ones, none of which is among them."""
    monkeypatch.chdir(tmp_path)
    files.write(tmp_path / "d.parquet", random_columns())
    chosen = ["slime/tis", "slime/icepop", "slime/mis", "areal/token_mask", "areal/token_clamp", "trl/token_mask",
              "trl/token_truncate", "nemo_rl/tis", "nemo_rl/icepop"]  # fmt: skip
    main(["replay", "d.parquet", "--corrections", ",".join(chosen), "--json"])
    shown = json.loads(capsys.readouterr().out)["presets"]
    assert {preset["preset"] for preset in shown} == set(chosen)


@pytest.mark.slow
def test_a_correction_that_no_shipped_dump_can_show_is_shown_on_the_users(tmp_path, monkeypatch, capsys):
    """The shipped dumps have no segments."""
    monkeypatch.chdir(tmp_path)
    files.write(tmp_path / "d.parquet", random_columns())
    (tmp_path / "turns.yaml").write_text("weight: {level: segment, upper: 2}")
    main(["replay", "d.parquet", "--corrections", "turns.yaml"])
    assert "turns.yaml" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_page_is_written_through_no_link(tmp_path, capsys):
    """In a stranger's folder a linked file is replaced and its target kept, and a linked folder is refused."""
    files.write(tmp_path / "run" / "d.parquet", random_columns())
    victim = tmp_path / "home" / ".bashrc"
    victim.parent.mkdir()
    victim.write_text("mine")
    out = tmp_path / "run" / "replay"
    out.mkdir()
    for name in ("replay.html", "corrections.csv", "replay.png"):
        (out / name).symlink_to(victim)
    main(["replay", str(tmp_path / "run"), "--corrections", "icepop"])
    assert victim.read_text() == "mine" and "<html" in (out / "replay.html").read_text()
    assert not any(path.is_symlink() for path in out.iterdir()) and (out / "replay.html").stat().st_mode & 0o600 == 0o600
    (tmp_path / "run" / "linked").symlink_to(victim.parent)
    with pytest.raises(SystemExit):
        main(["replay", str(tmp_path / "run"), "--out", str(tmp_path / "run" / "linked")])
    assert "linked: is a link" in capsys.readouterr().err and [path.name for path in victim.parent.iterdir()] == [".bashrc"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("more", [[], ["--all"], ["--json"]])
def test_no_name_of_a_stranger_commands_the_terminal(tmp_path, capsys, more):
    """ESC ] 0 sets a terminal's title; the second character is CSI in eight bits."""
    path = tmp_path / "a\x1b]0;owned\x07\x9b31m.parquet"
    files.write(path, random_columns())
    main(["replay", str(path), "--corrections", "icepop", "--out", str(tmp_path / "out"), *more])
    shown = capsys.readouterr()
    assert [letter for letter in shown.out + shown.err if not letter.isprintable() and letter != "\n"] == []
    assert "owned" in shown.out


@pytest.mark.parametrize(("words", "message"), [
    ([], "give a dump, or --example"),
    (["d", "--example"], "not both"),
    (["d", "--recommend"], "--recommend is gone: the verdict proposes bounds by itself"),
    (["d", "--all", "--json"], "not allowed with argument --all"),
])  # fmt: skip
def test_wrong_words_are_refused(words, message, capsys):
    with pytest.raises(SystemExit) as left:
        main(["replay", *words])
    assert left.value.code == 2 and message in capsys.readouterr().err
