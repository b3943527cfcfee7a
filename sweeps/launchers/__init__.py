"""Launchers of the runs of a sweep: on this machine (`local`) or on Slurm (`slurm`)."""
