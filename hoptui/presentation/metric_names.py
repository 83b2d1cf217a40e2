"""What the name of a run's metric says of it: its label and its unit. Pure."""

from __future__ import annotations

from hoptui.domain.learning_metrics import is_undefined
from hoptui.presentation import numbers
from hoptui.presentation.readings import Unit

PHASE = "phase/"
_SUFFIXES: tuple[tuple[str, Unit], ...] = (
    ("_bytes_per_s", "B/s"), ("_bytes", "B"), ("_percent", "%"),
    ("_w", "W"), ("_j", "J"), ("_c", "°C"), ("_s", "s"),
)  # fmt: skip


def label_of(name: str) -> str:
    """Return a metric's name for display: no control characters, spaces for underscores."""
    return numbers.clean(name, 40).replace("_", " ")


def logged(name: str, value: float | None) -> str:
    """Format a value of a metric that a script logged: `0.183`, `inf`, `NaN`. An undefined one is unknown."""
    return numbers.UNKNOWN if value is not None and is_undefined(name, value) else numbers.logged(value)


def unit_and_label(name: str, declared: str = "") -> tuple[str, str]:
    """Return the unit of a metric, as declared or from its name ("" for none), and its label."""
    if declared:
        return numbers.clean(declared, 24), label_of(name)
    if name.startswith(PHASE):
        return "s", label_of(name)
    for suffix, unit in _SUFFIXES:
        if name.endswith(suffix) and not (suffix == "_s" and name.endswith("_per_s")):
            return unit, label_of(name.removesuffix(suffix))
    if name.endswith("_per_s"):
        return f"{label_of(name.removesuffix('_per_s'))}/s", label_of(name)
    return "", label_of(name)
