"""`make gpu`: check in one command that a machine with a GPU computes what the project claims.

Each check returns tables. `python -m experiments.gpu_check` prints the tables and writes one Markdown section for RESULTS.md.
Every check also runs on a CPU, where its numbers are those of the CPU.
"""
