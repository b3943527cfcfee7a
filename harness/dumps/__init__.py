"""Dumps of training batches: log-probabilities, masks, advantages and rewards as parquet. Torch-free."""
