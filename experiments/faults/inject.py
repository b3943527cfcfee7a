"""Generators of the dumps in `plan`: runs without a fault, real faults in a sampler or trainer, and edits of dumps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from algos.batch import Batch
from experiments.faults import clean, edits, plan, real, sound
from experiments.faults import vllm as in_vllm
from experiments.faults.read import batch as read
from harness.compose import compose
from harness.config import Config, parse
from harness.seeding import generator

SMOLLM2 = Path(__file__).parents[1] / "study" / "smollm2"
STALE = {k: (f"rollout.staleness={k}", "actor.lr=1e-3") for k in (1, 4, 8)}
"""Config overrides of runs with old rollout weights, by the number of syncs that they lag, which the diagnosis is not told."""
IN_VLLM = ("rollout/engine=vllm", "rollout/precision=bf16", "rollout.engine.kv_cache_gib=0.25")
"""Config overrides of a run whose responses vLLM samples."""


class Key(NamedTuple):
    """Key of a planned dump. fault: "clean" for none. size: the fault's size; if "clean", the training step or sample number."""

    source: str
    fault: str
    size: float
    precision: str
    seed: int

    def __str__(self) -> str:
        return f"{self.source} {self.fault} {self.size:g} {self.precision} {self.seed}"


class Made(NamedTuple):
    """A planned dump as a batch [B, T]. tokens: ids. lag: number of weight versions by which each token's sampler lagged.

    entropy: that of the trainer's policy π_old at each token, in nats. repeat_prob: π_old of all tokens that the response already
    has. lag, tokens, entropy and repeat_prob are None if unknown. baseline: K3 of another dump without a fault, of the same
    policy in the same precision.
    """

    key: Key
    batch: Batch
    tokens: torch.Tensor | None = None
    lag: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    baseline: float | None = None
    repeat_prob: torch.Tensor | None = None


Wanted = Callable[[Key], bool]
"""Function that says, by the key of a planned dump, whether to make the dump."""


def recorded(wanted: Wanted) -> Iterator[Made]:
    """Generate the wanted edits of the recorded dumps of SmolLM2: every edited fault at every size of `edits.SIZES`."""
    for name in plan.RECORDED:
        own, _, tokens = read(SMOLLM2 / f"{name}.parquet")
        precision = name.rpartition("-")[2]
        for fault, sizes in edits.SIZES.items():
            for size in sizes:
                if wanted(key := Key(name, fault, size, precision, plan.EDIT_SEED)):
                    yield Made(key, edits.edited(own, fault, size, key.seed))
        for kind in sound.EDITS:
            if wanted(key := Key(f"{name}-{kind}", "clean", 0.0, precision, plan.EDIT_SEED)):
                yield _sound(kind, Made(key, own, tokens))


def chain(folder: Path, wanted: Wanted) -> Iterator[Made]:
    """Generate the wanted dumps of a toy policy: without a fault, and with every fault of `real` and `edits` at every size."""
    for seed, shape in plan.CHAIN.items():
        config = _chain(folder, seed, shape)
        cases = [(fault, size) for fault, sizes in real.SIZES.items() for size in sizes]
        cases = [(fault, size) for fault, size in cases if real.possible(fault, size, config)]
        edited = [(fault, size) for fault, sizes in edits.SIZES.items() if fault not in real.SIZES for size in sizes]
        draws = [("clean", float(draw)) for draw in range(plan.DRAWS)]
        bed = None
        for precision in clean.PRECISIONS:
            for fault, size in (*draws, *(cases + edited if precision in plan.SAMPLERS else ())):
                if wanted(key := Key("chain", fault, size, precision, seed)):
                    bed = bed or real.Bed(config, shape.responses, seed)
                    yield _edit(bed, key) if (fault, size) in edited else _case(bed, key)
            for kind in sound.EDITS if precision in plan.SAMPLERS else ():
                if wanted(key := Key(f"chain-{kind}", "clean", 0.0, precision, seed)):
                    bed = bed or real.Bed(config, shape.responses, seed)
                    yield _sound(kind, _case(bed, key))
    yield from _micro_batches(folder, wanted)


def _micro_batches(folder: Path, wanted: Wanted) -> Iterator[Made]:
    """Generate the wanted dumps of a toy policy whose trainer is in BF16: no fault, and real faults at their middle size."""
    for seed, shape in plan.MICRO_BATCHES.items():
        config, bed = _chain(folder, seed, shape), None
        cases = [(fault, plan.middle(sizes)) for fault, sizes in real.SIZES.items()]
        cases = [(fault, size) for fault, size in cases if real.possible(fault, size, config)]
        draws = [("clean", float(draw)) for draw in range(plan.DRAWS)]
        for precision in clean.PRECISIONS:
            for fault, size in (*draws, *(cases if precision in plan.SAMPLERS else ())):
                if wanted(key := Key("chain-micro_batches", fault, size, precision, seed)):
                    bed = bed or real.MicroBatchBed(config, shape.responses, seed)
                    yield _case(bed, key)


def smollm2(model: str, wanted: Wanted) -> Iterator[Made]:
    """Generate the wanted dumps of SmolLM2 (folder `model`) in BF16: no fault, and each fault of `real` at its middle size."""
    for seed, shape in plan.SMOLLM2.items():
        config = _smollm2(model, shape)
        bed = None
        for fault, size in [("clean", 0.0), *((fault, plan.middle(sizes)) for fault, sizes in real.SIZES.items())]:
            if wanted(key := Key("smollm2", fault, size, "bf16", seed)):
                bed = bed or real.Bed(config, shape.responses, seed)
                yield _case(bed, key)


