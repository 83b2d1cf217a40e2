"""What all iterations of a recording come to: their seconds, their work, and the seconds of each phase."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul

from hoptui.recording import Recording
from hoptui.viewer.report.facts import ITERATION

PHASE = "phase/"


@dataclass
class Sums:
    """Seconds in iterations and in each phase, by its path; `work` in units of the rate, told by so many iterations (`told`).

    `numbered` is how many iterations there were by their numbers, `last_step` the greatest of these.
    """

    seconds: float = 0.0
    work: float = 0.0
    told: int = 0
    numbered: int = 0
    last_step: int | None = None
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def covered(self) -> float:
        """The share of the iterations whose work is known."""
        return self.told / self.numbered if self.numbered else 0.0


def summed(recording: Recording, source: str, names: Sequence[str], rate: str) -> Sums:
    """One pass over the rows of a run that are still there.

    Args:
        rate: the metric that work is counted by, "" for none.
    """
    sums = Sums()
    wanted = tuple(n for n in names if n in (ITERATION, rate) or n.startswith(PHASE))
    before: int | None = None
    for part in recording.rows(source, names=wanted):
        columns = {name: array("d", raw) for name, raw in zip(part.names, part.values, strict=True)}
        seconds = columns.get(ITERATION, array("d"))
        # Other rows of an iteration may come later than the next one: what was computed on the GPU is logged when it is known.
        for step in (n for n, s in zip(part.steps(), seconds, strict=False) if s == s and n >= 0):
            # A run that went back to a checkpoint numbers some again: only what is left out on the way up is missing.
            sums.numbered += 1 if before is None else max(0, step - before)
            before = step
            sums.last_step = max(step, sums.last_step or 0)
        sums.seconds += sum(_known(seconds))
        if rate in columns:
            done = _known(array("d", map(mul, columns[rate], seconds)))
            sums.work += sum(done)
            sums.told += len(done)
        for name, column in columns.items():
            if name.startswith(PHASE):
                path = name.removeprefix(PHASE)
                sums.phases[path] = sums.phases.get(path, 0.0) + sum(_known(column))
    return sums


def _known(column: array[float]) -> array[float]:
    """What is no NaN."""
    total = sum(column)
    return column if total == total else array("d", [value for value in column if value == value])
