"""Refuses code that a recorded config names, except with `--trust`, since a config from elsewhere may name any code."""

from __future__ import annotations

from algos.corrections.spec import Plugin
from harness.config.run import Config
from harness.errors import UserError


def plugin_names(config: Config) -> dict[str, str]:
    """Map each config key that can name a plug-in to its value: registered name, `package.module:attribute`, or "" for none."""
    filters = {name: part for name, part in config.correction.reject.items() if isinstance(part, Plugin)}
    return {
        "task.name": config.task.name,
        "task.verifier": str(getattr(config.task, "verifier", "")),
        "rollout.engine.name": config.rollout.engine.name,
        "advantage.name": config.advantage.name,
        "loss.name": config.loss.name,
        "kl.name": config.kl.name or "",
        **{f"correction.reject.{name}.function": part.function for name, part in filters.items()},
        **{f"collapse.detectors.{name}": name for name in config.collapse.detectors},
    }


def refuse_code(names: dict[str, str], origin: object) -> None:
    """Raise UserError if any of `names`, by config key, is code: `package.module:attribute`. origin: file with the names."""
    if code := [f"{key}={name}" for key, name in names.items() if ":" in name]:
        raise UserError(f"{origin}: would import {', '.join(code)}; add --trust if you trust whoever wrote it")
