"""Hooks for other reinforcement learning programs. They write the dumps that `faultline replay` reads, and print diagnoses."""
