"""Where Hydra looks for plug-ins: makes `hydra/launcher=local` known. The launcher itself is sweeps/local.py."""

from dataclasses import dataclass

from hydra.core.config_store import ConfigStore

from sweeps.local import LocalLauncher  # noqa: F401  Hydra finds the class by scanning this module


@dataclass
class LocalLauncherConfig:
    """parallel: runs side by side; null is one per core."""

    _target_: str = "sweeps.local.LocalLauncher"
    parallel: int | None = None


ConfigStore.instance().store(group="hydra/launcher", name="local", node=LocalLauncherConfig, provider="faultline")
