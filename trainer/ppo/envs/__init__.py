"""Classic control as tensor arithmetic: many copies step at once, on whichever device holds them.

Each environment file holds the physics alone, equal to Gymnasium's step for step; `vector.py` adds time limits, resets
and staggered starts. No environment knows of policies or of rollouts.
"""
