"""Real processes under random faults; see docs/internals/chaos.md."""
