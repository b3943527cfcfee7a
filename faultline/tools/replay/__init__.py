"""`faultline replay`: compute the effect of each correction, at each threshold, on a dumped batch."""
