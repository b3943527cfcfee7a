"""Mirrors run folders to W&B with the harness's own Tracker: python -m tests.analysis.mirror MODE FOLDER[:FIRST:LAST] ..."""

import sys
import time
from pathlib import Path

from harness.collapse import outcome
from harness.config import parse
from harness.run.folder import RunFolder
from harness.run.wandb import Tracker


def mirror(folder: RunFolder, first: int = 0, last: int | None = None, mode: str = "offline") -> None:
    """Rows first..last of the run, then its events and its end unless it is cut short."""
    config = parse(folder.read("config.json") | {"tracking": {"mode": mode, "project": "faultline"}})
    tracker = Tracker(config, folder.path)
    rows = folder.metrics()
    for row in rows:
        if first <= row["step"] and (last is None or row["step"] <= last):
            tracker.log(row["step"], {key: value for key, value in row.items() if key != "step"})
    if last is None:
        events = [event for event in folder.events() if "detector" in event]
        for event in events:
            tracker.event(event["step"], event["kind"], event["detector"], event)
        ended = outcome({event["detector"]: event["onset"] for event in events}, config.collapse.detectors)
        tracker.finish(0, state=folder.state, **{f"collapse/{key}": value for key, value in ended.present().items()})
    else:
        tracker.finish(1, state="interrupted")


if __name__ == "__main__":
    mode, parts, mirrored = sys.argv[1], sys.argv[2:], set()
    for part in parts:
        path, *span = part.split(":")
        if path in mirrored:
            time.sleep(1.1)  # W&B names a fragment by the second of its start
        mirrored.add(path)
        mirror(RunFolder(Path(path)), *(int(number) if number else None for number in span), mode=mode)
