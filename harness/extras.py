"""The optional extras of pyproject.toml, and which of them installs a missing module."""

from __future__ import annotations

EXTRAS = {
    "train": ("deepspeed", "hydra", "math_verify", "omegaconf", "psutil", "safetensors", "transformers"),
    "sweep": ("submitit",),
    "search": ("optuna", "optuna_dashboard"),
    "wandb": ("wandb",),
    "tensorboard": ("tensorboard",),
    "vllm": ("vllm",),
    "reasoning": ("reasoning_gym",),
    "completion": ("shtab",),
    "notebooks": ("jupytext", "nbclient"),
}
"""Extra -> modules that it installs and that the code imports."""


def absence(error: ModuleNotFoundError) -> str | None:
    """One line that names the missing package and the command to install it; None if the module belongs to no extra.

    The command installs from a checkout, because the name `faultline` on the package index belongs to another project.
    """
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    return extra and f"{module} is not installed; in the checkout this installs it: pip install -e '.[{extra}]'"
