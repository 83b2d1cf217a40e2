"""The error of a person who asked for something that cannot be."""

from __future__ import annotations


class UsageError(Exception):
    """One sentence that names the offending option; the command prints it and exits with 2."""
