"""`faultline replay`: what each correction at each threshold would have done to a dumped batch."""
