"""The answer for each deployed policy from rules by hand, and the persistence between two steps of a dump."""

import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faultline.tools.replay import terminal
from faultline.tools.replay.deployed import answers
from faultline.tools.replay.persistence import FEWEST, LONGEST, Lasting, _prefixes, persistence
from faultline.tools.replay.sources import Dump
from faultline.tools.replay.verdict import DiagnosisSummary, DumpSize, Mismatch, Proposal, Verdict
from harness import room
from harness.dumps import files
from harness.room import TooLarge

ONE_STEP = Lasting(None, "one step cannot show whether the error stays")
SCORES = {
    "always none": {"mean": 0.30, "worst": 0.90, "in": "ppo/fixed_0.4"},
    "always token": {"mean": 0.07, "worst": 0.80, "in": "moe/int8"},
    "always sequence": {"mean": 0.12, "worst": 0.60, "in": "moe/fp16"},
    "always geometric": {"mean": 0.09, "worst": 0.40, "in": "moe/fp8"},
    "best constant": {"mean": 0.05, "worst": 0.20, "in": "moe/w4a4"},
    "v2": {"mean": 0.02, "worst": 0.10, "in": "dense/int8"},
}
PROPOSAL = Proposal(level="token", upper=2.0, ess=0.9, interval=None, verdict="ok", settings={"verl": ["a=1"]})
CUTOFFS = {"k3": 1e-3, "persistence": 0.3, "tokens": 10, "short": "sequence", "long": "token"}


def verdict(k3: float = 1e-2, tokens: float = 32, kind: str = "consistent") -> Verdict:
    size = DumpSize(name="it", responses=8, tokens=256, batches=1, bad_rows=0, mean_tokens=tokens)
    mismatch = Mismatch(k1=k3, k3=k3, k3_interval=None, ess_token=0.9, ess_sequence=0.9, largest_log_ratio=1.0, pareto_k=None)
    diagnosis = DiagnosisSummary(
        kind=kind, fault=None, question=None, evidence="", check={}, severity=None, mean_ratio=1.0, error=0.1, power=None,
        strength=0.0, statistics={},
    )  # fmt: skip
    return Verdict(
        dump=size, diagnosis=diagnosis, mismatch=mismatch, by_size="weight", reason="It is.", proposal=PROPOSAL, presets=[],
        bounds=[], skipped={}, limitations=[],
    )  # fmt: skip


def frozen(chosen: str, best: str = "mask") -> dict:
    rules = {"v2": CUTOFFS, "best": best, "chosen": chosen, "regimes": 26, "scores": SCORES}
    return {"trainer": rules, "sampler": rules | {"best": "none"}}


def answer(chosen, lasting=ONE_STEP, **of):
    return answers(verdict(**of), lasting, frozen(chosen), ["trainer"])[0]


def test_a_constant_that_won_is_proposed_for_each_policy_and_said_to_be_one():
    """None loses 0.30 of the gain and the constant 0.05. The other plain choices stand beside it, and it not beside itself."""
    trainer, sampler = answers(verdict(), ONE_STEP, frozen("best constant"), ["trainer", "sampler"])
    assert (trainer.arm, sampler.arm, sampler.settings) == ("mask", "none", {})
    assert trainer.measured == (
        "In 26 new toy regimes it lost 5% of RL's gain to the best, 20% at worst. "
        "Beside it: no correction 30%, 90%; token truncation 7%, 80%; sequence truncation 12%, 60%; band, token mask 9%, 40%."
    )
    always = frozen("best constant", "none")
    always["trainer"]["scores"] = SCORES | {"best constant": SCORES["always none"]}
    (found,) = answers(verdict(), ONE_STEP, always, ["trainer"])
    others = "token truncation 7%, 80%; sequence truncation 12%, 60%; band, token mask 9%, 40%."
    assert found.measured.endswith(f"90% at worst. Beside it: {others}")
    assert trainer.settings["Faultline"] == ["correction=sequence_mask"]
    shown = terminal.lines(verdict().model_copy(update={"deployed": [trainer, sampler]}))
    at = shown.index(f"VERDICT  {terminal.FIXED}")
    assert shown[at + 1] == "IF YOU DEPLOY THE TRAINER'S WEIGHTS: mask sequences above 2 (set below)"
    assert shown[at + 2] == "IF YOU DEPLOY THE ENGINE'S WEIGHTS: no correction"
    assert not any("By its size alone" in line or "untested" in line for line in shown)  # the size opposes no rule
    assert any(line.startswith("TRL") and "sequence_mask" in line for line in shown) and max(map(len, shown)) <= terminal.PASTED


