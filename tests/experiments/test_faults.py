"""The record of the confusion matrix: resumed, read back, and counted by hand."""

import pandas as pd
import pytest
import torch

from algos.batch import Batch
from algos.diagnostics.repeats import repeated
from experiments.faults import __main__ as program
from experiments.faults import clean, edits, inject, plan, power, real, sound
from experiments.faults import vllm as in_vllm
from experiments.faults.inject import Key, Made
from experiments.faults.mean_ratio import LEAST, picture
from experiments.faults.picture import confusion
from experiments.faults.report import SIZES, aims, matrix, read
from harness.build import build_task
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.models import policy_config

HEAD = ",".join(program.FIELDS)


def row(fault: str, size: float, kind: str, named: str = "", question: str = "", seed: int = 1201) -> str:
    """A row of the record, whose dump without entropies and baseline, and as verl's default dump, was called consistent."""
    return f"chain,{fault},{size:g},bf16,{seed},256,2560,{kind},{named},{question},1,0.1,0,0,0.1,consistent,,,consistent,,"


@pytest.mark.slow
def test_a_stopped_record_goes_on_where_it_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "RECORDED", ("vllm-fp16",))
    monkeypatch.setattr(plan, "EDIT_SEED", 1306)  # of the third record: no planned dump is looked at before its time
    record = tmp_path / "record.csv"
    arguments = program.parsed(["--make", "recorded", "--record", str(record)])
    program.main(arguments)
    whole = record.read_text().splitlines()
    assert len(whole) == 1 + len(sound.EDITS) + sum(map(len, edits.SIZES.values()))
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
        row("head", 0.2, "unknown", "", "b"),
        row("head", 0.2, "fault", "prompt", "b", 1202),
        row("head", 0.2, "fault", "mask", "a", 1203),
        row("rope", 50, "fault", "layer", "b"),
        row("penalty", 1, "consistent"),
    )
    record.write_text("\n".join((HEAD, *rows)) + "\n")
    frame = read(record)
    assert frame["right"].to_list() == [True, False, True, False, True, True, False, True, False]
    counted = aims(frame).set_index("dumps")
    assert counted["number"].to_list() == [2, 2, 3, 1] and counted["right"].to_list() == [1, 1, 2, 1]
    assert counted["bare"].to_list() == counted["plain"].to_list() == [0, 2, 0, 0]
    table = matrix(frame).set_index("injected")
    assert table.loc["clean", "right"] == "1/2" and table.loc["clean", "wrong answers"] == "stale 1"
    assert table.loc["top_p", "sizes"] == "0.95, 0.9" and table.loc["top_p", "right"] == "1/1, 0/1"
    assert table.loc["head (left out)", "right"] == "2/3" and table.loc["rope", "right"] == "1/1"


def test_a_record_that_is_not_there_names_the_remedy(tmp_path):
    with pytest.raises(UserError, match="--make"):
        read(tmp_path / "record.csv")


def test_the_plan_is_of_fresh_seeds_and_large_enough():
    judged = {*plan.CHAIN, *plan.MICRO_BATCHES, *plan.RUNS, *plan.SMOLLM2, *plan.VLLM, plan.EDIT_SEED}
    assert not judged & set(plan.SPENT)
    runs, draws = len(plan.RUNS) * len(clean.ARMS) * len(clean.STEPS), len(plan.CHAIN) * len(clean.PRECISIONS) * plan.DRAWS
    assert runs + draws >= 200
    assert len(SIZES.keys() - plan.HELD_OUT.keys()) >= 15 and real.SIZES.keys() >= plan.HELD_OUT.keys()
    assert all(sizes == (plan.middle(real.SIZES[fault]),) for fault, sizes in in_vllm.SIZES.items())
    assert all(real.SIZES[fault] != sizes for fault, sizes in plan.REPLANNED.items())


def test_a_faulty_engine_attends_to_its_window():
    config = parse(compose(*clean.BASE, "run.root=unused", "model.hidden_size=32", "model.num_hidden_layers=1"))
    shape = policy_config(config.model, build_task(config))
    engine = real.Windowed(shape, real.formats("fp32"))
    engine.window = 2
    hidden = engine._hidden(3, 1, None)  # the query at place 3 sees places 2 and 3
    assert hidden[0, 0, :, 0].tolist() == [True, True, False, False]
    first = engine._hidden(0, 3, None)[0, 0]  # rows are places, columns queries
    assert first[:, :3].tolist() == [[False, False, True], [True, False, False], [True, True, False]]


