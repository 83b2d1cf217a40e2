"""What a request for a trace of some iterations may ask for."""

from __future__ import annotations

from collections.abc import Mapping

MOST_TRACED = 1000
"""Iterations of one trace, and iterations before it. Its file grows by megabytes per iteration."""
OPTIONS: Mapping[str, type[int] | type[bool]] = {
    "wait": int,  # iterations before the warm-up
    "warmup": int,  # iterations in which the profiler runs and records nothing
    "stacks": bool,  # the source line of each operation
    "shapes": bool,  # the shapes of its inputs
    "memory": bool,  # each allocation
}
"""The options of a trace beside the number of iterations. A run declares those that it understands."""


def declared(option: str) -> str:
    """The word by which a run declares an option, beside its verbs: `profile.stacks`."""
    return f"profile.{option}"


def valid(option: str, value: object) -> bool:
    """Return whether an option may have this value."""
    if OPTIONS.get(option) is int:
        return type(value) is int and 0 <= value <= MOST_TRACED
    return option in OPTIONS and type(value) is bool