@pytest.mark.parametrize(
    ("of", "value", "arm"),
    [
        ({}, 0.9, "token"),  # large, stays, 32 tokens
        ({"tokens": 8}, 0.9, "sequence"),
        ({}, 0.1, "none"),  # redrawn
        ({"k3": 1e-4}, None, "none"),  # so small that persistence does not matter
        ({}, None, None),
    ],
)
def test_v2_asks_for_size_length_and_persistence(of, value, arm):
    found = answer("v2", Lasting(value, ONE_STEP.why, 20), **of)
    assert found.arm == arm and ("undecided" in found.text) == (arm is None)
    assert arm is not None or ONE_STEP.why in found.text


def test_a_rule_that_reads_the_dump_has_its_own_headline():
    shown = terminal.lines(verdict().model_copy(update={"deployed": [answer("v2", Lasting(0.9, "steps", 20))]}))
    assert "VERDICT  By the rule tested for the policy that you deploy:" in shown


@pytest.mark.parametrize(("lag", "arm"), [(1, None), (9, None), (10, "token"), (40, "token"), (41, None)])
def test_v2_knows_no_persistence_of_a_lag_far_from_20(lag, arm):
    """The rule was tuned on persistence over 20 syncs. An error that lasts one step may be redrawn within 20."""
    assert answer("v2", Lasting(0.9, "steps", lag)).arm == arm


def test_a_fault_gets_no_arm_and_no_word_on_rules():
    unsound = verdict(kind="unknown").model_copy(update={"by_size": "not asked", "reason": "Mend it."})
    found = answers(unsound, ONE_STEP, frozen("best constant"), ["trainer", "sampler"])
    assert [one.arm for one in found] == [None, None]
    shown = terminal.lines(unsound.model_copy(update={"deployed": found}))
    assert shown[-2:] == ["VERDICT  No correction is proposed.", "  Mend it."]


def test_too_few_prompts_get_no_headline_of_a_tested_rule():
    """Without a standard error no rule proposes a correction."""
    few = verdict()
    few = few.model_copy(update={"diagnosis": few.diagnosis.model_copy(update={"error": None}), "by_size": "undecided"})
    found = answers(few, ONE_STEP, frozen("best constant"), ["trainer"])
    assert not few.diagnosis.tells and not any(
        terminal.FIXED in line for line in terminal.lines(few.model_copy(update={"deployed": found}))
    )


def test_a_tested_rule_answers_where_the_size_alone_would_not():
    """The constant was tested on every regime; the size alone asks for none."""
    small = verdict(k3=1e-5).model_copy(update={"by_size": "none", "reason": "K3 is small.", "proposal": None})
    found = answers(small, ONE_STEP, frozen("best constant"), ["trainer"])
    shown = terminal.lines(small.model_copy(update={"deployed": found}))
    at = shown.index(f"VERDICT  {terminal.FIXED}")
    assert shown[at + 1].startswith("IF YOU DEPLOY THE TRAINER'S WEIGHTS: mask sequences above 2")
    assert "  By its size alone: it needs none of this. K3 is small." in shown


def write(path, *steps: tuple[int, np.ndarray, np.ndarray]) -> Dump:
    """Files of a step each: its log ratios [16, 8] after the same prefixes, and the prompts' first token."""
    path.mkdir()
    for step, ratio, prompts in steps:
        rollout = np.full((16, 8), -1.0)
        tokens = np.tile(np.arange(8), (16, 1))
        columns = {"step": np.full(16, step), "prompt": prompts[:, None], "tokens": tokens, "mask": np.ones((16, 8), bool)}
        files.write(path / f"{step}.parquet", columns | {"logp_rollout": rollout, "logp_old": rollout + ratio})
    return Dump(path)


