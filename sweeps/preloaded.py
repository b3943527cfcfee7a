"""Imported by the fork server of `sweeps/local.py`, and only there: what every run needs, once for all of them."""

import importlib
import signal

for number in (signal.SIGTERM, signal.SIGUSR2):  # Slurm signals every process of a job; the server must outlive its runs
    signal.signal(number, signal.SIG_IGN)
for module in (
    "harness.trainer",
    "transformers.models.qwen3.modeling_qwen3",
    "wandb",
    "deepspeed.runtime.zero.muon.muon_optimizer",  # DeepSpeed imports it with any optimizer, and the compiler with it
):
    importlib.import_module(module)
