"""Gates: their intervals, how an interval decides, exit codes, and the JUnit file."""

import json
import math
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import binom

from algos.ratios import excess_bound
from faultline.cli import main
from faultline.cli.replay import FAILED, FAULT, UNDECIDED
from faultline.tools.replay.advice import Advisor, Target
from faultline.tools.replay.example import example
from faultline.tools.replay.gate import METRICS, parse
from harness.dumps import files
from harness.errors import UserError
from tests.faultline.tools.replay.cases import as_responses

pytestmark = pytest.mark.usefixtures("no_page")


def intervals(ratios):
    """Intervals of a dump whose rows of log ratios are `ratios`."""
    advisor = Advisor(Target(0.99, 0.9))
    rollout = np.full(ratios.shape, -30.0)
    columns = {"mask": np.ones(ratios.shape, bool), "logp_rollout": rollout, "logp_old": rollout + ratios}
    advisor.add(as_responses(columns))
    return advisor.propose().intervals


def test_intervals_are_those_of_the_binomial():
    """50 of 400 responses of one token have l = 1, the others 0. A resample has X ~ Binomial(400, 1/8) of them.

    K1 = −X/n, K3 = X(e − 2)/n, E[ρ] = 1 + X(e − 1)/n, ESS = (n + X(e − 1))²/(n(n + X(e² − 1))). Each is monotone in X
    for X < n/4. Quantiles of 200 resamples are within 4 of those of X."""
    n, e = 400, math.e
    found = intervals(np.where(np.arange(n) < 50, 1.0, 0.0)[:, None])
    assert set(found) == set(METRICS)
    low, high = binom.ppf([0.025, 0.975], n, 1 / 8)
    ess = [(n + x * (e - 1)) ** 2 / (n * (n + x * (e**2 - 1))) for x in np.arange(n // 4)]
    drawn = {
        "k1": sorted(-n * end for end in found["k1"]),
        "k3": [n * end / (e - 2) for end in found["k3"]],
        "mean_ratio": [n * (end - 1) / (e - 1) for end in found["mean_ratio"]],
        "ess_token": sorted(int(np.argmin(np.abs(ess - end))) for end in np.array(found["ess_token"])),
    }
    for name, ends in drawn.items():
        assert ends == pytest.approx([low, high], abs=4), name
    assert found["ess_sequence"] == pytest.approx(found["ess_token"], rel=1e-12)
    assert found["largest_log_ratio"] == (1.0, 1.0)


def test_a_sequence_weight_beyond_every_float_has_an_ess():
    """Responses of 1,000 tokens of l = 1 and of l = 0: weights e^1000 and 1. X of n of the former leave an ESS of X/n."""
    found = intervals(np.repeat([[1.0], [0.0]], 200, 0) * np.ones((1, 1000)))
    assert found["ess_sequence"] == pytest.approx(binom.ppf([0.025, 0.975], 400, 0.5) / 400, abs=0.02)


@pytest.mark.parametrize("fill", [-1e9, 1e9])
def test_a_fill_is_in_k3_and_in_its_interval_alike(fill):
    """One of 400 tokens at ±1e9 nats. At −1e9, ρ = 0 and ρ − 1 − l is 1e9; at 1e9, ρ is bounded at e^346 in fp64."""
    ratios = np.zeros((400, 1))
    ratios[7] = fill
    low, high = intervals(ratios)["k3"]
    one = 1e9 - 1 if fill < 0 else math.exp(excess_bound(torch.float64))
    assert low == 0.0 and high / one * 400 == pytest.approx(binom.ppf(0.975, 400, 1 / 400), abs=1)


def test_the_interval_decides_a_gate():
    """(0.1, 0.2) against bounds on either side, at its ends and inside."""
    outcomes = {"k3<0.3": "pass", "k3<0.2": "undecided", "k3<=0.2": "pass", "k3 < 0.15": "undecided", "k3<0.1": "fail",
                "k3>0.1": "undecided", "k3>=0.1": "pass", "k3>0.2": "fail", "k3>0.05": "pass"}  # fmt: skip
    for text, outcome in outcomes.items():
        assert parse(text).result(0.15, (0.1, 0.2)).outcome == outcome, text
    assert parse("k3<1").result(0.15, None).outcome == parse("k3<1").result(None, (0.1, 0.2)).outcome == "undecided"


@pytest.mark.parametrize("text", ["", "k3", "k3=1", "k3<", "k3<x", "k3<nan", "k3<inf", "pareto_k<1", "k3<1<2"])
def test_a_wrong_gate_is_refused_before_the_dump_is_read(text, tmp_path, capsys):
    with pytest.raises(UserError, match="--gate"):
        parse(text)
    with pytest.raises(SystemExit) as left:
        main(["replay", str(tmp_path / "none"), f"--gate={text}"])
    assert left.value.code == 2 and "as k3<2e-3" in capsys.readouterr().err


def replayed(path, gate, *more):
    """The exit code of a replay with a gate."""
    try:
        main(["replay", str(path), "--corrections", "icepop", "--gate", gate, *more])
    except SystemExit as left:
        return left.code
    return 0


@pytest.mark.slow
def test_an_undecided_gate_has_an_exit_code_of_its_own(tmp_path, capsys):
    """K3 of the shipped BF16 dump is 1.26e-3, 1.21e-3 to 1.31e-3; its largest |l| is 0.437."""
    (tmp_path / "d.parquet").write_bytes(example("bf16").read_bytes())
    assert replayed(tmp_path / "d.parquet", "k3<2e-3,largest_log_ratio<0.5") == 0
    assert replayed(tmp_path / "d.parquet", "k3<2e-3,k3<1.26e-3") == UNDECIDED
    assert capsys.readouterr().out.count("\nGATE  ") == 4
    assert (FAULT, FAILED, UNDECIDED) == (3, 4, 5)


@pytest.mark.slow
def test_three_prompts_pass_no_gate_and_are_no_baseline(tmp_path, capsys):
    """A bootstrap of three prompts spans their values alone, and the mean ratio has no standard error that could show a fault."""
    rng = np.random.default_rng(0)
    rollout = -1 - rng.exponential(1.0, (3, 9))
    columns = {"mask": np.ones((3, 9), bool), "logp_rollout": rollout, "logp_old": rollout + rng.normal(0, 1e-3, (3, 9))}
    files.write(tmp_path / "d.parquet", columns)
    assert replayed(tmp_path / "d.parquet", "k3<1") == UNDECIDED
    assert "GATE  k3<1: undecided" in capsys.readouterr().out
    with pytest.raises(SystemExit) as refused:
        main(["replay", str(example("fp8")), "--baseline", str(tmp_path / "d.parquet")])
    assert refused.value.code == 2 and "too few prompts to tell whether it has a fault" in capsys.readouterr().err


@pytest.mark.slow
def test_a_fault_comes_before_its_gates(tmp_path, capsys):
    """The columns of the shipped FP8 dump exchanged: a fault, whatever the gates say."""
    rows = pq.read_table(example("fp8")).to_pylist()
    for row in rows:
        row["logp_rollout"], row["logp_old"] = row["logp_old"], row["logp_rollout"]
    names = ("mask", "group", "logp_rollout", "logp_old")
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({name: row[name] for name in names}) + "\n" for row in rows))
    junit = tmp_path / "new" / "replay.xml"
    assert replayed(tmp_path / "d.jsonl", "k3<1", "--junit", str(junit)) == FAULT
    assert "GATE  k3<1: pass, 0.0" in capsys.readouterr().out
    suite = ElementTree.parse(junit).getroot()
    first, gate = suite.iter("testcase")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    assert first.find("failure").get("message").startswith("FAULT  swapped: ") and "Check  verl" in first.find("failure").text
    assert (gate.get("name"), gate.find("failure")) == ("k3<1", None)


