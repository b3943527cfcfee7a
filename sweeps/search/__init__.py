"""`faultline search SPEC`: thresholds searched with Optuna, a trial being runs of several seeds on Slurm."""
