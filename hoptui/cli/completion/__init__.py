"""Completion of command lines in a shell: the scripts, and the names of runs, knobs and their values."""
