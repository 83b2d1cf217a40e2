"""Training workloads that are steered by knobs: `trainer ppo`, `trainer lm`, `trainer vision`.

They use hoptui's public API only and run unchanged without a daemon (`HOPTUI=off`). torch is imported when training
starts, not before. Nothing in hoptui imports this package.
"""
