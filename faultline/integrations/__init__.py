"""Hooks for other training programs (TRL, verl). They write the dumps that `faultline replay` reads, and print diagnoses."""
