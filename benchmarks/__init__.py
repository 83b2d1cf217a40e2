"""What hoptui costs and how fast it is, measured: one file a target, JSON out, medians and spread, pairs in
one run.

`make bench` runs all of them; `python -m benchmarks log_cost attach` some. Nothing here is a test: what was
measured, on what and when, is written down in docs/internals/benchmark_log.md.
"""
