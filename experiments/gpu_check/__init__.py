"""`make gpu`: what a machine with a GPU computes, against what the project says it computes, in one command.

Each check returns tables. `python -m experiments.gpu_check` prints them and writes one Markdown section for RESULTS.md.
Every check also runs on a CPU, where its numbers are those of the CPU.
"""
