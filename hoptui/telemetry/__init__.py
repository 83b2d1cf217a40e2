"""The samplers: two child processes that read the host and the GPUs, and send what they find down a pipe.

The daemon starts them as `python -m hoptui.telemetry host` and `… gpus`, apart from each other because an
NVML call can hang for ever and only a process can be left behind. They never write to a disk, a socket or a
GPU, and never guess: what cannot be read is absent.
"""
