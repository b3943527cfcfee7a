"""Where the runs of a sweep run: this machine (`local`) or Slurm (`slurm`)."""
