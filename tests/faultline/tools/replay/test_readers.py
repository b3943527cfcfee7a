"""Dumps of other programs, written as those programs write them."""

import copyreg
import io
import json
import pickle
import sys
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from faultline.integrations import trl as trl_hook
from faultline.integrations import verl as verl_hook
from faultline.tools.replay import readers
from faultline.tools.replay.sources import Dump
from harness.errors import UserError

MASK = np.array([[1, 1, 0], [1, 1, 1]])
OLD = np.array([[-1.0, -0.5, 0.0], [-2.0, -0.25, -0.125]], dtype=np.float32)
ROLLOUT = np.array([[-1.5, -0.5, 0.0], [-1.0, -0.5, -0.125]], dtype=np.float32)
ADVANTAGES = np.array([[1.0, 1.0, 0.0], [-1.0, -1.0, -1.0]], dtype=np.float32)


def only(path):
    (batch,) = Dump(path).batches()
    return batch


def check(batch, step=12):
    """The arrays above without their padding."""
    used = MASK.astype(bool)
    np.testing.assert_array_equal(batch.offsets, [0, 2, 5])
    np.testing.assert_array_equal(batch.logp_old, OLD[used])
    np.testing.assert_array_equal(batch.logp_rollout, ROLLOUT[used])
    np.testing.assert_array_equal(batch.advantages, ADVANTAGES[used])
    assert set(batch.step) == {step}


def test_verl(tmp_path):
    """The tensors of DataProto.batch; names of verl 0.9.1's ray_trainer.py."""
    tensors = {
        "responses": torch.ones(2, 3, dtype=torch.long),
        "response_mask": torch.tensor(MASK),
        "old_log_probs": torch.tensor(OLD),
        "rollout_log_probs": torch.tensor(ROLLOUT),
        "advantages": torch.tensor(ADVANTAGES),
        "token_level_scores": torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.5]]),
        "entropys": torch.full((2, 3), 0.5),
    }
    torch.save(tensors, tmp_path / "step_12.pt")
    batch = only(tmp_path / "step_12.pt")
    check(batch)
    assert batch.entropy.tolist() == [0.5] * 5
    np.testing.assert_array_equal(batch.reward, [1.0, 0.5])
    del tensors["rollout_log_probs"]
    torch.save(tensors, tmp_path / "step_13.pt")
    with pytest.raises(UserError, match=r"verl's rollout_log_probs missing .*calculate_log_probs=True"):
        only(tmp_path / "step_13.pt")


def test_a_parquet_file_with_the_names_of_verl(tmp_path):
    """Padded rows as pandas writes them: masks of 0 and 1 in int64, which need not end with the response."""
    columns = {"response_mask": MASK, "old_log_probs": OLD, "rollout_log_probs": ROLLOUT, "advantages": ADVANTAGES}
    columns["entropys"] = np.full(OLD.shape, 0.5)
    table = {name: pa.array(values.tolist()) for name, values in columns.items()} | {"step": pa.array([12, 12])}
    pq.write_table(pa.table(table), tmp_path / "d.parquet")
    batch = only(tmp_path / "d.parquet")
    np.testing.assert_array_equal(batch.mask, MASK.astype(bool).ravel())
    np.testing.assert_array_equal(batch.logp_old, OLD.ravel())
    np.testing.assert_array_equal(batch.logp_rollout, ROLLOUT.ravel())
    assert set(batch.entropy) == {0.5}
    assert set(batch.step) == {12}
    own = table | {"logp_old": pa.array((OLD - 1).tolist())}
    pq.write_table(pa.table(own), tmp_path / "own.parquet")
    np.testing.assert_array_equal(only(tmp_path / "own.parquet").logp_old, (OLD - 1).ravel())  # our own name comes first


