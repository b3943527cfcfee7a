"""Mirrors the run folder, which remains the record, in W&B. No other file imports wandb to write.

The mirror is offline unless an API key is present. Its id is the hash of the config, and its steps are explicit, so the
parts of a resumed run can be merged. It holds all that `analysis` needs of a run: the config with the provenance, all metrics,
and each event and the outcome as flat summary scalars. A failure of the mirror never stops a run.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.arms import arm
from harness.config import Config
from harness.errors import UserError, first_line
from harness.extras import absence
from harness.files import refuse_links
from harness.run.folder import RunFolder, changes

CONNECT_SECONDS = 20
"""Seconds that an online run waits for the W&B server before it goes offline, unless WANDB_INIT_TIMEOUT is set."""
FINISH_SECONDS = 60
"""Seconds that a finishing run waits for the upload to W&B. `wandb sync` can send the rest later."""

FILES = ("report.html", "report.md", "report.png", "arms.csv", "runs.csv", "evaluations.csv")
"""Names of the files of a sweep's report that are uploaded to W&B."""
REPORT = "report-"
"""Prefix of the id of a W&B run that holds a report. The ids of training runs are hexadecimal."""


class Tracker:
    """Mirror of one run in W&B, with files in `<folder>/wandb`. With tracking.mode=disabled it does nothing."""

    def __init__(self, config: Config, folder: Path):
        self._run: Any = None
        self._name = f"{arm(config.model_dump(mode='json'))} seed {config.seed}"
        mode = config.tracking.mode
        if mode == "auto":
            mode = "online" if os.environ.get("WANDB_API_KEY") else "offline"
        if mode != "disabled":
            self._guarded(lambda: self._start(config, folder, mode))
        if self._run is None and mode == "online":
            self._guarded(lambda: self._start_offline_after_all(config, folder))

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Mirror the metrics of a step immediately. By default W&B would keep them in memory until the next step begins."""
        if self._run is not None:
            self._guarded(lambda: self._run.log(metrics, step=step, commit=True))

    def event(self, step: int, role: str, detector: str, event: dict[str, Any]) -> None:
        """Mirror a collapse detector's event as a summary scalar at once, so a killed run keeps it. A collapse sends an alert."""
        if self._run is not None:
            self._guarded(lambda: self._run.summary.update({f"onset/{detector}": event["onset"]}))
        if self._run is not None and role == "collapse":
            text = f"{self._name}: {detector} from step {event['onset']} on, seen at step {step}"
            self._guarded(lambda: self._run.alert(title=f"collapse: {detector}", text=text, level="WARN"))

    def finish(self, exit_code: int, **summary: Any) -> None:
        """Close the W&B run, with the outcome of the training run in its summary."""
        if self._run is not None:
            self._guarded(lambda: self._run.summary.update(summary))
        if self._run is not None:
            self._guarded(lambda: self._run.finish(exit_code=exit_code))

    def _guarded(self, call: Callable[[], None]) -> None:
        """Call a function of W&B. After an error the run continues without the mirror."""
        try:
            call()
        except Exception as error:
            self._run = None
            cause = f"{type(error).__name__}: {error}"
            if isinstance(error, ConnectionError):  # SIGTERM to a whole Slurm job ends W&B's own process too
                cause = "its own process was stopped"
                self._forget_service()
            elif isinstance(error, ModuleNotFoundError):
                cause = absence(error) or cause
            print(f"W&B: {cause}; nothing more is mirrored, the run's folder is the record", flush=True)

    def _forget_service(self) -> None:
        """Forget W&B's service process. Otherwise Python's exit would try to stop it, and print a traceback if it is gone."""
        import wandb

        with suppress(ConnectionError):
            wandb.teardown()

    def _start_offline_after_all(self, config: Config, folder: Path) -> None:
        import wandb

        # W&B's service still holds the id of the attempt that failed, and so does one that a parent process has handed down.
        wandb.teardown()
        os.environ.pop("WANDB_SERVICE", None)
        self._start(config, folder, "offline")

    def _start(self, config: Config, folder: Path, mode: Any) -> None:
        import wandb

        _keep_home_empty(Path(config.run.root))
        refuse_links(folder, "wandb/run")
        (folder / "wandb").mkdir(parents=True, exist_ok=True)
        settings: dict[str, Any] = {"console": "off", "silent": True, "x_disable_stats": True, "finish_timeout": FINISH_SECONDS}
        settings["init_timeout"] = float(os.environ.get("WANDB_INIT_TIMEOUT", CONNECT_SECONDS))
        # W&B loses what it has not flushed when the process is killed; its default is 15 s. A private setting, so it may go.
        if "x_transaction_log_flush_interval" in wandb.Settings.model_fields:
            settings["x_transaction_log_flush_interval"] = 1
        values = config.model_dump(mode="json")
        self._run = wandb.init(
            mode=mode,
            settings=wandb.Settings(**settings),
            project=config.tracking.project,
            id=config.digest,
            name=self._name,
            group=config.run.sweep,
            job_type="branch" if any(event["kind"] == "branched" for event in RunFolder(folder).events()) else "train",
            tags=[config.rollout.precision.name, config.loss.name],
            config={**values, "arm": str(arm(values)), "record": _record(values, folder)},
            dir=str(folder),
            resume="allow",
        )


