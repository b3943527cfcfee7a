"""Which optional part of the package a module belongs to: the extras of pyproject.toml."""

from __future__ import annotations

EXTRAS = {
    "train": ("deepspeed", "hydra", "math_verify", "omegaconf", "psutil", "safetensors", "transformers"),
    "sweep": ("submitit",),
    "search": ("optuna", "optuna_dashboard"),
    "wandb": ("wandb",),
    "tensorboard": ("tensorboard",),
    "vllm": ("vllm",),
    "completion": ("shtab",),
    "notebooks": ("jupytext", "nbclient"),
}
"""Extra -> the modules that it brings and that the code imports."""


def absence(error: ModuleNotFoundError) -> str | None:
    """The missing package and the command that installs it; None where the module belongs to no extra.

    The command is that of a checkout: the name `faultline` on the package index belongs to another project.
    """
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    return extra and f"{module} is not installed; in the checkout this installs it: pip install -e '.[{extra}]'"
