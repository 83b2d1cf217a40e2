"""The overview: GPUs, processes, host, runs and events of a node."""
