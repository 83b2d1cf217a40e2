"""What runs inside the training process: declared knobs, the boundary, metrics, and one thread that owns one socket.

Training scripts reach it through `import hoptui`. It never raises into the training loop, never makes it wait, never
touches the trainer's random numbers, signals or devices, and is a no-op in forked children and with `HOPTUI=off`.
"""
