"""Which logged metrics describe learning, and which end of each is the better one. By their names alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Literal

Better = Literal["least", "greatest"]

ALWAYS_DEFINED = re.compile(r"loss|nll|perplexity|grad_norm", re.IGNORECASE)
"""Names of metrics that are finite while training works. Others may be NaN on purpose, such as a mean of
nothing."""

FIRST = (
    "episode_return", "return", "reward", "accuracy", "validation_loss", "loss", "train_loss", "policy_loss",
)  # fmt: skip
RATE, TOTAL, PHASE = "_per_s", "_total", "phase/"
_COUNTS = ("env_steps", "samples", "tokens", "episodes", "lr", "iteration_s")
_LESS = frozenset(("loss", "error", "perplexity", "ppl", "nll", "mse", "mae", "rmse", "wer", "cer", "fid"))
_MORE = frozenset(
    (
        "return",
        "reward",
        "accuracy",
        "acc",
        "top1",
        "top5",
        "score",
        "success",
        "f1",
        "auc",
        "map",
        "bleu",
        "iou",
    )
)
_NEITHER = frozenset(
    ("policy", "value", "actor", "critic", "entropy", "q", "aux", "std", "min", "max", "time", "s", "count")
)

_OF_ENVIRONMENTS = frozenset(("env", "reward", "rewards", "rew", "episode", "episodes", "episodic"))
"""Words in the names of what a run logs that acts in environments."""


def acts(names: Iterable[str]) -> bool:
    """Return whether a run acts in environments: it logs their steps, rewards or episodes."""
    return any(not _OF_ENVIRONMENTS.isdisjoint(re.findall("[a-z]+", name.lower())) for name in names)


def learning_names(names: Iterable[str], headline: str = "") -> list[str]:
    """Return the metrics of learning, the most telling first: no phases, rates or counts.

    `headline` is the declared headline metric of the run, which is left out too.
    """
    found = [
        name
        for name in names
        if not name.startswith(PHASE)
        and not name.endswith((RATE, TOTAL))
        and name not in _COUNTS
        and name != headline
    ]
    first = [name for name in FIRST if name in found]
    return first + [name for name in found if name not in first]


def headline_name(names: Iterable[str], declared: str = "") -> str:
    """Return the headline metric: the declared one, otherwise the first rate, "" without one."""
    return declared or next((name for name in names if name.endswith(RATE)), "")


def is_undefined(name: str, value: float) -> bool:
    """Return whether a value is no finding but unknown: the NaN of a metric that may have nothing to measure.

    The mean return of an iteration in which no episode ended is one. A loss that is NaN has diverged.
    """
    return math.isnan(value) and not ALWAYS_DEFINED.search(name)


def better_end(name: str) -> Better | None:
    """Return which value of a metric is the best one, None where its name does not decide that.

    The loss of a policy or of a critic measures no progress.
    """
    if name.endswith(RATE):
        return "greatest"
    words = frozenset(re.split(r"[^a-z0-9]+", name.lower()))
    if words & _NEITHER:
        return None
    less, more = bool(words & _LESS), bool(words & _MORE)
    if less == more:
        return None
    return "least" if less else "greatest"
