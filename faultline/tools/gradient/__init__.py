"""`faultline gradient`: the gradient that each loss and correction gives, against the gradient that it should give."""
