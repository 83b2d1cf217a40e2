"""One handler for each kind of peer: runs, viewers, samplers, tuners. No I/O; sending is passed in."""
