"""The work that trials cost a run while its tuner is young."""

from __future__ import annotations

from hoptui.domain.tuning import YOUNG_S


class Regret:
    """The units of work lost to trials in the first hour of a tuner, in which the run trained.

    A trial loses what the run would have done at the rate before it, less what the run did. It lasts until an
    iteration with the values after it has been measured. A kept trial loses its pauses alone: its iterations
    are worth keeping. A checkpoint in a trial counts as lost, because its iteration has no rate.

    `best` is the highest known rate of the values to return to, in units per second. None while unknown.
    """

    def __init__(self) -> None:
        self.best: float | None = None
        self._lost: float | None = 0.0  # by ended trials
        self._trial: float | None = None  # by the present one
        self._rate = 0.0

    @property
    def units(self) -> float | None:
        """The units lost so far. None if the work of a trial or the rate before it was unknown."""
        return None if self._lost is None else self._lost + max(0.0, self._trial or 0.0)

    @property
    def counts(self) -> bool:
        """Whether a trial has begun and its loss has not ended."""
        return self._trial is not None

    def take_over(self, units: float | None, best: float | None) -> None:
        """Continue the account of an earlier tuner of the run."""
        self._lost, self.best = units, best

    def know(self, rate: float | None) -> None:
        """Take the measured rate of the values in effect, outside of trials."""
        if rate is not None:
            self.best = max(rate, self.best or 0.0)

    def begin(self, rate: float | None, lived_s: float) -> None:
        """Begin a trial of a run with this rate."""
        if lived_s >= YOUNG_S:
            return
        self.end()
        self._trial, self._rate = 0.0, rate or 0.0
        if rate is None:
            self._lost = None

    def look(self, seconds: float, work: float | None, lived_s: float) -> None:
        """Count `seconds` of a trial, in which the run did this `work` (None: unknown)."""
        if self._trial is None or lived_s >= YOUNG_S:
            return
        if work is None:
            self._lost = None
        else:
            self._trial += self._rate * seconds - work

    def kept(self, paused_s: float) -> None:
        """End a trial that is kept, for which the run paused so long."""
        if self._trial is not None:
            self._trial = self._rate * paused_s
            self.end()

    def end(self) -> None:
        """End the loss of a trial. A gain does not make up for the loss of another."""
        if self._lost is not None:
            self._lost += max(0.0, self._trial or 0.0)
        self._trial = None
