"""`faultline replay`: compute the effect of each correction, at each threshold, on sampled responses that a run dumped."""
