"""`faultline search SPEC`: search for thresholds with Optuna. Each trial consists of runs with several seeds."""
