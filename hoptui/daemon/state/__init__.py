"""What the daemon knows: runs, recent rows, commands. No I/O."""
