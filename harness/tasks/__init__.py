"""Tasks with an exact verifier. Built-ins: chain."""
