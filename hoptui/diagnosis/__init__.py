"""What limits a run: a verdict with evidence and advice, from the rows of a time window. Pure; no I/O."""
