"""What the name of a run's metric says of it: its label, its unit, whether it measures learning. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from hoptui.presentation import numbers
from hoptui.presentation.readings import Unit

PHASE = "phase/"
FIRST = (
    "episode_return", "return", "reward", "accuracy", "validation_loss", "loss", "train_loss", "policy_loss",
)  # fmt: skip
_COUNTS = ("env_steps", "samples", "tokens", "episodes", "lr", "iteration_s")
_SUFFIXES: tuple[tuple[str, Unit], ...] = (
    ("_bytes_per_s", "B/s"), ("_bytes", "B"), ("_percent", "%"),
    ("_w", "W"), ("_j", "J"), ("_c", "°C"), ("_s", "s"),
)  # fmt: skip

Direction = Literal["least", "greatest"]
_LEAST = frozenset(("loss", "perplexity", "ppl", "error", "nll", "mse", "mae", "rmse", "wer", "cer", "fid"))
_GREATEST = frozenset(("return", "reward", "accuracy", "acc", "top1", "top5", "auc", "f1", "bleu", "success"))
_NEITHER = frozenset(("policy", "value", "actor", "critic", "entropy", "q", "time", "s", "count"))
"""Words of metrics whose least or greatest value is no result: a part of a loss, a time."""


def label_of(name: str) -> str:
    """Return a metric's name for display: no control characters, spaces for underscores."""
    return numbers.clean(name, 40).replace("_", " ")


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


def learning_metrics(names: Iterable[str], headline: str) -> list[str]:
    """Return the metrics that measure learning, the most telling first: no phases, rates or counts, and not
    the headline metric."""
    found = [
        name
        for name in names
        if not name.startswith(PHASE)
        and not name.endswith(("_per_s", "_total"))
        and name not in _COUNTS
        and name != headline
    ]
    first = [name for name in FIRST if name in found]
    return first + [name for name in found if name not in first]


def best_end(name: str) -> Direction | None:
    """Return which end of a metric's values is the best by the convention of its name, None for no
    convention."""
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    if words & _NEITHER:
        return None
    if words & _LEAST:
        return "least"
    return "greatest" if words & _GREATEST else None
