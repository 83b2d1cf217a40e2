"""The daemon's state: runs, recent rows, commands. No I/O."""
