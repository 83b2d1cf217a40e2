"""The screen of a run on several nodes."""
