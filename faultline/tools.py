"""The `faultline` command. Each subcommand imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from harness.errors import UserError

CORRECTIONS = "presets by name, or YAML files as those in experiments/conf/correction"


def main(*more: Callable[[argparse._SubParsersAction], None]) -> None:
    """A UserError is one line and exit code 2. more: what adds further commands, as those here do."""
    parser = argparse.ArgumentParser(prog="faultline", description="Compare losses and corrections under rollout mismatch.")
    commands = parser.add_subparsers(dest="command", required=True)
    for add in (_report, _import_config, _replay, _gradient, _doctor, *more):
        add(commands)
    arguments = vars(parser.parse_args())
    del arguments["command"]
    try:
        arguments.pop("run")(**arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _report(commands) -> None:
    parser = commands.add_parser("report", help="what a sweep says: an HTML page, Markdown and CSV")
    parser.add_argument("sweep", help="its folder, as runs/demo; or wandb-offline:FOLDER, or wandb:[entity/]project[:group]")
    parser.add_argument("--out", type=Path, help="where the report goes, if not into the sweep's own folder")
    parser.add_argument("--into", type=Path, help="a Markdown file that takes the results between its two marks, as README.md")
    parser.add_argument("--seeds", type=_seeds, default=(), help="only the runs of these, as 3,4,5")

    def run(sweep: str, out: Path | None, into: Path | None, seeds: tuple[int, ...]) -> None:
        from analysis.report import report

        print(f"Page: {report(sweep, out, into, seeds).resolve()}")

    parser.set_defaults(run=run)


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(seed) for seed in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: expected whole numbers with commas between them, as 3,4,5") from None


def _import_config(commands) -> None:
    what = "a verl, SkyRL or TRL config as an experiment file of this project"
    rule = ("Keys without a counterpart here, misspelt ones among them, are named in the file's comments, # not translated: read "
            "them. A value of a correction that cannot be used is an error (exit code 2), so that no file lacks it unseen.")
    parser = commands.add_parser("import-config", help=what, description=f"Print {what}. {rule}")
    parser.add_argument("file", type=Path, help="YAML or JSON, nested or dotted keys")

    def run(file: Path) -> None:
        from faultline.import_config import import_config

        print(import_config(file), end="")

    parser.set_defaults(run=run)


def _replay(commands) -> None:
    parser = commands.add_parser("replay", help="what each correction at each threshold would have done to a dump")
    parser.add_argument("dump", type=Path, help="a file (.parquet, .jsonl, .pkl, .pt), a folder of them, or a run folder")
    parser.add_argument("--corrections", type=_names, help=f"as icepop,skyrl/token_tis,own.yaml: {CORRECTIONS}; all presets")
    parser.add_argument("--null", type=Path, help="a dump of the control: adds the false rejections")
    parser.add_argument("--recommend", action="store_true", help="propose bounds from the data")
    parser.add_argument("--keep", type=_share, help="share of tokens that a proposed filter keeps (0.99)")
    parser.add_argument("--ess", type=_share, help="effective sample size that a proposed truncation has (0.9)")
    parser.add_argument("--skip-bad", action="store_true", help="leave bad rows out and count them")
    parser.add_argument("--out", type=Path, help="folder of the page and the CSV files")

    def run(dump: Path, **options) -> None:
        from faultline.replay.command import replay_command

        print(f"Page: {replay_command(dump, **options).resolve()}")

    parser.set_defaults(run=run)


def _doctor(commands) -> None:
    parser = commands.add_parser("doctor", help="what this machine can compute rollouts in")
    parser.add_argument("--parity", action="store_true", help="compare actor, local engine and vLLM in every precision")

    def run(parity: bool) -> None:
        from faultline.doctor import doctor

        doctor(parity)

    parser.set_defaults(run=run)


def _gradient(commands) -> None:
    parser = commands.add_parser("gradient", help="the gradient of each loss and correction against the true one: bias, variance")
    parser.add_argument("checkpoint", type=Path, nargs="?", help="a run folder, or <run folder>/checkpoints/step-<n>")
    parser.add_argument("--enumerable", action="store_true", help="exact, on a policy whose responses are all listed")
    parser.add_argument("--noise", type=_scale, default=0.3, help="of the logits of the enumerable policy's rollout (0.3)")
    parser.add_argument("--losses", type=_names, help="as ppo,gspo; the run's own, or pg")
    parser.add_argument("--corrections", type=_names, help=f"as icepop,skyrl/token_tis,own.yaml: {CORRECTIONS}; a selection")
    parser.add_argument("--prompts", type=_count, default=64, help="of a batch, each with the run's number of samples (64)")
    parser.add_argument("--batches", type=_count, default=32, help="frozen batches from the rollout engine (32)")
    parser.add_argument("--reference", type=_count, default=64, help="fresh batches of the trainer's own policy (64)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of the page and the CSV file")

    def run(checkpoint: Path | None, **options) -> None:
        from faultline.gradient.command import gradient_command

        print(f"Page: {gradient_command(checkpoint, **options).resolve()}")

    parser.set_defaults(run=run)


def _names(text: str) -> list[str]:
    return text.split(",")


def _count(text: str) -> int:
    """A whole number of at least 2, so that there is a spread."""
    if not text.isdigit() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of at least 2")
    return int(text)


def _scale(text: str) -> float:
    """A number in (0, 10]."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 10:
        raise argparse.ArgumentTypeError(f"{text} is no number above 0 and up to 10")
    return value


def _share(text: str) -> float:
    """A number in (0, 1]."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share, a number above 0 and up to 1")
    return value


if __name__ == "__main__":
    main()
