"""Overrides drawn by a seed: every key of the config and of the plug-ins, with values of every wrong kind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from harness.arms import flatten
from harness.compose import choices, compose

NUMBERS = [
    "0", "1", "2", "3", "7", "-1", "-2", "0.5", "-0.5", "1.0", "2.5", "1e-3", "0.999", "1.001", "1e-7", "1e-300",
    "-1e-300", "1e9", "1e10", "1e300", "-1e300", "inf", "-inf", "nan", "2147483648", "9223372036854775807",
    "9223372036854775808", "18446744073709551616", "-9223372036854775809", "1" + 30 * "0", "1" + 400 * "0", "1e400",
]  # fmt: skip
WORDS = [
    "", "x", "true", "false", "null", "'1'", "'0.5'", "'true'", "'null'", "'nan'", "''", "' '", "'a b'", "a/b",
    "..", "-x", "'é'", "'<script>'", "'$x_1$'", "'%s'", "'{}'", "os:system", "'os:getcwd'", "'math:sqrt'",
    "'builtins:print'", "'operator:add'", "'no.such:thing'", "':'", "'a:'", "???", "'???'", "${seed}", "${nosuch}",
    "${seed", "${oc.env:NOSUCH}", "${oc.env:HOME}", "token", "token_mean", "fp32", "fp8_e4m3", "kept", "current",
    "sequence", "none", "k3", 3000 * "y", "'a\\nb'", "'\t'",
]  # fmt: skip
NESTED = [
    "[]", "[1]", "[1,2]", "[0.5,0.5]", "[nan,0.9]", "[[]]", "[[[]]]", "[null]", "[a,b]", "[true,false]", "{}",
    "{a:1}", "{1:2}", "{name:x}", "{name:ppo}", "{name:null}", "{a:{b:{c:[]}}}", "[{a:1}]", 20 * "[" + 20 * "]",
    "{true:1}", "{a:nan}", "[1e400]", "{level:token,upper:2.0}", "{level:token,upper:nan}",
    "{level:worst_token,lower:1e-4}", "{function:m2po,params:{tau:0.04}}", "{function:m2po,params:{tau:x}}",
    "{function:m2po}", "{function:'os:system'}", "{function:1}", "{level:segment,upper:2.0}",
]  # fmt: skip
VALUES = [*NUMBERS, *WORDS, *NESTED]
ABSENT = [
    "correction.reject.x", "correction.reject.x.params.tau", "evaluation.probe.bf16", "loss.tau", "loss.upper",
    "advantage.std", "rollout.engine.noise", "rollout.engine.x", "collapse.detectors.x",
    "collapse.detectors.drawdown.x", "nosuch", "nosuch.x", "task.symbols", "model.path", "task.path", "hydra.x",
    "defaults", "_target_", "experiment", "seed.x", "a.b.c.d",
]  # fmt: skip
SCRAPS = ["", "=", "=1", "+", "~", "++", "seed", "seed=", "@", "a@b=c", "[", "'", "$", "\\", "seed==1", "a b=1", "=,="]

ORDINARY = ["steps=3", "seed=7", "actor.lr=1e-4", "actor.epochs=2", "dump.every=1", "rollout.staleness=1"]


@cache
def groups() -> dict[str, list[str]]:
    """Group -> its options, without experiments, which are chosen by name below."""
    return {group: names for group, names in choices().options.items() if not group.startswith("experiment")}


@cache
def keys(chosen: tuple[str, ...]) -> dict[str, Any]:
    """Every key of the config with these groups chosen, and every section above one, with its value."""
    leaves = flatten(compose(*chosen))
    sections = {leaf.rpartition(".")[0] for leaf in leaves} - {""}
    return leaves | {key: {} for key in sorted(sections)}


def bases(rng: random.Random, count: int) -> Iterator[tuple[str, ...]]:
    """Choices of groups that mostly go together, so that what follows reaches the checks of values. They cost most."""
    free = {group: names for group, names in groups().items() if group in ("loss", "advantage", "correction", "kl", "reduce")}
    engines = ["rollout/engine=local"] * 9 + ["rollout/engine=vllm"]
    for i in range(count):
        picked = [f"{group}={rng.choice(names)}" for group, names in sorted(free.items()) if rng.random() < 0.25]
        loss = f"loss={free['loss'][i % len(free['loss'])]}"  # each loss comes up
        model = ["model=moe"] if rng.random() < 0.1 else []
        precision = rng.choice(groups()["rollout/precision"])
        chosen = [p for p in picked if not p.startswith("loss=")]
        yield tuple([loss, *chosen, *model, f"rollout/precision={precision}", rng.choice(engines)])


def cases(seed: int, count: int, per_base: int = 50) -> Iterator[tuple[str, ...]]:
    """`count` lists of overrides, one to four of them beside the choice of groups."""
    rng = random.Random(seed)
    for chosen in bases(rng, -(-count // per_base)):
        for _ in range(per_base):
            several = rng.choice((1, 1, 1, 2, 3, 4))
            yield (*chosen, *(override(rng, keys(chosen)) for _ in range(several)))


def override(rng: random.Random, known: dict[str, Any]) -> str:
    """One override: a value of a wrong kind, a deletion, a key that is not there, a group, or a mere string."""
    kind = rng.random()
    key = rng.choice(list(known))
    if kind < 0.40:
        return f"{key}={near(rng, known[key])}"
    if kind < 0.70:
        return f"{key}={value(rng)}"
    if kind < 0.75:
        return f"{rng.choice(('+', '++', ''))}{rng.choice(ABSENT)}={value(rng)}"
    if kind < 0.80:
        return f"~{key}"
    if kind < 0.85:
        return f"{rng.choice(('++', '+'))}{key}={value(rng)}"
    if kind < 0.95:
        group = rng.choice(sorted(groups()))
        names = [*groups()[group], "nosuch", "", "[]", "null", "2", "true", "[ppo,pg]", "{}", "{a:1}", "[[]]"]
        return f"{rng.choice(('', '', '+', '++', '~'))}{group}={rng.choice(names)}"
    return rng.choice([*SCRAPS, *ORDINARY, *ORDINARY])


def near(rng: random.Random, now: Any) -> str:
    """A value of the same kind as the one that a key has, which its field may well accept."""
    if isinstance(now, bool):
        return rng.choice(("true", "false"))
    if isinstance(now, int):
        return str(rng.choice((now, now + 1, 2 * now, now // 2, 1)))
    if isinstance(now, float):
        return f"{now * rng.choice((1, 1.1, 0.9, 2, 0.5)):.4g}"
    if isinstance(now, list):
        return f"[{','.join(near(rng, item) for item in now)}]"
    return "null" if now is None else "{}" if isinstance(now, dict) else f"'{now}'" if now else "''"


def value(rng: random.Random) -> str:
    """A value as it is written on the command line; a third of them are numbers that a field might accept."""
    if rng.random() < 0.33:
        return rng.choice((f"{rng.randint(0, 12)}", f"{rng.random():.3f}", f"{10 ** rng.uniform(-9, 9):.3g}"))
    return rng.choice(VALUES)
