"""Progress lines of a long command on standard error, with the time left."""

from __future__ import annotations

import sys
import time


class Progress:
    """Progress of a command in `whole` parts, with the time left, every few seconds after the first, perhaps slower, part."""

    EVERY = 5.0

    def __init__(self, whole: float):
        self.whole, self.done, self.first, self.began, self.last = whole, 0.0, 0.0, 0.0, 0.0

    def show(self, what: str, parts: float = 1) -> None:
        """Record `parts` as done, and print `what` with the time left, unless the previous line is younger than EVERY seconds."""
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
