"""Lines on standard error that say how far a long command is, and the time left."""

from __future__ import annotations

import sys
import time


class Progress:
    """A line every few seconds over `whole` parts. The clock starts with the end of the first: what came before is another kind.

    A command that takes less than EVERY seconds after its first part prints nothing.
    """

    EVERY = 5.0

    def __init__(self, whole: float):
        self.whole, self.done, self.first, self.began, self.last = whole, 0.0, 0.0, 0.0, 0.0

    def show(self, what: str, parts: float = 1) -> None:
        """Tell of the parts that have just ended, unless the last line is younger than EVERY seconds."""
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
        """Take parts that need not be done off the whole."""
        self.whole -= parts
