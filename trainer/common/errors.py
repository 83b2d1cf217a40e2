"""What ends a run that is not a fault of the program: a wish that cannot be met, a rank that is gone."""

from __future__ import annotations


class UsageError(Exception):
    """One sentence that names the offending option; the command prints it and exits with 2."""


class LostRankError(Exception):
    """Another rank is gone; the text says which one and why."""
