"""The dumps of the plan, one at a time: runs without a fault, real faults in a policy, and edits of dumps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from algos.batch import Batch
from experiments.faults import clean, edits, plan, real
from experiments.faults.read import batch as read
from harness.compose import compose
from harness.config import Config, parse

SMOLLM2 = Path(__file__).parents[1] / "study" / "smollm2"
STALE = {k: (f"rollout.staleness={k}", "actor.lr=1e-3") for k in (1, 4, 8)}
"""Number of syncs that the sampler's weights lag -> overrides of a run whose dumps do not record the lag."""


class Key(NamedTuple):
    """Name of a planned dump. fault: "clean" for none. size: the fault's size; for a clean run, the training step."""

    source: str
    fault: str
    size: float
    precision: str
    seed: int

    def __str__(self) -> str:
        return f"{self.source} {self.fault} {self.size:g} {self.precision} {self.seed}"


class Made(NamedTuple):
    """A dump as a batch. tokens [B, T]: ids. lag [B, T]: number of versions that each token's weights are known to be behind."""

    key: Key
    batch: Batch
    tokens: torch.Tensor | None = None
    lag: torch.Tensor | None = None


Wanted = Callable[[Key], bool]
"""Function that says whether the dump with a key is to be made."""


def recorded(wanted: Wanted) -> Iterator[Made]:
    """Generate edits of recorded dumps of SmolLM2."""
    for name in plan.RECORDED:
        own = read(SMOLLM2 / f"{name}.parquet")[0]
        precision = name.rpartition("-")[2]
        for fault, sizes in edits.SIZES.items():
            for size in sizes:
                if wanted(key := Key(name, fault, size, precision, plan.EDIT_SEED)):
                    yield Made(key, edits.edited(own, fault, size, key.seed))


def chain(folder: Path, wanted: Wanted) -> Iterator[Made]:
    """Generate dumps of a small policy on the chain task with every fault at every size, real or edited into a dump."""
    for seed, shape in plan.CHAIN.items():
        config = parse(compose(*clean.BASE, f"run.root={folder}", f"seed={seed}", f"task.length={shape.tokens}"))
        cases = [("clean", 0.0), *((fault, size) for fault, sizes in real.SIZES.items() for size in sizes)]
        cases = [(fault, size) for fault, size in cases if real.possible(fault, size, config)]
        edited = [(fault, size) for fault, sizes in edits.SIZES.items() if fault not in real.SIZES for size in sizes]
        bed = None
        for precision in plan.SAMPLERS:
            for fault, size in (*cases, *edited):
                if wanted(key := Key("chain", fault, size, precision, seed)):
                    bed = bed or real.Bed(config, shape.responses, seed)
                    yield _case(bed, key) if (fault, size) in cases else _edit(bed, key)


def smollm2(model: str, wanted: Wanted) -> Iterator[Made]:
    """Generate dumps of SmolLM2 with each real fault at its middle size."""
    for seed, shape in plan.SMOLLM2.items():
        config = parse(
            compose("+experiment=smollm2/bf16", "tracking=disabled", f"task.answer_length={shape.tokens}", f"model.path={model}")
        )
        bed = None
        for fault, size in [("clean", 0.0), *((fault, plan.middle(sizes)) for fault, sizes in real.SIZES.items())]:
            if wanted(key := Key("smollm2", fault, size, "bf16", seed)):
                bed = bed or real.Bed(config, shape.responses, seed)
                yield _case(bed, key)


def runs(folder: Path, wanted: Wanted) -> Iterator[Made]:
    """Generate the dumps of runs without a fault, one per dumped training step, and the last dumps of runs with old weights."""
    for seed in plan.RUNS:
        for k, overrides in STALE.items():
            if wanted(key := Key("run", "stale", k, "fp8_tensor", seed)):
                own, _, tokens = read(
                    _dumps(clean.config(folder, "fp8_tensor", seed, *overrides, f"run.sweep={seed}-old-{k}"))[-1]
                )
                yield Made(key, own, tokens)
        for arm in clean.ARMS:
            keys = [Key("run", "clean", step, arm, seed) for step in clean.STEPS]
            if any(map(wanted, keys)):
                for key, path in zip(keys, _dumps(clean.config(folder, arm, seed)), strict=True):
                    if wanted(key):
                        own, versions, tokens = read(path)
                        late = versions is not None and (arm.startswith("staleness") or arm == "partial")
                        yield Made(key, own, tokens, 1 + versions.max() - versions if late else None)


def _case(bed: real.Bed, key: Key) -> Made:
    drawn = bed.case(key.fault, key.size, key.precision)
    return Made(key, bed.batch(drawn), drawn.tokens)


def _edit(bed: real.Bed, key: Key) -> Made:
    honest = bed.batch(bed.case("clean", 0, key.precision))
    return Made(key, edits.edited(honest, key.fault, key.size, key.seed))


def _dumps(config: Config) -> list[Path]:
    """Train a run, unless it has ended, and return its dumps in the order of their steps."""
    from harness.run.loop import train

    train(config)
    return sorted(config.path.glob("dumps/*.parquet"), key=lambda path: int(path.stem.rpartition("-")[2]))
