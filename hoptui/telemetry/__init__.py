"""The sampler: a child process that reads the host, the runs' processes and the GPUs, and sends rows down a pipe.

The daemon starts it as `python -m hoptui.telemetry`, because an NVML call can hang for ever and only a process can be
left behind. It never writes to a disk, a socket or a GPU, and it never guesses: what it cannot read is absent.
"""
