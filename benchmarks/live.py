"""A run that goes on, as benchmarks of the tuner see and steer it."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.measure import Bench, until
from benchmarks.training import Started, last_line
from hoptui.viewer.session import Session
from hoptui.wire.knobs import KnobValue
from hoptui.wire.messages import RunState
from hoptui.wire.tuning import Limits, TunerState

Point = Mapping[str, KnobValue]
"""Knobs and their values."""
WARM_UP, ITERATIONS, LEAST_S, MOST_S = 3, 15, 1.5, 12.0
"""Iterations after a change that do not count; how many are measured, and for how long at least and at most."""
START_S, SET_S, TUNE_S = 300.0, 120.0, 400.0


class Live:
    """A started run, over a session with its daemon. `work` is the metric that counts its units."""

    def __init__(self, node: Bench, session: Session, started: Started, work: str) -> None:
        self._node, self._session, self._started, self._work = node, session, started, work
        self.refused = 0
        """Values that the run could not hold: out of memory, or out of its bounds."""
        self._source = f"run/{self.state().run}"
        until(lambda: self._rows(0), START_S, "the first iteration")

    def state(self) -> RunState:
        if self._started.child.poll() is not None:
            raise RuntimeError(f"the run ended: {last_line(self._started.child, 'the run')}")
        return self._node.run(self._started.name)

    def set(self, point: Point) -> bool:
        """Set these knobs, those that make the work smaller first. False where the run does not hold one."""
        state = self.state()
        held = {knob.spec.name: knob.value for knob in state.knobs}
        wanted = {name: value for name, value in point.items() if held[name] != value}
        good = True
        for name in sorted(wanted, key=lambda name: wanted[name] > held[name]):  # type: ignore[operator]
            command = self._session.submit(state, "set", knob=name, value=wanted[name], why="the grid")
            outcome = self._session.outcome(command, timeout_s=SET_S)
            good = good and outcome.stage == "applied" and outcome.effective == wanted[name]
        self.refused += not good
        return good

    def rate(self) -> float:
        """Work a second, from now on: the median over iterations."""
        since = time.monotonic_ns()
        began = time.monotonic()
        while True:
            found = self._rows(since)[WARM_UP:]
            took = time.monotonic() - began
            if found and ((len(found) >= ITERATIONS and took > LEAST_S) or took > MOST_S):
                return statistics.median(work / seconds for work, seconds in found)
            if took > SET_S:
                raise RuntimeError("the run stands still")
            time.sleep(0.05)

    def tuned(self, limits: Limits) -> TunerState:
        """Let the tuner work until it has nothing more to try."""
        run = self.state().run
        self._session.lease(run, "release", "knobs")  # the grid's values were a person's, and held it off
        answer = self._session.tune(run, "start", limits=limits)
        if not answer.granted:
            raise RuntimeError(f"the tuner does not start: {answer.reason}")

        def holds() -> TunerState | None:
            tuner = self.state().tuner
            return tuner if tuner is not None and tuner.stand == "holding" else None

        found: TunerState = until(holds, TUNE_S, "the tuner to have tried everything")
        self._session.tune(run, "stop")
        return found

    def values(self) -> dict[str, KnobValue]:
        """Of every knob, as read back."""
        return {knob.spec.name: knob.value for knob in self.state().knobs}

    def end(self) -> dict[str, Any]:
        """Stop it; what it says at its end."""
        self._session.outcome(self._session.submit(self.state(), "stop"), timeout_s=60)
        ended: dict[str, Any] = json.loads(last_line(self._started.child, "the run"))
        return ended

    def _rows(self, since: int) -> list[tuple[float, float]]:
        delta = self._session.fetch(cursors={self._source: since}, wait_s=0.1)
        return [
            (values[self._work], values["iteration_s"])
            for columns in delta.columns
            for _, _, values in columns.rows()
            if self._work in values and "iteration_s" in values
        ]
