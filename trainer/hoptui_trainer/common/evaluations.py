"""The evaluations of a run: the newest, the best, and how many have come since that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Evaluations:
    """What the evaluations of a run have found, judged by one of their figures.

    `newest` and `best` hold the figures of an evaluation by name, and are empty before the first.
    `best_iteration` is the number of finished iterations at the best one, `since_best` counts the evaluations
    after it. `file` has the weights of the best one; None where they are in no file.

    Args:
        metric: the figure that decides which evaluation is better. One that is not a number is never better.
        higher: whether a higher one is better.
    """

    def __init__(self, metric: str, *, higher: bool = False) -> None:
        self.metric, self._higher = metric, higher
        self.newest: Mapping[str, float] = {}
        self.best: Mapping[str, float] = {}
        self.best_iteration: int | None = None
        self.since_best = 0
        self.file: Path | None = None

    def add(self, figures: Mapping[str, float], iteration: int) -> bool:
        """Count an evaluation after `iteration` iterations; returns whether it is the best so far."""
        self.newest = dict(figures)
        if not self._is_better(figures[self.metric]):
            self.since_best += 1
            return False
        self.best, self.best_iteration, self.since_best = self.newest, iteration, 0
        return True

    def result(self) -> dict[str, Any]:
        """The fields of a result: each newest figure, `best_` each, `best_iteration` and `best_file`."""
        best = {f"best_{name}": value for name, value in self.best.items()}
        return {**self.newest, **best, "best_iteration": self.best_iteration, "best_file": self._path()}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "newest": dict(self.newest),
            "best": dict(self.best),
            "best_iteration": self.best_iteration,
            "since_best": self.since_best,
            "file": self._path(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on where `saved` was taken. Weights whose file has gone are in no file."""
        self.newest, self.best = saved["newest"], saved["best"]
        self.best_iteration, self.since_best = saved["best_iteration"], saved["since_best"]
        self.file = Path(saved["file"]) if saved["file"] and Path(saved["file"]).is_file() else None

    def _is_better(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if not self.best:
            return True
        before = self.best[self.metric]
        return value > before if self._higher else value < before

    def _path(self) -> str | None:
        return str(self.file) if self.file is not None else None
