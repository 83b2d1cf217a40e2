"""Training workloads that hoptui steers: `hoptui train ppo`, `hoptui train lm`, `hoptui train vision`.

They use hoptui's public API only. They run unchanged without a daemon (`HOPTUI=off`). torch is imported when
training starts, not before. `python -m hoptui_trainer` is the same command, for torchrun.
"""

__version__ = "0.1.0"
