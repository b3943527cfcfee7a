"""The optional extras of pyproject.toml, and which of them installs a missing module."""

from __future__ import annotations

from importlib.util import find_spec

EXTRAS = {
    "train": ("deepspeed", "math_verify", "peft", "safetensors", "transformers"),
    "sweep": ("submitit",),
    "search": ("optuna",),
    "wandb": ("wandb",),
    "vllm": ("vllm",),
    "reasoning": ("reasoning_gym",),
    "notebooks": ("jupytext", "nbclient"),
}
"""Optional extra of pyproject.toml -> modules that it installs and that the code imports."""
APART = ("train", "sweep", "search")
"""Extras that pin transformers, and so would change it in an environment of verl, SkyRL or TRL."""


def require(extra: str) -> None:
    """Raise ModuleNotFoundError for the first module of an extra that is not installed. Nothing is imported."""
    for module in EXTRAS[extra]:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def absence(error: ModuleNotFoundError) -> str | None:
    """One line with the command that installs a missing package in the checkout; None if no extra contains the package."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    if extra is None:
        return None
    apart = " (not in the environment of verl, SkyRL or TRL: it changes transformers)" if extra in APART else ""
    return f"{module} is not installed; in the checkout this installs it: pip install -e '.[{extra}]'{apart}"
