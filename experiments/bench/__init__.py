"""`make bench`: speed as ratios, each pair in one process, taking turns so that a busy machine slows both alike."""
