"""Parts that all workloads use: device, ranks, phases, memory, knobs, checkpoints and the session of a run.

This package imports no workload.
"""
