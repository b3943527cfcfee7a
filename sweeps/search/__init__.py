"""`faultline search SPEC`: thresholds searched with Optuna. A trial is runs of several seeds."""
