"""`faultline watch SWEEP`: progress of a running sweep, as a local page or in the terminal. Only reads the sweep's folders."""
