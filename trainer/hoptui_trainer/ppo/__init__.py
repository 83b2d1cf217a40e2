"""Proximal policy optimisation (Schulman et al. 2017) on environments that are tensors themselves.

`train.py` is the loop, read from top to bottom; started by `hoptui train ppo`. It knows nothing of daemons
and screens.
"""
