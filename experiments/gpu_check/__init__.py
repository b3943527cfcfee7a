"""`make gpu`: check in one command that a machine with a GPU computes what the project claims.

Each check returns tables, printed and written as one Markdown section for RESULTS.md. On a CPU they show the CPU's numbers.
"""
