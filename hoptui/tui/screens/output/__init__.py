"""The screen of what a run writes to stdout and stderr."""
