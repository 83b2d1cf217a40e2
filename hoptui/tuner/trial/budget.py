"""What the search may cost a run, in seconds of its time."""

from __future__ import annotations

from hoptui.domain.tuning import YOUNG_S


class Budget:
    """The share of a run's time that goes into trials.

    What counts is what a trial costs: how long the run stood still for it and, unless it is kept, the
    iterations in it. Those of a change that is kept were faster than they would have been. Time in which the
    run does not train is no time here.
    """

    def __init__(self, share: float, now: int) -> None:
        self.share = share
        self.lived = 0.0
        self.spent = 0.0
        self.fruitless = False
        """Whether a trial was taken back before."""
        self._t = now

    def take_over(self, lived: float, share: float, *, fruitless: bool) -> None:
        """Go on from what another tuner of the run has left: seconds of its time, and the share of them that
        trials have cost."""
        self.lived += lived
        self.spent += share * lived
        self.fruitless |= fruitless

    def tick(self, t: int, *, training: bool, trying: bool) -> float:
        """The clock is at `t` (monotonic ns); what was the run doing since the last tick? Seconds that count
        as its time."""
        passed = max(0, t - self._t) / 1e9 if training else 0.0
        self._t = max(t, self._t)
        self.lived += passed
        if trying:
            self.spent += passed
        return passed

    @property
    def left(self) -> float:
        """Seconds that may still be spent, negative when overdrawn."""
        return self.share * max(self.lived, YOUNG_S) - self.spent

    @property
    def share_spent(self) -> float:
        """Of the run's time so far."""
        return self.spent / self.lived if self.lived else 0.0

    def affords(self, standstill: float, iterations: float) -> bool:
        """Whether a trial can be paid for: seconds of standing still, and of iterations.

        Until one was taken back, iterations may take as long as they do: where one takes minutes, nothing
        could ever be tried.
        """
        return standstill + (iterations if self.fruitless else 0.0) <= self.left

    def refund(self, seconds: float) -> None:
        """A trial was kept: so much of it cost nothing."""
        self.spent = max(0.0, self.spent - seconds)
