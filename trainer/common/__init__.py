"""What every workload needs: the device, clocks for phases, random streams, checkpoints, a clean stop.

Called by the workloads alone; knows none of them, and nothing of environments, models or losses.
"""