def _record(config: dict[str, Any], folder: Path) -> str:
    """Config and provenance of a run as JSON text, because W&B drops empty keys. A hash replaces the uncommitted changes."""
    recorded = (folder / "provenance.json").exists()
    processes = RunFolder(folder).read("provenance.json")["processes"] if recorded else []
    return json.dumps({"config": config, "provenance": [{**process, "diff": changes(process["diff"])} for process in processes]})


def _keep_home_empty(root: Path) -> None:
    for variable in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):
        os.environ.setdefault(variable, str(root.resolve() / ".wandb"))


# --- a report ----------------------------------------------------------------------------------------------------------


def push_report(folder: Path, sweep: str, project: str) -> str:
    """Upload the report in `folder` as a W&B run: its page, figures, files, and table of configs. Returns its address.

    Without WANDB_API_KEY it is an offline run below `folder`/wandb, which `wandb sync` can send later; then that run's folder
    is returned. Raises UserError with the cause if W&B refuses.
    """
    import pandas as pd
    import wandb

    _keep_home_empty(folder / "wandb")
    refuse_links(folder, "wandb/run")
    (folder / "wandb").mkdir(exist_ok=True)  # else W&B makes .wandb, which hides
    online = bool(os.environ.get("WANDB_API_KEY"))
    pictures = sorted(path for path in (folder / "figures").glob("*.png") if not path.is_symlink())
    try:
        settings = wandb.Settings(console="off", silent=True, x_disable_stats=True, finish_timeout=FINISH_SECONDS)
        options: dict[str, Any] = {"mode": "online" if online else "offline", "settings": settings, "dir": str(folder)}
        title, place = f"report of {sweep}", re.sub(r"[^a-zA-Z0-9_.-]+", "-", sweep)
        run = wandb.init(project=project, id=f"{REPORT}{secrets.token_hex(4)}", name=title, job_type="report", **options)
        artifact = wandb.Artifact(f"{REPORT}{place}", type="report", description=title)
        for path in [*(path for name in FILES if (path := folder / name).exists()), *pictures]:
            artifact.add_file(str(path), name=str(path.relative_to(folder)))
        arms = wandb.Table(dataframe=pd.read_csv(folder / "arms.csv"), allow_mixed_types=True)
        page = wandb.Html((folder / "report.html").read_text(encoding="utf-8"), inject=False)
        run.log({"arms": arms, "report": page, **{f"figures/{path.stem}": wandb.Image(str(path)) for path in pictures}})
        run.log_artifact(artifact)
        where = run.url if online else str(Path(run.dir).parent)
        run.finish()
    except (wandb.Error, ValueError) as error:
        remedy = "check the project's name, WANDB_BASE_URL and WANDB_API_KEY"
        raise UserError(f"--wandb {project}: {first_line(error)}; {remedy}") from None
    return str(where)