def vllm(model: str, folder: Path, wanted: Wanted) -> Iterator[Made]:
    """Generate the wanted dumps that vLLM samples: SmolLM2's, a toy policy's, and those of RL runs. Faults: `vllm.SIZES`."""
    for seed, shape in plan.VLLM_CHAIN.items():
        config = _chain(folder, seed, shape)
        faults = [fault for fault in in_vllm.SIZES if fault != "prefix"]  # its prompts are shorter than a block of the cache
        cases = [(fault, size) for fault in faults for size in real.SIZES[fault] if real.possible(fault, size, config)]
        cases = [*(("clean", float(draw)) for draw in range(plan.DRAWS)), *cases]
        yield from _in_vllm("vllm-chain", config, shape, seed, cases, wanted)
    for seed, shape in plan.VLLM.items():
        cases = [("clean", 0.0), *((fault, size) for fault, sizes in in_vllm.SIZES.items() for size in sizes)]
        yield from _in_vllm("vllm", _smollm2(model, shape), shape, seed, cases, wanted)
        yield from _stale(folder, "bf16", seed, wanted, "vllm-run", IN_VLLM)
        yield from _clean(folder, "bf16", seed, wanted, "vllm-run", IN_VLLM)


def runs(folder: Path, wanted: Wanted) -> Iterator[Made]:
    """Generate the wanted dumps of RL runs in `folder`: all of runs without a fault, the last of each run with old weights."""
    for seed in plan.RUNS:
        yield from _stale(folder, "fp8_tensor", seed, wanted, "run")
        for arm in clean.ARMS:
            yield from _clean(folder, arm, seed, wanted, "run")


def _stale(folder: Path, arm: str, seed: int, wanted: Wanted, source: str, overrides: tuple[str, ...] = ()) -> Iterator[Made]:
    """Generate the last dump of each run of `STALE`, whose sampler uses old weights, if its key is wanted.

    arm: key of `clean.ARMS`. source: that of the dump's key. overrides: further config overrides of the runs.
    """
    for k, lag in STALE.items():
        if wanted(key := Key(source, "stale", k, arm, seed)):
            config = clean.config(folder, arm, seed, *lag, *overrides, f"run.sweep={seed}-{source}-old-{k}")
            own, _, tokens = read(_dumps(config)[-1])
            yield Made(key, own, tokens)


def _clean(folder: Path, arm: str, seed: int, wanted: Wanted, source: str, overrides: tuple[str, ...] = ()) -> Iterator[Made]:
    """Generate the wanted dumps of one run without a fault, one per training step in `clean.STEPS`.

    arm: key of `clean.ARMS`. source: that of the dump's key. overrides: further config overrides of the run.
    """
    keys = [Key(source, "clean", step, arm, seed) for step in clean.STEPS]
    if not any(map(wanted, keys)):
        return
    config = clean.config(folder, arm, seed, *overrides, f"run.sweep={seed}-{source}-{arm}")
    for key, path in zip(keys, _dumps(config), strict=True):
        if wanted(key):
            own, versions, tokens = read(path)
            late = versions is not None and (arm.startswith("staleness") or arm == "partial")
            yield Made(key, own, tokens, 1 + versions.max() - versions if late else None)


def _in_vllm(
    source: str, config: Config, shape: plan.Shape, seed: int, cases: list[tuple[str, float]], wanted: Wanted
) -> Iterator[Made]:
    """Generate dumps of the config's policy, sampled by vLLM: one per case (fault, size) whose key `wanted` accepts."""
    bed = None
    for fault, size in cases:
        if wanted(key := Key(source, fault, size, "bf16", seed)):
            bed = bed or in_vllm.VllmBed(config, shape.responses, seed)
            yield _case(bed, key)


def _chain(folder: Path, seed: int, shape: plan.Shape) -> Config:
    return parse(compose(*clean.BASE, f"run.root={folder}", f"seed={seed}", f"task.length={shape.tokens}"))


def _smollm2(model: str, shape: plan.Shape) -> Config:
    length = f"task.answer_length={shape.tokens}"
    return parse(compose("+experiment=smollm2/bf16", "tracking=disabled", length, f"model.path={model}"))


def _case(bed: real.Bed, key: Key) -> Made:
    drawn = bed.case(key.fault, key.size, key.precision)
    baseline = bed.baseline(key.precision)
    return Made(key, bed.batch(drawn), drawn.tokens, None, drawn.entropy, baseline, drawn.repeat_prob)


def _edit(bed: real.Bed, key: Key) -> Made:
    honest = bed.batch(bed.case("clean", 0, key.precision))
    return Made(key, edits.edited(honest, key.fault, key.size, key.seed), baseline=bed.baseline(key.precision))


def _sound(kind: str, made: Made) -> Made:
    """Return a dump without a fault as one of `kind`, a key of `sound.EDITS`. It has no fault either."""
    edit = sound.EDITS[kind]
    dump = edit(sound.Columns(made.batch, made.tokens, made.entropy, made.repeat_prob), generator(made.key.seed, f"sound {kind}"))
    return made._replace(**dump._asdict())


def _dumps(config: Config) -> list[Path]:
    """Train the run of a config, unless it has ended, and return the paths of its dumps in the order of their steps."""
    from harness.run.loop import train

    train(config)
    return sorted(config.path.glob("dumps/*.parquet"), key=lambda path: int(path.stem.rpartition("-")[2]))