def test_persistence_is_the_correlation_over_shared_prefixes(tmp_path):
    """A ratio that stays has 1 and one of the other sign −1. Of steps 0, 5 and 19 the nearest to 20 counts: with l = ±0.1 of 128
    prefixes, half of which change their sign, the sum is 0."""
    prompts, l = np.arange(16), np.tile([0.1, -0.1], (16, 4))
    assert persistence(write(tmp_path / "a", (0, l, prompts), (20, 2 * l, prompts))).value == pytest.approx(1.0)
    half = np.where(np.arange(16)[:, None] < 8, l, -l)
    found = persistence(write(tmp_path / "b", (0, l, prompts), (5, l, prompts), (19, half, prompts)))
    assert found.value == pytest.approx(0.0, abs=1e-12) and found.lag == 19
    assert found.why == "steps 0 and 19 share 128 prefixes at a lag of 19"


def test_a_lag_that_the_rule_does_not_take_is_told(tmp_path):
    """The file of step 2 is read before that of step 1, and the lag is 1 all the same."""
    prompts, l = np.arange(16), np.full((16, 8), 0.1)
    write(tmp_path / "a", (1, l, prompts), (2, l, prompts))
    (tmp_path / "a" / "1.parquet").rename(tmp_path / "a" / "3.parquet")
    found = persistence(dump := Dump(tmp_path / "a"))
    assert [path.name for path in dump.files] == ["2.parquet", "3.parquet"] and found.lag == 1
    assert found.why == "steps 1 and 2 share 128 prefixes at a lag of 1; rules need 10 to 40"
    shown = terminal.lines(verdict().model_copy(update={"persistence": found.value, "persistence_note": found.why}))
    assert f"Persistence 1.00: {found.why}" in shown
    told = answer("v2", found).text
    assert told.startswith("undecided: the rule asks whether the error stays over 20 syncs, and steps 1 and 2 share")


def test_persistence_says_why_it_is_not_told(tmp_path):
    prompts, l = np.arange(16), np.full((16, 8), 0.1)
    assert persistence(write(tmp_path / "a", (3, l, prompts))).why.startswith("one step cannot show")
    apart = persistence(write(tmp_path / "b", (0, l, prompts), (20, l, prompts + 10)))
    assert apart == Lasting(None, f"steps 0 and 20 share 48 prefixes, and {FEWEST} are needed")  # six prompts of eight tokens
    (tmp_path / "c.jsonl").write_text('{"logp_rollout": [-1.0], "logp_old": [-1.0]}')
    assert persistence(Dump(tmp_path / "c.jsonl")).why == "the dump has no step and no prompt and no tokens"


@pytest.mark.slow
def test_a_dump_that_takes_too_much_is_refused(tmp_path, monkeypatch):
    """A prompt of 2^24 zeros has 128 MiB in memory and a few kB in the file. There is room for 64 MiB."""
    prompts = pa.array([np.zeros(1 << 24, np.int64)] * 2)
    columns = {"step": [0, 20], "tokens": [[1], [1]], "logp_rollout": [[-1.0]] * 2, "logp_old": [[-1.1]] * 2}
    pq.write_table(pa.table(columns | {"prompt": prompts}), tmp_path / "bomb.parquet", compression="zstd", row_group_size=1)
    pa.default_memory_pool().release_unused()  # freed memory that is used again would not count
    monkeypatch.setattr(room, "room", lambda: 64 << 20)
    with pytest.raises(TooLarge, match=r"bomb\.parquet: takes more than"):
        persistence(Dump(tmp_path / "bomb.parquet"))


def test_only_the_compared_tokens_become_python_objects(tmp_path):
    """Of a response of 2^20 tokens the first 64 are compared. A list of all would take 8 MiB for its pointers alone."""
    long = np.full(1 << 20, -1.0)
    table = pa.table({"prompt": [[1]], "tokens": [np.zeros(1 << 20, int)], "logp_rollout": [long], "logp_old": [long]})
    table = table.append_column("mask", pa.array([np.ones(1 << 20, bool)]))
    tracemalloc.start()
    count = len(list(_prefixes(table)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == LONGEST and peak < 1 << 20
