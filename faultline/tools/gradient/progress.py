"""Lines that say how far a long comparison is."""

from __future__ import annotations

import time


class Progress:
    """A line every few seconds over `whole` gradients. The clock starts with the first: batches are drawn before it."""

    EVERY = 5.0

    def __init__(self, whole: int):
        self.whole, self.done, self.began, self.last = whole, 0, 0.0, 0.0

    def show(self, what: str) -> None:
        """Tell of the gradient that was just computed, unless the last line is younger than EVERY seconds."""
        now = time.monotonic()
        self.done += 1
        if self.done == 1:
            self.began = self.last = now
        elif now - self.last >= self.EVERY:
            self.last = now
            left = (now - self.began) / (self.done - 1) * (self.whole - self.done)
            print(f"{what}  about {left:.0f} s left", flush=True)

    def skip(self, gradients: int) -> None:
        """These need not be computed."""
        self.whole -= gradients
