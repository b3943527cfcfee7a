"""Requirements of tests on a machine, and `--forbid-skips`: a test that did not run has not passed.

A marker of NEEDS says what a test needs. Where that is missing the test is skipped. `--forbid-skips`, which `make test` and CI
give, allows this for units that nobody can install. Software must be there, unless `--without=slurm,vllm` names it.

With xdist (`-n 5`, as `make test` does) the tests of a file run on one worker, so that its fixtures are made once. The longest
files come first, then the others with a test that takes seconds, then the rest, so that the workers end at about the same time.
Each file with Slurm has a Slurm of its own. Its worker waits for it most of the time, and others for processes of their own, so
five workers use two cores.
"""

import functools
import os
import shutil
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.startup import uncollected

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: sums of two threads have other bits

LONGEST = (
    "tests/sweeps/search/test_on_slurm.py",
    "tests/sweeps/launchers/test_slurm.py",
    "tests/sweeps/test_signal_stress.py",
    "tests/experiments/test_demo.py",
    "tests/sweeps/launchers/test_local.py",
    "tests/harness/train/test_ranks.py",
    "tests/harness/rollouts/test_vllm.py",
    "tests/harness/test_memory.py",
    "tests/sweeps/launchers/test_pool_signals.py",
    "tests/sweeps/search/test_here.py",
    "tests/fuzz/test_attack.py",
    "tests/analysis/test_report.py",
    "tests/experiments/test_conf.py",
    "tests/experiments/test_gpu_check.py",
)
"""Files that take about a minute or more, the longest first."""
LONG = {"slow", "vllm", "chromium", "oldest", "llm"}
"""Markers of tests that take seconds."""


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _cpu_fp8_cache() -> bool:
    from harness.rollouts import vllm_support

    return _vllm() and vllm_support.this_machine().gpu is None and vllm_support.kv_cache_refusal("fp8_e4m3", 32) is None


def _vllm() -> bool:
    return find_spec("vllm") is not None


def _slurm() -> bool:
    """slurm/local/up.sh installs it for root."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    installable = os.geteuid() == 0 and shutil.which("apt-get")
    return bool(installable or all(shutil.which(program, path=path) for program in ("slurmctld", "slurmd", "munged")))


def _chromium() -> bool:
    return shutil.which("chromium") is not None


def _llm() -> bool:
    return Path("models/smollm2/model.safetensors").exists()


def _oldest() -> bool:
    return Path(".venv/oldest/installed").exists()


UNITS = {"gpu": ("a GPU", _gpu), "cpu_fp8_cache": ("a CPU on which vLLM has an FP8 cache", _cpu_fp8_cache)}
SOFTWARE = {
    "vllm": ("vLLM: make vllm", _vllm),
    "slurm": ("Slurm: apt-get install slurm-wlm munge", _slurm),
    "chromium": ("chromium: apt-get install chromium", _chromium),
    "llm": ("SmolLM2: make llm", _llm),
    "oldest": ("an environment with an old torch: make .venv/oldest/installed", _oldest),
}
NEEDS = UNITS | SOFTWARE
"""Marker -> what a test with it needs, whether this machine has it."""


@functools.cache
def _has(need: str) -> bool:
    return NEEDS[need][1]()


def pytest_addoption(parser):
    parser.addoption("--forbid-skips", action="store_true", help="fail if a test was skipped, unless for units of a machine")
    parser.addoption("--without", default="", help=f"software that may be missing all the same, of {', '.join(SOFTWARE)}")


def pytest_configure(config):
    for need, (what, _) in NEEDS.items():
        config.addinivalue_line("markers", f"{need}: needs {what}")
    config.addinivalue_line("markers", "slow: takes seconds; `make check` leaves it out")
    without = set(filter(None, config.getoption("--without").split(",")))
    if unknown := without - SOFTWARE.keys():
        raise pytest.UsageError(f"--without={','.join(sorted(unknown))}: it takes {', '.join(SOFTWARE)}")
    config.pluginmanager.register(Skips({*UNITS, *without}), "skips")
    # A shell starts `make test &` with SIGINT ignored, which all processes below inherit: tests of Ctrl-C would wait for nothing.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection():
    """What the test files import stays. Else every full garbage collection of the session walks it, which takes half a second."""
    with uncollected():
        yield


def pytest_runtest_setup(item):
    for need in NEEDS:
        if item.get_closest_marker(need) and not _has(need):
            pytest.skip(f"needs {NEEDS[need][0]}")


def _file(nodeid: str) -> str:
    return nodeid.split("::")[0]


def pytest_collection_modifyitems(items):
    long = {item.path for item in items if any(mark.name in LONG for mark in item.iter_markers())}
    place = {file: number for number, file in enumerate(LONGEST)}
    items.sort(key=lambda item: (place.get(_file(item.nodeid), len(place)), item.path not in long))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return _file(nodeid)

    config.option.loadscopereorder = False  # else the file with the most tests comes first
    return ByFile(config, log)


class Skips:
    """Counts them where all reports arrive, which under xdist is not where the tests run."""

    def __init__(self, allowed: set[str]):
        """allowed: markers of tests that may be skipped."""
        self.allowed, self.seen = allowed, []

    def pytest_runtest_logreport(self, report):
        if report.skipped and not self.allowed & set(report.keywords) and not hasattr(report, "wasxfail"):
            self.seen.append(report.nodeid)

    def pytest_sessionfinish(self, session, exitstatus):
        if session.config.getoption("--forbid-skips") and self.seen and exitstatus == 0:
            session.exitstatus = 1
            print(f"\nskipped, which counts as failed: {', '.join(self.seen)}")
