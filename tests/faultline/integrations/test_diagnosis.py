"""The line that a hook prints: what is found, what to check in that program, and no terminal codes."""

import pytest
import torch

from algos.batch import Batch
from faultline.integrations.diagnosis import check_intervals, print_diagnosis
from faultline.tools.replay.effect import padded
from faultline.tools.replay.example import example
from faultline.tools.replay.sources import Dump
from harness.errors import UserError


def test_a_batch_is_diagnosed_in_one_line(capsys):
    """The shipped FP8 dump, and the same with its columns exchanged."""
    (batch,) = map(padded, Dump(example("fp8")).batches())
    print_diagnosis("verl", 7, batch, None)
    print_diagnosis("verl", 8, batch._replace(logp_rollout=batch.logp_old, logp_old=batch.logp_rollout), None)
    sound, swapped = capsys.readouterr().out.splitlines()
    assert sound.startswith("faultline: step 7: consistent mean ratio 1.0005 ")
    assert swapped.startswith("faultline: step 8: FAULT swapped: ")
    assert swapped.endswith("; check rollout_log_probs against old_log_probs in the dump")


def test_log_probabilities_above_0_are_named(capsys):
    """Replay refuses such rows. One token in the trainer's column, and all in the sampler's with their sign lost.

    Rounding of fp32 logits leaves 4e-6 at most: the spacing of fp32 between 32 and 64.
    """
    (batch,) = map(padded, Dump(example("fp8")).batches())
    one = batch.logp_old.clone()
    one[5, 0] = 0.5
    print_diagnosis("verl", 1, batch._replace(logp_old=one), None)
    print_diagnosis("verl", 2, batch._replace(logp_rollout=-batch.logp_rollout), None)
    print_diagnosis("verl", 3, batch._replace(logp_old=torch.where(batch.logp_old > -1e-4, 4e-6, batch.logp_old)), None)
    trainer, rollout, rounded = capsys.readouterr().out.splitlines()
    assert trainer.startswith("faultline: step 1: FAULT fill: 0.01% of the trainer's log-probabilities are above 0")
    assert rollout.startswith("faultline: step 2: FAULT fill: ") and "of the rollout's log-probabilities are above 0" in rollout
    assert rounded.startswith("faultline: step 3: consistent")


def test_equal_columns_are_not_tested(capsys):
    (batch,) = map(padded, Dump(example("fp8")).batches())
    print_diagnosis("TRL", 4, batch._replace(logp_old=batch.logp_rollout), None)
    assert capsys.readouterr().out.startswith("faultline: step 4: NOT TESTED every ratio is exactly 1")


def test_a_batch_without_tokens_prints_nothing(capsys):
    none = torch.zeros(2, 3)
    print_diagnosis("TRL", 0, Batch(none, none.bool(), none), None)
    assert capsys.readouterr().out == ""


def test_an_interval_below_one_is_refused():
    check_intervals(every=1, diagnose=None)
    with pytest.raises(UserError, match="diagnose=0: give a whole number of at least 1"):
        check_intervals(every=1, diagnose=0)
