"""The x axes of a run's charts, and the recording that lies beside it while two runs are compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hoptui.model.alignment import MILLI, Iterations
from hoptui.tui.panels.axes import Axis, Side, StepAxis, TimeAxis
from hoptui.tui.view import AnySeries, View

if TYPE_CHECKING:
    from hoptui.model.reference_run import Companion


class Comparison:
    """`companion` is the recording beside the run, None while nothing is compared. What was found about iterations is kept."""

    def __init__(self) -> None:
        self.companion: Companion | None = None
        self._kept: dict[str, Iterations] = {}

    def open(self, path: Path, now: float) -> str:
        """Compare with a recording from now on (`now` is seconds, monotonic), or say in a sentence why that cannot be."""
        # Here, because a live dashboard needs no SQLite:
        from hoptui.model.reference_run import CannotCompare, Companion

        try:
            opened = Companion(path, now)
        except CannotCompare as error:
            return str(error)
        self.end()
        self.companion = opened
        return ""

    def end(self) -> None:
        """Compare no longer."""
        if self.companion is not None:
            self.companion.close()
        self.companion = None
        self._kept.pop("beside", None)

    def renew(self, now: float) -> None:
        """Read on in the recording of a run that goes on; call it with every frame."""
        if self.companion is not None and self.companion.renew(now):
            self._kept.pop("beside", None)

    def axis(self, view: View, *, by_step: bool) -> Axis:
        """The axis of this moment; that of iterations only where any is known."""
        beside = Side(self.companion.store, self.companion.run) if self.companion else None
        steps = view.store.steps(view.source) if by_step else None
        if steps is None or not steps.last_t:
            return TimeAxis(view, beside)
        theirs = beside.store.steps(beside.source) if beside else None
        return StepAxis(
            view, self._of("own", steps), beside, self._of("beside", theirs) if theirs is not None else None
        )

    def iteration(self, view: View, t: int) -> float | None:
        """In which iteration the run on screen was at a stamp, None where that is unknown."""
        steps = view.store.steps(view.source)
        place = self._of("own", steps).whole.place(t) if steps is not None and steps.last_t else None
        return place / MILLI if place is not None else None

    def _of(self, whose: str, steps: AnySeries) -> Iterations:
        known = self._kept.get(whose)
        if known is None or known.steps is not steps:
            known = self._kept[whose] = Iterations(steps)
        return known