def test_a_file_of_neither_verl_nor_trl_is_called_neither(tmp_path):
    torch.save({"weight": torch.zeros(2, 3)}, tmp_path / "model.pt")
    with pytest.raises(UserError, match=r"no name of verl's DataProto.batch or of TRL's inputs \(found weight\)"):
        only(tmp_path / "model.pt")
    torch.save({"response_mask": torch.tensor(MASK)}, tmp_path / "half.pt")
    with pytest.raises(UserError, match="verl's rollout_log_probs, old_log_probs missing"):
        only(tmp_path / "half.pt")


@pytest.mark.parametrize("mask", ["response_mask", "completion_mask"])
def test_a_missing_mask_gets_its_own_remedy(tmp_path, mask):
    """No setting of verl or TRL brings a mask that the dictionary of tensors lacks."""
    names = {
        "response_mask": ("rollout_log_probs", "old_log_probs"),
        "completion_mask": ("sampling_per_token_logps", "old_per_token_logps"),
    }
    torch.save(dict(zip(names[mask], map(torch.tensor, (ROLLOUT, OLD)), strict=True)), tmp_path / "own.pt")
    with pytest.raises(UserError, match=f"{mask} missing .*; save {mask} too, 1 on the response tokens") as error:
        only(tmp_path / "own.pt")
    assert "calculate_log_probs" not in str(error.value) and "vllm_importance" not in str(error.value)
    torch.save({names[mask][0]: torch.tensor(ROLLOUT)}, tmp_path / "half.pt")
    with pytest.raises(UserError, match=f"{mask}, .* missing .*; save {mask} too, .*; .*=True"):
        only(tmp_path / "half.pt")


