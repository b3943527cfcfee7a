"""Bytes of live tensors, counted at the allocator of the CPU: what a GPU's allocator would hold, without its rounding."""

import copy
import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest.mock import patch

import torch
from deepspeed.comm.torch import TorchBackend
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import AutoModelForCausalLM

from harness.memory import shape_of
from harness.tasks import PAD
from harness.train.model import head
from harness.train.model.actor import DeepSpeedActor

MARK = "phase: "
COLLECTIVES = ("all_reduce", "all_gather_into_tensor", "broadcast", "reduce_scatter_tensor")
"""The collectives that DeepSpeed calls here."""


class Phase(NamedTuple):
    """Live bytes when it began, at its peak, and when it ended. largest: one allocation."""

    start: int
    peak: int
    end: int
    largest: int


def on_one_rank(collective: Callable) -> Callable:
    """The collective on one rank: its input, if it has one, is its output.

    Gloo makes a copy of its own, which its thread frees. The profiler would now and then not see that.
    """

    @functools.wraps(collective)
    def called(*args, **kwargs):
        output, *inputs = (given for given in (*args, *kwargs.values()) if isinstance(given, torch.Tensor))
        for part in inputs:
            output.copy_(part.view_as(output))
        done: torch.futures.Future = torch.futures.Future()
        done.set_result(None)
        return done

    return called


@contextmanager
def count_bytes() -> Iterator[dict[str, Phase]]:
    """Counts what this thread allocates within. Fills the phases, marked by `phase`, when it ends."""
    phases: dict[str, Phase] = {}
    gc.collect()  # an engine of before, freed within, would count below zero
    enabled = gc.isenabled()
    gc.disable()  # in another thread it would free what is counted here, and the profiler would not see that
    alone = {name: on_one_rank(getattr(TorchBackend, name)) for name in COLLECTIVES}
    try:
        with patch.multiple(TorchBackend, **alone), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            yield phases
    finally:
        if enabled:
            gc.enable()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    marks = sorted((event.start_ns(), event.end_ns(), event.name()) for event in events if event.name().startswith(MARK))
    live, at = 0, 0
    for begin, end, name in marks:
        while at < len(changes) and changes[at][0] < begin:
            live, at = live + changes[at][1], at + 1
        start = peak = live
        largest = 0
        while at < len(changes) and changes[at][0] <= end:
            live, at = live + changes[at][1], at + 1
            peak, largest = max(peak, live), max(largest, changes[at - 1][1])
        phases[name.removeprefix(MARK)] = Phase(start, peak, live, largest)


def phase(name: str) -> record_function:
    """A context whose bytes `count_bytes` tells under this name. What is garbage when it begins is freed."""
    gc.collect()
    return record_function(MARK + name)


def tokens(config, rows: int, vocabulary: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts and responses of the config's lengths. The first begins later than the others, so that rows are padded."""
    generator = torch.Generator().manual_seed(seed)
    prompts, answers = (
        torch.randint(0, vocabulary, (rows, n), generator=generator) for n in (config.task.max_prompt, config.task.answer_length)
    )
    prompts[0, :2] = PAD
    return prompts, answers


def measure(config, rows: int, chunk: int) -> dict[str, Phase]:
    """Two micro-batches of `rows` rows a step. Of the second step: their forward and backward passes, the optimizer's step, and
    reading the weights. chunk: the head's logits at a time."""
    head.CHUNK["cpu"] = chunk
    shape = shape_of(config)
    net = AutoModelForCausalLM.from_config(shape, dtype=torch.float32, attn_implementation="sdpa")
    with count_bytes() as phases:
        with phase("build"):
            actor = DeepSpeedActor(copy.deepcopy(net), config.actor)
        for step in range(2):
            for half in range(2):
                batch = tokens(config, rows, shape.vocab_size, 2 * step + half)
                with phase(f"forward {half}"):
                    logp, entropy = actor.logp(*batch)
                loss = -logp.mean()
                if config.entropy_coeff:  # as in the objective: an entropy that no loss reads has no gradient
                    loss = loss - config.entropy_coeff * entropy.mean()
                with phase(f"backward {half}"):
                    actor.backward(loss, last=half == 1)
                del logp, entropy, loss
            with phase("step"):
                actor.step()
        with phase("sync"):
            for _ in actor.weights():
                pass
        with phase("end"):
            pass
    return phases
