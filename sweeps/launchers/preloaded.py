"""Imports that every run needs, loaded once by the fork server of `pool.py` if there is no GPU. No module imports this one.

The server ends with the process that it serves, and its runs then get SIGTERM and save a checkpoint. So no run is left behind.
"""

import importlib
import signal
from pathlib import Path

from algos.registry import installed
from harness.startup import uncollected
from sweeps.launchers.orphans import end_quietly_without_data, end_with_parent

# A terminal and Slurm signal every process at once, and the server must outlive its runs. Signals are held back and not ignored:
# a run inherits that, and gets a signal that came while it was being forked as soon as it can act on it.
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2))
end_with_parent(signal.SIGKILL)
end_quietly_without_data()
PRELOADED = (
    "harness.run.loop",
    "harness.train.data.dump",
    "transformers.optimization",
    "transformers.models.qwen3.modeling_qwen3",
    "wandb",
    "pandas",  # pyarrow imports it with the first dump
)
# DeepSpeed reads a GPU's properties when it is imported, and CUDA cannot be used in a process that is forked after that.
# Where there is a GPU each run imports for itself.
if not Path("/dev/nvidiactl").exists():
    with uncollected():
        for module in PRELOADED:
            importlib.import_module(module)
        installed()
