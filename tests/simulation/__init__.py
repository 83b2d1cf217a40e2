"""Deterministic simulation: the real code of runs, daemon and viewers on a simulated node.

One seed decides everything.

`kernel` has virtual time and threads, `fabric` the sockets, `substitutes` what else the code takes from the
system. `node` starts processes, `scenario` makes a plan of actions and faults from a seed, `truth` keeps what
really happened, and `invariants` compares it with what viewers and recordings say.
"""
