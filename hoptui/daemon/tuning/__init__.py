"""The tuner of each run, as the daemon drives it."""