def test_a_key_is_written_as_it_is_read():
    assert str(Key("run", "clean", 6, "moe_r3", 1201)) == "run clean 6 moe_r3 1201"


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


@pytest.fixture(scope="module")
def bed(tmp_path_factory):
    root = tmp_path_factory.mktemp("faults")
    small = (
        "model.hidden_size=32",
        "model.num_hidden_layers=1",
        "warmstart.steps=20",
        "warmstart.keep_low=0",
        "warmstart.keep_high=1",
    )
    return real.Bed(parse(compose(*clean.BASE, f"run.root={root}", *small)), 16, seed=1)


def test_a_cut_leaves_only_the_likeliest_token_when_it_is_total(bed):
    first = bed.cut("fp32", 0.999999)
    bed.uniforms = bed.draw("others")
    assert torch.equal(bed.cut("fp32", 0.999999).tokens, first.tokens)  # whatever is drawn, one token is left
    assert not torch.equal(bed.cut("fp32", 1e-9).tokens, first.tokens)


def test_an_old_head_is_the_sampler_s_alone(bed):
    own = bed.sampled(bed.engine("fp32"))
    head = bed.net.get_output_embeddings().weight
    same = bed.sampled(bed.old_head("fp32", head))
    assert torch.equal(same.tokens, own.tokens) and torch.equal(same.logp_rollout, own.logp_rollout)
    other = bed.sampled(bed.old_head("fp32", 2 * head))
    assert (other.logp_rollout - other.logp_old).abs().max() > 0.1


def test_a_bias_favours_a_token_in_use(bed):
    bed.uniforms = bed.draw("honest")
    honest = bed.sampled(bed.engine("fp32")).tokens
    biased = real.CASES["bias"](bed, 20.0, "fp32").tokens  # e^20 times the odds: nothing else is drawn
    favoured = biased.unique()
    assert set(favoured.tolist()) < set(honest.unique().tolist())


def dump() -> sound.Columns:
    """Two responses of three tokens and one, without a fault."""
    mask = torch.tensor([[True, True, True], [True, False, False]])
    logp = torch.tensor([[-0.1, -0.2, -0.3], [-0.7, 0.0, 0.0]])
    tokens = torch.where(mask, torch.tensor([[1, 2, 3], [4, 0, 0]]), -1)
    return sound.Columns(Batch(logp, mask, logp + 0.01, prompt=torch.tensor([0, 0])), tokens, -logp, 0.1 * mask)


@pytest.mark.parametrize("kind", sound.EDITS)
def test_an_edit_of_a_sound_dump_keeps_every_token_s_pair(kind):
    own, new = dump(), sound.EDITS[kind](dump(), torch.Generator().manual_seed(1))
    width = {"stored_bf16": 3, "stored_fp16": 3, "certain": 6, "near_certain": 6, "turns": 8}[kind]
    assert new.batch.mask.shape == new.tokens.shape == new.entropy.shape == (2, width)
    for row in range(2):
        n, mask = int(own.batch.mask[row].sum()), new.batch.mask[row]
        assert torch.equal(new.tokens[row][mask][:n], own.tokens[row, :n])
        for name in ("logp_rollout", "logp_old"):
            was, is_ = getattr(own.batch, name)[row, :n], getattr(new.batch, name)[row][mask]
            if kind.startswith("stored"):
                dtype = {"stored_bf16": torch.bfloat16, "stored_fp16": torch.float16}[kind]
                assert torch.equal(is_, is_.to(dtype).float()) and not torch.equal(is_, was)
            else:
                assert torch.equal(is_[:n], was)
            if "certain" in kind:
                assert 1 <= len(is_) - n <= 3 and is_[n:].unique().tolist() == pytest.approx([0 if kind == "certain" else -1e-6])
    again = repeated(new.tokens) & new.batch.mask  # of the added tokens, which are certain, all but the first
    assert torch.equal(again, new.batch.mask & (new.repeat_prob == 1)) and bool(again.any()) == (
        kind in ("certain", "near_certain")
    )
    if kind == "turns":
        gap = ~new.batch.mask[0, : int(new.batch.mask[0].nonzero().max())]
        assert 1 <= int(gap.sum()) <= 5 and new.batch.mask[0, 0] and (new.tokens[0][: len(gap)][gap] > 4).all()


