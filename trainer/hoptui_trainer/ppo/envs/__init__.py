"""Environments: classic control as tensor arithmetic on any device, and whatever Gymnasium has, on the CPU.

Each file of physics holds one environment, equal to Gymnasium's step for step; `vector.py` adds time limits,
resets and staggered starts, and `gym.py` puts Gymnasium's own behind the same interface. No environment knows
of policies or of rollouts.
"""
