"""The `faultline` command."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.errors import UserError


def main() -> None:
    """Entry point; a UserError is one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="faultline", description="Compare losses and corrections under rollout mismatch.")
    commands = parser.add_subparsers(dest="command", required=True)
    report = commands.add_parser("report", help="table and HTML page of a sweep")
    report.add_argument("sweep", type=Path, help="folder of the sweep, as runs/demo")
    importer = commands.add_parser("import-config", help="a verl, SkyRL or TRL config as an experiment file of this project")
    importer.add_argument("file", type=Path, help="YAML or JSON, nested or dotted keys")
    replay = commands.add_parser("replay", help="what each correction at each threshold would have done to a dump")
    replay.add_argument("dump", type=Path, help="a file (.parquet, .jsonl, .pkl, .pt), a folder of them, or a run folder")
    replay.add_argument("--corrections", type=lambda names: names.split(","), help="presets, as icepop,skyrl/token_tis")
    replay.add_argument("--null", type=Path, help="a dump of the control: adds the false rejections")
    replay.add_argument("--skip-bad", action="store_true", help="leave bad rows out and count them")
    replay.add_argument("--out", type=Path, help="folder of the page and the CSV files")
    arguments = parser.parse_args()
    try:
        if arguments.command == "report":
            from analysis.report import report as make

            print(f"Page: {make(arguments.sweep).resolve()}")
        elif arguments.command == "replay":
            from experiments.replay.command import replay_command

            a = arguments
            page = replay_command(a.dump, corrections=a.corrections, null=a.null, skip_bad=a.skip_bad, out=a.out)
            print(f"Page: {page.resolve()}")
        else:
            from experiments.importer import import_config

            print(import_config(arguments.file), end="")
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