def test_a_broken_tensor_file_is_called_broken(tmp_path):
    """Cut in half, and no file of torch.save at all. Torch's own message would advise to run what the file names."""
    torch.save({"response_mask": torch.zeros(200, 300)}, tmp_path / "whole.pt")
    whole = (tmp_path / "whole.pt").read_bytes()
    for name, content in {"half.pt": whole[: len(whole) // 2], "text.pt": b"log-probabilities", "empty.pt": b""}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError) as refused:
            only(tmp_path / name)
        assert str(refused.value) == (
            f"{tmp_path / name}: is no whole file of torch.save; save a dictionary of tensors as docs/replay.md says"
        )


def test_trl(tmp_path):
    """The dictionary of GRPOTrainer._generate_and_score_completions, TRL 1.16.0: advantages are one per response."""
    tensors = {
        "completion_ids": torch.ones(2, 3, dtype=torch.long),
        "completion_mask": torch.tensor(MASK),
        "old_per_token_logps": torch.tensor(OLD),
        "sampling_per_token_logps": torch.tensor(ROLLOUT),
        "advantages": torch.tensor([1.0, -1.0]),
    }
    torch.save(tensors, tmp_path / "12.pt")
    check(only(tmp_path / "12.pt"))


def trl():
    return {
        "completion_mask": torch.tensor(MASK),
        "old_per_token_logps": torch.tensor(OLD),
        "sampling_per_token_logps": torch.tensor(ROLLOUT),
        "advantages": torch.tensor([1.0, -1.0]),
    }


def test_the_hook_for_verl_writes_what_replay_reads(tmp_path):
    """The hook needs only the tensors of a DataProto; the folder does not exist yet. tests/oracles has the real one."""
    tensors = {"response_mask": MASK, "old_log_probs": OLD, "rollout_log_probs": ROLLOUT, "advantages": ADVANTAGES}
    tensors = {name: torch.tensor(array) for name, array in tensors.items()}
    tensors |= {"responses": torch.ones(2, 3, dtype=torch.long), "token_level_scores": torch.zeros(2, 3), "unread": None}
    verl_hook.dump(types.SimpleNamespace(batch=tensors, non_tensor_batch={}), tmp_path / "dump", step=12)
    check(only(tmp_path / "dump"))


def test_the_hook_for_trl_writes_what_replay_reads(tmp_path):
    """Two ranks, each with two generations in step 12, one with tools, and an evaluation at the same step: four files, one batch.
    A stand-in for several ranks, whose attributes are those of TRL 1.16.0; tests/oracles has the real trainer."""
    entropy = torch.full((2, 3), 0.5)
    for rank in (0, 1):
        ranks = types.SimpleNamespace(process_index=rank, num_processes=2)
        trainer = types.SimpleNamespace(use_vllm=True, accelerator=ranks, num_generations=2)
        trainer.state = types.SimpleNamespace(global_step=12)
        trainer._get_per_token_logps_and_entropies = lambda model, compute_entropy=False: (None, entropy)
        tools = {"tool_mask": torch.tensor([[0, 1, 1], [1, 1, 1]])} if rank else {}

        def generated(inputs, trainer=trainer, tools=tools):
            trainer._get_per_token_logps_and_entropies(trainer.model)  # TRL scores what it generated
            return trl() | {name: torch.ones(2, 3).long() for name in ("completion_ids", "prompt_ids", "prompt_mask")} | tools

        trainer._generate_and_score_completions = generated
        trl_hook.record(trainer, tmp_path / "dump")
        for trainer._step, training in ((24, True), (25, True), (25, False)):
            trainer.model = types.SimpleNamespace(training=training)
            trainer._generate_and_score_completions([{}, {}])
    assert len(list((tmp_path / "dump").iterdir())) == 4
    batch = only(tmp_path / "dump")
    assert len(batch) == 8 and set(batch.step) == {12}
    np.testing.assert_array_equal(batch.mask, [*[True] * 5, False, *[True] * 4] * 2)  # by generation, then by rank
    np.testing.assert_array_equal(batch.group, [0, 0, 1, 1, 2, 2, 3, 3])  # two samples of a prompt on a rank
    assert set(batch.entropy) == {0.5}


@pytest.mark.parametrize("name", ["step_12_rank_3.pt", "global_step_12_of_2.pt", "20-12.pt"])
def test_the_step_is_the_number_after_that_word_else_the_last(tmp_path, name):
    torch.save(trl(), tmp_path / name)
    check(only(tmp_path))


def test_tensors_that_are_plain_but_for_their_kind_are_read(tmp_path):
    """With a gradient; in fp8, which numpy lacks: −1, −.5, 0 and the rest are exact in e4m3."""
    tensors = trl()
    tensors["old_per_token_logps"].requires_grad_()
    tensors["sampling_per_token_logps"] = tensors["sampling_per_token_logps"].to(torch.float8_e4m3fn)
    tensors["tool_mask"] = torch.tensor([[1, 0, 1], [1, 1, 1]])
    torch.save(tensors, tmp_path / "step_12.pt")
    batch = only(tmp_path)
    np.testing.assert_array_equal(batch.mask, [True, True, True, True])  # the second token was a tool's, and ended the response
    np.testing.assert_array_equal(batch.logp_rollout, np.delete(ROLLOUT[MASK.astype(bool)], 1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"old_per_token_logps": torch.tensor(OLD).to_sparse()}, r"old_per_token_logps is no plain tensor \(.*save its to_dense"),
        ({"completion_mask": torch.ones(3)}, r"completion_mask has shape \[3\]; save \[responses, tokens\]"),
        ({"completion_mask": torch.ones(2, 0)}, r"completion_mask has shape \[2, 0\]; save"),
        ({"old_per_token_logps": torch.zeros(2, 3, 1)}, r"old_per_token_logps has shape \[2, 3, 1\], completion_mask \[2, 3\]"),
        ({"advantages": torch.zeros(3)}, r"advantages has shape \[3\], completion_mask \[2, 3\]; save both of one batch"),
        ({"tool_mask": torch.ones(2, 4)}, r"tool_mask has shape \[2, 4\], completion_mask \[2, 3\]"),
        ({"old_per_token_logps": torch.zeros(2, 3, dtype=torch.long)}, "old_per_token_logps holds int64; save it as floats"),
        ({"completion_ids": torch.tensor([[0.5, 1, 0]] * 2)}, "completion_ids holds float32; save it as integers"),
        ({"tool_mask": torch.tensor([[1, np.nan, 1], [1, 1, 1]])}, "row 0, column mask: nan at token 1 is neither 0 nor 1"),
        ({"completion_mask": torch.tensor([[1, 1, 0], [1, 2, 1]])}, "row 1, column mask: 2 at token 1 is neither 0 nor 1"),
    ],
)
def test_tensors_of_another_shape_or_kind_are_refused(tmp_path, changed, message):
    torch.save(trl() | changed, tmp_path / "12.pt")
    with pytest.raises(UserError, match=f"12.pt[:,] {message}"):
        only(tmp_path)


