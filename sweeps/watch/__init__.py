"""`faultline watch SWEEP`: progress of a running sweep, as a local page or in the terminal. It only reads the sweep's files."""
