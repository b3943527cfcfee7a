"""`faultline gradient`: compare the gradient of each loss and correction with the true policy gradient."""
