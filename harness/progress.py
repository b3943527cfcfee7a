"""Prints the progress of a long command on standard error every few seconds, with the time left."""

from __future__ import annotations

import sys
import time


class Progress:
    """Prints the time left of a command of `whole` parts every few seconds. The first part, often slower, is not counted."""

    EVERY = 5.0

    def __init__(self, whole: float):
        self.whole, self.done, self.first, self.began, self.last = whole, 0.0, 0.0, 0.0, 0.0

    def show(self, what: str, parts: float = 1) -> None:
        """Record `parts` as done. After the first call also print `what` and the time left, at most once in EVERY seconds."""
        now = time.monotonic()
        self.done += parts
        if not self.began:
            self.began = self.last = now
            self.first = self.done
        elif now - self.last >= self.EVERY and self.done > self.first:
            self.last = now
            left = (now - self.began) / (self.done - self.first) * (self.whole - self.done)
            print(f"{what}  about {left:.0f} s left", file=sys.stderr, flush=True)

    def skip(self, parts: float) -> None:
        """Subtract `parts` that turn out to need no work from the total number of parts of the command."""
        self.whole -= parts