def test_a_response_whose_mask_is_none_can_be_skipped(tmp_path):
    torch.save(trl() | {"completion_mask": torch.tensor([[1, 1, 0], [1, np.nan, 1]])}, tmp_path / "12.pt")
    dump = Dump(tmp_path, skip_bad=True)
    (batch,) = dump.batches()
    assert dump.bad == 1 and list(batch.offsets) == [0, 2]


def test_a_pt_file_that_holds_code_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return print, ("ran",)

    torch.save({"old_log_probs": Evil()}, tmp_path / "1.pt")
    with pytest.raises(UserError, match="holds more than tensors; save a dictionary of tensors"):
        only(tmp_path / "1.pt")


def test_prime_rl(tmp_path):
    """A line of token_exports/step_12/rank_0.jsonl, schema 1 of token_export.py: prompt and response in one, masked."""
    folder = tmp_path / "token_exports" / "step_12"
    folder.mkdir(parents=True)
    row = {
        "schema_version": 1,
        "step": 12,
        "token_ids": [5, 6, 7],
        "loss_mask": [False, True, True],
        "advantages": [0.5, 0.5, 0.5],
        "rewards": [None, None, 1.0],
        "inference_logprobs": [0.0, -1.5, -0.5],
        "trainer_logprobs": [0.0, -1.0, -0.5],
    }
    for rank in (0, 1):
        (folder / f"rank_{rank}.jsonl").write_text(json.dumps(row) + "\n")
    batch = only(tmp_path)  # both ranks hold parts of one step
    assert len(batch) == 2
    np.testing.assert_array_equal(batch.mask, [False, True, True] * 2)
    np.testing.assert_array_equal(batch.logp_old - batch.logp_rollout, [0.0, 0.5, 0.0] * 2)
    np.testing.assert_array_equal(batch.reward, [1.0, 1.0])
    (folder / "rank_2.jsonl").write_text(json.dumps(row | {"trainer_logprobs": [0.0, None, -0.5]}) + "\n")
    with pytest.raises(UserError, match=r"rank_2.jsonl, line 1, column logp_old: nan at token 1"):
        only(tmp_path)


def skyrl_pickle(tensors, metadata) -> bytes:
    """The bytes that SkyRL 0.3.0's TensorBatch.save gives: __reduce__ hands (class, state) to _rebuild_tensor_batch, the state
    holding each tensor as raw bytes; bfloat16, which numpy lacks, through torch.save."""
    module = types.ModuleType("skyrl.backends.skyrl_train.training_batch")
    batch = type("TrainingInputBatch", (dict,), {"__module__": module.__name__})
    rebuild = types.FunctionType((lambda cls, state: None).__code__, {}, "_rebuild_tensor_batch")
    rebuild.__module__, rebuild.__qualname__ = module.__name__, "_rebuild_tensor_batch"
    module.TrainingInputBatch, module._rebuild_tensor_batch = batch, rebuild

    def serialized(tensor):
        if tensor.dtype == torch.bfloat16:
            buffer = io.BytesIO()
            torch.save(tensor, buffer)
            return {"format": "torch", "data": buffer.getvalue()}
        array = tensor.numpy()
        return {"format": "numpy", "data": array.tobytes(), "shape": array.shape, "dtype": str(array.dtype)}

    state = {
        "batch_dict": {name: None if t is None else serialized(t) for name, t in tensors.items()},
        "batch_size": 3,
        "device": torch.device("cpu"),
        "metadata": metadata,
    }
    parts = module.__name__.split(".")
    packages = {".".join(parts[:n]): types.ModuleType("x") for n in range(1, len(parts))} | {module.__name__: module}
    sys.modules |= packages
    try:
        copyreg.pickle(batch, lambda it: (rebuild, (batch, state)))
        return pickle.dumps(batch())
    finally:
        del copyreg.dispatch_table[batch]
        for name in packages:
            del sys.modules[name]


