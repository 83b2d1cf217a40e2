"""The values in effect, which every trial is compared with: since when they are, and how fast the run is with
them."""

from __future__ import annotations

from hoptui.domain.knobs import KnobValue
from hoptui.tuner.measurement.effect import WARM_UP
from hoptui.tuner.measurement.throughput_series import ObjectiveSeries
from hoptui.tuner.observation import Observation

DIFFERENT = 0.10
"""A speed that differs by so much after somebody else's change means that the search starts anew."""


class Incumbent:
    """`values` by knob; `series` is all that was measured of the run, of which only what came `since` is of
    these values.

    Where the run has gone back to an earlier iteration since, all that is left is of them.
    """

    def __init__(self, series: ObjectiveSeries) -> None:
        self.series = series
        self.values: dict[str, KnobValue] = {}
        self._step = self._backwards = 0
        self._level: float | None = None  # the speed before somebody else's change

    def rest(self, observation: Observation, since: int) -> None:
        """What is in effect now is to be compared with, measured from the iteration `since` on."""
        self.values = observation.values()
        self._step, self._backwards = since, self.series.backwards

    def rest_anew(self, observation: Observation) -> None:
        """The same, where it has just changed: from the next iterations on that tell something."""
        self.rest(observation, self.series.newest + 1 + WARM_UP)

    def differs(self, observation: Observation) -> bool:
        """Whether somebody else, or the run itself, has changed a knob."""
        settings = observation.settings()
        return {name: self.values.get(name) for name in settings} != settings

    @property
    def seen(self) -> bool:
        """Whether an iteration with these values has been."""
        return bool(self.series.since(self._since))

    @property
    def level(self) -> float | None:
        """How fast the run is with these values lately, None where too little is known."""
        return self.series.level(self._since)

    @property
    def baseline(self) -> list[float]:
        """What a trial is compared with."""
        return self.series.values(self._since)

    def missing(self, gain: float | None) -> int:
        """How many iterations it still needs, where what is tried next is expected to bring `gain` (None:
        unknown)."""
        return self.series.missing(self._since, gain)

    @property
    def _since(self) -> int:
        return self._step if self._backwards == self.series.backwards else 0

    def left(self) -> None:
        """These values are not in effect any more, and nobody tried others: how fast the run was with
        them."""
        self._level = self._level or self.series.level(self._since)

    def explained(self) -> None:
        """Why the run is as fast as it is now is known."""
        self._level = None

    def another(self) -> bool:
        """Whether the run is another one since `left`, by its speed; asked once, when enough has been
        measured."""
        before, self._level = self._level, None
        now = self.series.level(self._since)
        return before is not None and now is not None and abs(now / before - 1) >= DIFFERENT
