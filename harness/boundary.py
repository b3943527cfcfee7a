"""How commands report errors: one line and exit code 2 for an error that the user can mend, a traceback for a bug.

Hydra, OmegaConf and yaml raise exceptions of many kinds on wrong input, TypeError and AssertionError included. So an
error raised in a file of these libraries counts as wrong input and is explained. An OSError that names a file is explained
too, and so are a MemoryError and a missing module that an extra installs. A UserError explains itself. All others are bugs.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from harness.errors import UserError, printable
from harness.extras import absence

LIBRARIES = ("hydra", "omegaconf", "yaml", "antlr4")
SHOWN = 300
"""Maximum number of characters of the user's input that an error message repeats."""


@contextmanager
def command(interrupted: str = "interrupted", given: str = "") -> Iterator[None]:
    """Context manager around a command. Raises SystemExit: 2 after an explained error, 130 after Ctrl-C, 141 on a closed pipe.

    interrupted: text printed after Ctrl-C. given: the user's input, shown if an error names no key.
    """
    try:
        with refusing(given):
            yield
            sys.stdout.flush()  # a closed pipe is met here, and not at the end of the interpreter
    except BrokenPipeError:
        if not _unread():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer goes nowhere
        raise SystemExit(128 + signal.SIGPIPE) from None
    except UserError as error:
        print(*map(printable, str(error).split("\n")), sep="\n", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        raise SystemExit(130) from None


def _unread() -> bool:
    """Whether standard output is a pipe that nobody reads any more, as in `faultline --help | head`."""
    with suppress(OSError, ValueError):  # it may be no file
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    return False


@contextmanager
def refusing(given: str = "") -> Iterator[None]:
    """Context manager that turns each error with an `explanation` into a UserError. given: the user's input, for the text."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if line := explanation(error, given):
            raise UserError(line) from None
        raise


def explanation(error: Exception, given: str = "") -> str | None:
    """One line with the cause of an error and its remedy; None for a bug. given: user input, shown if the error names no key."""
    causes: list[BaseException] = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    for cause in causes:
        if isinstance(cause, UserError):  # Hydra wraps what its plug-ins raise
            return str(cause)
    if isinstance(error, ModuleNotFoundError):
        return absence(error)
    if isinstance(error, MemoryError):
        return "this needs more memory than is free here; free some, or give it less to read"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; give a path that can be read and written"
    if not _of_library(causes[-1]):  # else Hydra met a bug of a plug-in of ours
        return None
    if isinstance(error, RecursionError):
        return _short(given) + "a value is nested too deeply; write it with fewer brackets"
    from harness.composer import refusal  # it imports Hydra, which is there if it has raised an error

    own = type(error).__module__.partition(".")[0] in LIBRARIES  # else an accident within them, which names no key
    return refusal(error) if own else f"{_short(given)}no config can be made of this ({refusal(error)})"


def _short(given: str) -> str:
    return f"{given[:SHOWN]}{'...' if len(given) > SHOWN else ''}: " if given else ""


def _of_library(error: BaseException) -> bool:
    """Whether Hydra, OmegaConf or yaml (LIBRARIES) raised the error. The innermost frame outside the standard library decides."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = [str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame in frames]
    others = [package for package in packages if package not in sys.stdlib_module_names]
    return bool(others) and others[-1] in LIBRARIES
