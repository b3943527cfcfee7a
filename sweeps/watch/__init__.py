"""`faultline watch SWEEP`: what a sweep under way is doing, as a local page or in the terminal. Reads its folders alone."""