@pytest.mark.slow
def test_junit_and_json_have_every_gate(tmp_path, capsys):
    path, junit = tmp_path / "a<b&.parquet", tmp_path / "replay.xml"
    path.write_bytes(example("bf16").read_bytes())
    assert replayed(path, "k3<2e-3,k3<1e-3,k3<1.26e-3", "--json", "--junit", str(junit)) == FAILED
    gates = json.loads(capsys.readouterr().out)["gates"]
    assert [gate["outcome"] for gate in gates] == ["pass", "fail", "undecided"]
    assert gates[0]["value"] == pytest.approx(1.26e-3, rel=0.01) and gates[0]["interval"] == gates[1]["interval"]
    assert gates[0]["interval"][0] < gates[0]["value"] < gates[0]["interval"][1]
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "1", "1")
    cases = {case.get("name"): case for case in suite}
    assert set(cases) == {"log-probabilities", "k3<2e-3", "k3<1e-3", "k3<1.26e-3"}
    assert cases["k3<1e-3"].find("failure").get("message").startswith("fail: 0.00126")
    assert cases["k3<1.26e-3"].find("error") is not None
    assert all(case.get("classname") == "a<b&.parquet" for case in suite)


def test_one_response_has_no_interval():
    assert intervals(np.full((1, 4), 0.1)) == {}
