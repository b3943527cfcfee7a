"""500 lists of overrides give sound configs or messages that name a key: no traceback, no hang, no nonsense."""

from __future__ import annotations

import re
import subprocess
import sys
import traceback

import pytest

from algos.parameters import types_of
from algos.registry import ADVANTAGES, CORRECTIONS, LOSSES
from harness.collapse import DETECTORS
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.rollouts import ENGINES
from harness.validate import check
from tests.fuzz import overrides
from tests.fuzz.sound import Hang, alarm, bounded, check_sound, leaves, message
from tests.waiting import PATIENCE

SEED, COUNT = 22, 500
PROVIDED = {"greedy", "lengths", "components", "temperature", "top_p", "top_k", "kv_cache", "stop", "record_support"}


def attempt(case: tuple[str, ...]):
    """The config of a case, or the message that refuses it."""
    with alarm(case):
        try:
            config = parse(compose(*case))
            check(config)
        except UserError as error:
            return message(error)
    return config


def problem(case: tuple[str, ...]) -> str | None:
    """The fault in the answer to a case, or None."""
    try:
        answer = attempt(case)
        if not isinstance(answer, str):
            check_sound(answer)
            assert attempt(case).digest == answer.digest, "composed again, it is another config"
            return None
    except (Exception, Hang, SystemExit, KeyboardInterrupt) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:300]} ({where.filename}:{where.lineno})"
    words = {word for text in case for word in re.findall(r"\w+", text.partition("=")[0])}
    named = any(word in answer for word in words) or any(text in answer for text in case)
    return None if named else f"names no key of {case[-4:]}: {answer[:300]}"


@pytest.mark.slow
def test_every_override_is_refused_by_key_or_makes_a_sound_config():
    wrong = {case: found for case in overrides.cases(SEED, COUNT) if (found := problem(case))}
    listed = "\n".join(f"{' '.join(case[2:])[:300]}\n    {found}" for case, found in list(wrong.items())[:30])
    assert not wrong, f"{len(wrong)} of {COUNT}:\n{listed}"


@pytest.mark.slow
def test_the_cases_are_the_same_each_time_and_some_are_accepted():
    """A fuzzer whose cases are all refused at the first key checks nothing behind it."""
    first = list(overrides.cases(SEED, 100))
    assert first == list(overrides.cases(SEED, 100)) and first != list(overrides.cases(SEED + 1, 100))
    accepted = [case for case in first if not isinstance(attempt(case), str)]
    assert len(accepted) >= 10


def test_every_number_of_a_config_has_bounds():
    for chosen in (
        (),
        ("model=moe",),
        ("task=arithmetic", "model=smollm2", "warmstart=none"),
        ("kl=k3", "kl.coef=1"),
    ):
        for key, kind, _ in leaves(parse(compose("rollout/precision=fp32", *chosen)), ""):
            assert bounded(kind), f"{key}: give its type a lower and an upper bound"


@pytest.mark.parametrize("registry", [LOSSES, ADVANTAGES, CORRECTIONS, DETECTORS, ENGINES], ids=lambda registry: registry.kind)
def test_every_number_of_a_plug_in_has_bounds(registry):
    for name in registry.names():
        for parameter, kind in types_of(registry[name]).items():
            if parameter not in PROVIDED:
                assert bounded(kind), f"{registry.kind}={name}: give the type of {parameter} a lower and an upper bound"


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["correction=2"], ["kl=true"], ["advantage=[[[]]]"], ["~tracking=[-1,2]"], ["loss.eps_high=1e300"],
        ["correction=token_truncate", "correction.weight.upper=1e300"], ["model.num_hidden_layers=9223372036854775807"],
        ["+correction.reject.a={function: 'os:system'}"], ["experiment=demo/bf16"], ["seed=" + 300 * "[" + 300 * "]"],
        ["-m", "hydra/launcher=local", "hydra.launcher.parallel=x"], ["-m", "hydra/launcher=local", "seed=0,-1"],
        ["--config-dir", "/proc/version"], ["hydra.run.dir=/proc/version/x"],
    ],
    ids=lambda words: words[-1][:40],
)  # fmt: skip
def test_the_command_line_refuses_in_few_lines(arguments, tmp_path):
    command = [sys.executable, "-m", "experiments.train", *arguments, f"run.root={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr and 1 <= done.stderr.strip().count("\n") + 1 <= 3, done.stderr
    assert not list(tmp_path.glob("**/status.json"))