def test_skyrl(tmp_path):
    """The layout of SkyRL 0.3.0's convert_prompts_responses_to_batch_tensors: padding, prompt, response, so that all responses
    end at the same place. Prompts are [9] and [7, 8]. Of three rows the last repeats one to fill the workers."""

    def rows(array):
        return torch.tensor(np.concatenate([array, array[:1]]))

    def right(array):
        """The first response, of two tokens, at the end of its row."""
        return np.stack([np.roll(array[0], 1), array[1]])

    tensors = {
        "sequences": rows(np.array([[0, 0, 9, 1, 2], [7, 8, 3, 4, 5]])),
        "attention_mask": rows(np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])),
        "loss_mask": rows(right(MASK).astype(np.float32)),
        "response_mask": rows(right(MASK)),
        "action_log_probs": rows(right(OLD)),
        "rollout_logprobs": rows(right(ROLLOUT)).to(torch.bfloat16),  # these values are exact in bfloat16
        "advantages": rows(right(ADVANTAGES)),
        "values": None,
    }
    metadata = {"pad_size": 1, "response_length": np.int64(3), "policy_prompt_boundaries": [(0, 1), (1, 2)]}
    path = tmp_path / "dumped_data" / "global_step_12_training_input.pkl"
    path.parent.mkdir()
    path.write_bytes(skyrl_pickle(tensors, metadata))
    batch = only(tmp_path)
    check(batch)
    np.testing.assert_array_equal(batch.tokens, [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(batch.group, [0, 1])
    table, problems = readers.tabulated(path, readers.read_skyrl(path))
    assert table["prompt"].to_pylist() == [[9], [7, 8]] and not problems
    path.write_bytes(skyrl_pickle(tensors, metadata | {"policy_prompt_boundaries": [(0, 2)]}))
    np.testing.assert_array_equal(only(tmp_path).group, [0, 0])
    path.write_bytes(skyrl_pickle(tensors | {"rollout_logprobs": None}, {}))
    with pytest.raises(UserError, match=r"SkyRL's rollout_logprobs missing .*logprobs=1"):
        only(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match="no whole SkyRL TrainingInputBatch"):
        only(path)


@pytest.mark.parametrize(
    ("changed", "metadata", "message"),
    [
        ({"loss_mask": torch.ones(3)}, {}, r"loss_mask has shape \[3\]; save \[responses, tokens\]"),
        ({"sequences": torch.ones(4)}, {}, r"sequences has shape \[3\], loss_mask \[2, 3\]"),
        ({}, [1], "no whole SkyRL TrainingInputBatch .*; set trainer.dump_data_batch=true"),
    ],
)
def test_skyrl_tensors_of_another_shape_are_refused(tmp_path, changed, metadata, message):
    tensors = {
        name: torch.tensor(a) for name, a in (("loss_mask", MASK), ("action_log_probs", OLD), ("rollout_logprobs", ROLLOUT))
    }
    (tmp_path / "1.pkl").write_bytes(skyrl_pickle(tensors | changed, metadata))
    with pytest.raises(UserError, match=f"1.pkl: {message}"):
        only(tmp_path)


def test_a_pickle_that_holds_code_is_not_run(tmp_path, capsys):
    class Evil:
        def __reduce__(self):
            return print, ("ran",)

    (tmp_path / "1.pkl").write_bytes(pickle.dumps({"batch_dict": {}, "metadata": {"pad_size": Evil()}}))
    with pytest.raises(UserError, match="missing"):
        only(tmp_path / "1.pkl")
    assert capsys.readouterr().out == ""
