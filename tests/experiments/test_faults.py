"""The record of the confusion matrix: resumed, read back, and counted by hand."""

import pandas as pd
import pytest
import torch

from algos.batch import Batch
from experiments.faults import __main__ as program
from experiments.faults import clean, edits, plan, power, real
from experiments.faults.inject import Key, Made
from experiments.faults.picture import confusion
from experiments.faults.report import SIZES, aims, matrix, read
from harness.errors import UserError

HEAD = ",".join(program.FIELDS)


def row(fault: str, size: float, kind: str, named: str = "", question: str = "", seed: int = 1101) -> str:
    return f"chain,{fault},{size:g},bf16,{seed},256,2560,{kind},{named},{question},1,0.1,0"


def test_a_stopped_record_goes_on_where_it_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "RECORDED", ("vllm-fp16",))
    record = tmp_path / "record.csv"
    arguments = program.parsed(["--make", "recorded", "--record", str(record)])
    program.main(arguments)
    whole = record.read_text().splitlines()
    assert len(whole) == 1 + sum(map(len, edits.SIZES.values()))
    record.write_text("\n".join(whole[:-3]) + "\n")
    program.main(arguments)
    assert record.read_text().splitlines() == whole


def test_an_answer_is_right_by_name_and_a_left_out_fault_by_its_question(tmp_path):
    record = tmp_path / "record.csv"
    rows = (
        row("clean", 0, "consistent"),
        row("clean", 6, "fault", "stale", "b"),
        row("top_p", 0.95, "fault", "truncated_sampling", "b"),
        row("top_p", 0.9, "consistent"),
        row("rope", 3, "unknown", "", "b"),
        row("rope", 3, "fault", "prompt", "b", 1102),
        row("rope", 3, "fault", "mask", "a", 1103),
        row("penalty", 1, "consistent"),
    )
    record.write_text("\n".join((HEAD, *rows)) + "\n")
    frame = read(record)
    assert frame["right"].to_list() == [True, False, True, False, True, True, False, False]
    counted = aims(frame).set_index("dumps")
    assert counted["number"].to_list() == [1, 2, 4] and counted["right"].to_list() == [1, 1, 2]
    table = matrix(frame).set_index("injected")
    assert table.loc["clean", "right"] == "1/2" and table.loc["clean", "wrong answers"] == "stale 1"
    assert table.loc["top_p", "sizes"] == "0.95, 0.9" and table.loc["top_p", "right"] == "1/1, 0/1"
    assert table.loc["rope (left out)", "right"] == "2/3"


def test_a_record_that_is_not_there_names_the_remedy(tmp_path):
    with pytest.raises(UserError, match="--make"):
        read(tmp_path / "record.csv")


def test_the_plan_is_of_fresh_seeds_and_large_enough():
    judged = {*plan.CHAIN, *plan.RUNS, *plan.SMOLLM2, plan.EDIT_SEED}
    assert not judged & set(plan.SPENT)
    assert len(plan.RUNS) * len(clean.ARMS) * len(clean.STEPS) >= 200
    assert len(SIZES.keys() - plan.HELD_OUT.keys()) >= 15 and real.SIZES.keys() >= plan.HELD_OUT.keys()


def test_a_key_is_written_as_it_is_read():
    assert str(Key("run", "clean", 6, "moe_r3", 1101)) == "run clean 6 moe_r3 1101"


def test_a_dump_is_cut_into_parts_of_whole_rows():
    batch = Batch(-torch.rand(16, 3), torch.ones(16, 3, dtype=torch.bool), -torch.rand(16, 3))
    key = Key("chain", "clean", 0, "bf16", power.SEED)
    parts = list(power.cut_up(Made(key, batch, torch.arange(16)[:, None])))
    assert [len(part.batch.mask) for part in parts] == [8, 8, 16]  # of 32 and more there is none
    assert torch.equal(parts[1].tokens, torch.arange(8, 16)[:, None])


def test_a_fault_needs_the_number_from_which_on_nine_tenths_are_named():
    right = {8: 16, 16: 10, 32: 15, 64: 8, 128: 4, 256: 2, 512: 1}
    parts = {8: 16, 16: 16, 32: 16, 64: 8, 128: 4, 256: 2, 512: 1}
    rows = [
        {"fault": "shift", "size": 0.5, "precision": "bf16", "responses": n, "parts": parts[n], "right": right[n]} for n in parts
    ]
    assert power.table(pd.DataFrame(rows))["needs"].to_list() == ["32"]
    rows[-1]["right"] = 0
    assert power.table(pd.DataFrame(rows))["needs"].to_list() == ["more"]


def test_the_matrix_is_of_middle_sizes(tmp_path):
    record = tmp_path / "record.csv"
    rows = (row("top_p", 0.95, "unknown"), row("top_p", 0.9, "consistent"), row("clean", 6, "consistent"))
    record.write_text("\n".join((HEAD, *rows)) + "\n")
    counts = confusion(read(record))
    assert counts.index.to_list() == ["clean", "top_p"] and counts.columns.to_list() == ["consistent", "unknown"]
    assert counts.to_numpy().tolist() == [[1, 0], [0, 1]]
