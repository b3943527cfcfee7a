"""One RL step of SmolLM2, fp32, against TRL's GRPOTrainer, on 64 responses of 64 tokens each.

Each side trains the same weights in fp32 by GRPO with one optimizer step per batch. Each runs in a process of its own, so that
its peak memory is its own. No response ends early. TRL trains on its whole batch at once, its default; the run uses
micro-batches.
"""

import json
import resource
import subprocess
import sys
import tempfile
from functools import partial
from unittest.mock import patch

from benchmarks.measure import line, timed

NEEDS = ("smollm2", "trl")
STEPS, PROMPTS, GROUP, LENGTH = 1, 16, 4, 64
OVERRIDES = ("+experiment=smollm2/base", "rollout/precision=fp32", f"task.answer_length={LENGTH}", f"rollout.prompts={PROMPTS}",
             f"rollout.group_size={GROUP}")  # fmt: skip


def main(who: str = "") -> None:
    if who:
        return measure(who)
    taken = {}
    for who in ("ours", "trl"):
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks", "smollm2", who]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        taken[who] = json.loads(done.stdout.splitlines()[-1])
    (ours, memory), (theirs, more) = taken.values()
    print(line("time", ours, "TRL", theirs))
    print(f"  peak of the process {memory / 2**30:.2f} GiB, TRL's {more / 2**30:.2f} GiB: {memory / more:.2f} of it")


def measure(who: str) -> None:
    """Measure one side: print the seconds of each step and this process's peak memory in bytes, as JSON."""
    from benchmarks.steps import trainer
    from harness.compose import compose
    from harness.config import parse
    from harness.tasks.text import Text

    if who == "trl":
        seconds = _trl(parse(compose(*OVERRIDES)))
    else:
        endless = property(lambda task: (), lambda task, tokens: None)  # no token ends a response
        with (
            tempfile.TemporaryDirectory() as root,
            patch.object(Text, "stop", endless, create=True),
            trainer(root, *OVERRIDES) as run,
        ):
            seconds = [timed(partial(run.step, step)) for step in range(1, STEPS + 1)]
    print(json.dumps([seconds, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))


def _trl(config) -> list[float]:
    from benchmarks.trl import grpo
    from harness.build import build_task
    from harness.models import hub_model, hub_tokenizer
    from harness.tasks import PAD

    tokenizer = hub_tokenizer(config.model)
    prompts = [tokenizer.decode(row[row != PAD]) for row in build_task(config).prompts()]

    def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
        assert all(len(ids) == LENGTH for ids in completion_ids)
        return [len(set(ids)) / LENGTH for ids in completion_ids]  # any reward that differs within a group

    return list(grpo(hub_model(config.model), config, reward, tokenizer, prompts, LENGTH, STEPS).values())
