"""Hooks into other programs of reinforcement learning that write the dumps `faultline replay` reads."""