def test_plain_is_without_ids_entropies_baseline_and_advantages(monkeypatch):
    asked = []
    real_one = program.diagnose
    monkeypatch.setattr(program, "diagnose", lambda batch, **given: asked.append((batch, given)) or real_one(batch, **given))
    own = dump()
    batch = own.batch._replace(advantages=torch.ones(2, 3))
    made = Made(Key("run", "clean", 0, "trainer_bf16_none_fp8_tensor", 1), batch, own.tokens, None, own.entropy, 0.1)
    assert program.judged(made).keys() == set(program.FIELDS)
    plain, given = asked[-1]
    assert plain.advantages is None and given == {"usual": "fp8_tensor", "lag": None}


def test_the_kinds_of_sound_dumps_are_planned():
    keys = []
    config = parse(compose(*clean.BASE, "run.root=unused"))
    assert not list(inject.chain(config.path, lambda key: keys.append(key)))  # none is wanted, so none is made
    sources = {key.source for key in keys if key.fault == "clean"}
    assert sources == {"chain", "chain-micro_batches", *(f"chain-{kind}" for kind in sound.EDITS)}
    faults = {key.fault for key in keys if key.source == "chain-micro_batches"} - {"clean"}
    assert faults == real.SIZES.keys() - {"bos", "template", "eos", "prompt_in_mask", "top_k"}  # top_k: the middle is 20
    assert not {key.seed for key in keys} & set(plan.SPENT)


def test_a_bf16_trainer_gives_equal_responses_other_values_in_other_micro_batches(bed):
    """The local engine gives a response the same values in every batch. Split sums do not."""
    other = real.MicroBatchBed(bed.config, 16, seed=1)
    tokens = bed.honest("bf16").tokens[:1].expand(16, -1)
    prompts = bed.prompts[:1].expand(16, -1)
    alone = real.score(other.engine("bf16"), prompts[:1], tokens[:1])[0]
    whole = real.score(other.engine("bf16"), bed.prompts, torch.cat([tokens[:1], bed.honest("bf16").tokens[1:]]))[0]
    assert torch.equal(whole[:1], alone)
    assert len(other.score(other.trainer, prompts, tokens)[0].unique(dim=0)) > 1


def test_a_bf16_trainer_scores_every_response_once_in_its_place(bed):
    other = real.MicroBatchBed(bed.config, 16, seed=1)
    drawn = other.scored(bed.honest("bf16"))
    exact = real.score(bed.trainer, bed.prompts, drawn.tokens)[0]
    assert (drawn.logp_old - exact).abs().max() < 0.1 and not torch.equal(drawn.logp_old, exact)


def test_the_picture_shows_each_sound_dump_and_each_bug_of_the_mean_ratio():
    """A K3 of 0 stands at the left edge. Faults that leave the mean ratio as it is are not drawn. Toys are left of SmolLM2."""
    rows = [
        ("chain", "clean", 0.0, 0.5), ("run", "clean", 3e-2, -1.0), ("vllm-chain", "raw_logprobs", 2e-2, 9.0),
        ("chain", "stale", 1e-3, 0.1), ("vllm", "top_k", 1e-3, -20.0), ("long/vllm-int8-turns", "clean", 1e-3, 2.0),
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["source", "fault", "k3", "z"]).assign(precision="bf16")
    drawn = [[[tuple(point) for point in line.get_xydata()] for line in axis.lines] for axis in picture(frame).axes]
    assert drawn == [[[(LEAST, 0.5), (3e-2, -1.0)], [(2e-2, 9.0)], []], [[(1e-3, 2.0)], [], [(1e-3, -20.0)]]]
    titles = [axis.get_title(loc="left") for axis in picture(frame).axes]
    assert titles == ["toy policies: 2 without a bug, 1 with", "SmolLM2-135M: 1 without a bug, 1 with"]
