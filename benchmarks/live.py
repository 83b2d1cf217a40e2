"""A run that goes on, as benchmarks of the tuner see and steer it."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from msgspec import structs

from benchmarks.measure import Bench, until
from benchmarks.training import Started, last_line
from hoptui.client.session import Session
from hoptui.domain.knobs import KnobValue
from hoptui.domain.throughput import level
from hoptui.domain.tuning import Limits, TunerState
from hoptui.presentation import sentences
from hoptui.protocol.messages import FINAL, RunState

Point = Mapping[str, KnobValue]
"""Knobs and their values."""
WARM_UP, ITERATIONS, LEAST_S, MOST_S = 3, 15, 1.5, 12.0
"""Iterations after a change that do not count; how many are measured, and for how long at least and at
most."""
FEW, HOPELESS = 3, 0.7
"""With so many of them it is plain that a point is not the best: less than this share of the best so far."""
START_S, SET_S = 300.0, 240.0
HELD_S = 20.0
"""A tuner that has had nothing to try for so long has done what it can: a run on shared cores may be lucky
for half of that."""
SHORT = re.compile(r"out of memory|memory ran out|not fit into|MemoryError|OutOfMemory")
"""How runs say that memory ran out: in a step, or as a size was tried out before it was used."""
ALL = 1 << 62
LOSSES = 10


def progress(rows: Sequence[tuple[int, Mapping[str, float]]], work: str) -> dict[str, Any]:
    """Return what rows of a run say of its training: iterations, their work, the first and the last loss.

    `rows` are steps with their values, `work` is the metric that counts units. Each loss is the mean of a
    tenth of those logged, at most of ten. `consecutive` is False where an iteration is missing or repeated.
    """
    done = [(step, values[work]) for step, values in rows if work in values]
    losses = [values["loss"] for _, values in rows if "loss" in values]
    few = max(1, min(LOSSES, len(losses) // LOSSES))
    return {
        "iterations": len(done),
        "work": sum(amount for _, amount in done),
        "losses": [round(fmean(part), 4) for part in (losses[:few], losses[-few:]) if part],
        "consecutive": all(after[0] == before[0] + 1 for before, after in pairwise(done)),
    }


class Live:
    """A started run, over a session with its daemon. `work` is the metric that counts its units."""

    def __init__(self, node: Bench, session: Session, started: Started, work: str) -> None:
        self._node, self._session, self._started, self._work = node, session, started, work
        # A run that chooses its micro-batch compiles what it measures sizes with before anybody hears of it.
        known: RunState = until(self._known, START_S, "the run")
        self._source = f"run/{known.run}"
        until(lambda: self._known() and self._rows(0), START_S, "the first iteration")

    def state(self) -> RunState:
        known = self._known()
        assert known is not None
        return known

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
        return good

    def rate(self, best: float = 0.0, *, after_s: float = 0.0) -> float:
        """Work a second, from `after_s` seconds on and for as long at least, as `pace.level` has it; over few
        iterations where it is far below `best`."""
        began = time.monotonic() + after_s
        since = round(began * 1e9)
        while True:
            rates = [work / seconds for work, seconds in self._rows(since)[WARM_UP:]]
            took = time.monotonic() - began
            enough = (len(rates) >= ITERATIONS and took > max(LEAST_S, after_s)) or took > MOST_S
            if rates and (enough or (len(rates) >= FEW and max(rates) < HOPELESS * best)):
                return level(rates)
            if took > SET_S:
                raise RuntimeError("the run makes no progress")
            time.sleep(0.05)

    def iterations(self, since: int) -> int:
        """Return how many iterations have ended since then (monotonic ns)."""
        return sum(1 for end, _, _ in self._timed(since) if end > since)

    def worked(self, since: int, until_t: int) -> float:
        """Return the work between two moments (monotonic ns), once it is known.

        Of an iteration that lies partly between them, that part of its work counts.
        """
        rows: list[tuple[int, float, float]] = until(
            lambda: (found := self._timed(since)) and found[-1][0] >= until_t and found,
            SET_S,
            "the iterations of a window",
        )
        total = 0.0
        for end, seconds, work in rows:
            begin = end - seconds * 1e9
            inside = min(end, until_t) - max(begin, since)
            total += work * max(0.0, inside) / (end - begin)
        return total

    def work(self) -> float:
        """Return the work of the next iteration."""
        since = time.monotonic_ns()
        return float(until(lambda: self._rows(since), START_S, "an iteration")[-1][0])

    def trained(self, since: int) -> dict[str, Any]:
        """Return `progress` since then (monotonic ns)."""
        return progress(list(self._history(since)), self._work)

    def tuned(self, limits: Limits, within_s: float) -> TunerState:
        """Run the tuner until it has nothing to try, at most `within_s`. A pending trial is reverted."""
        state = self.state()
        run = state.run
        for knob in state.knobs:  # the tuner leaves alone what was set by hand
            self._session.tune(run, "release", knob=knob.spec.name)
        answer = self._session.tune(run, "start", limits=limits)
        if not answer.granted:
            raise RuntimeError(f"the tuner does not start: {sentences.refusal(answer)}")
        end = time.monotonic() + within_s
        found, held = answer.state, math.inf
        while (now := time.monotonic()) < min(end, held + HELD_S):
            time.sleep(0.1)
            found = self.state().tuner or found
            held = min(held, now) if found.stand == "holding" else math.inf
        stopped = self._session.tune(run, "stop").state
        until(lambda: not self._pending(run), SET_S, "a trial to be reverted")
        return structs.replace(stopped, stand=found.stand, facts=found.facts)

    def out_of_memory(self, since: int) -> list[str]:
        """What the run has said since then (monotonic ns) of memory that ran out, survived or not."""
        run = self.state().run
        delta = self._session.fetch(run=run)
        said = [sentences.reason(r) for r in delta.commands if r.run == run and r.settled >= since]
        said += [
            sentences.event_text(e)
            for e in delta.events
            if e.run == run and e.kind == "note" and e.t >= since
        ]
        return [text for text in said if SHORT.search(text)]

    def values(self) -> dict[str, KnobValue]:
        """Of every knob, as read back."""
        return {knob.spec.name: knob.value for knob in self.state().knobs}

    def end(self) -> dict[str, Any]:
        """Stop it; what it says at its end."""
        self._session.outcome(self._session.submit(self.state(), "stop"), timeout_s=60)
        ended: dict[str, Any] = json.loads(last_line(self._started.child, "the run"))
        return ended

    def _known(self) -> RunState | None:
        """What the daemon knows of it.

        Raises:
            RuntimeError: it has ended.
        """
        if self._started.child.poll() is not None:
            raise RuntimeError(f"the run ended: {last_line(self._started.child, 'the run')}")
        return self._node.find(self._started.name)

    def _pending(self, run: str) -> bool:
        commands = self._session.fetch(run=run, events=ALL).commands
        return any(r.run == run and r.stage not in FINAL for r in commands)

    def _history(self, since: int) -> Iterator[tuple[int, dict[str, float]]]:
        """Yield the step and the values of every row since then."""
        while True:
            delta = self._session.fetch(cursors={self._source: since})
            rows = [row for columns in delta.columns for row in columns.rows()]
            if not rows:
                return
            yield from ((step, values) for _, step, values in rows)
            since = rows[-1][0]

    def _timed(self, since: int) -> list[tuple[int, float, float]]:
        """Return end (monotonic ns), seconds and work of the iterations that have ended since then."""
        found: list[tuple[int, float, float]] = []
        while True:
            delta = self._session.fetch(cursors={self._source: since})
            rows = [row for columns in delta.columns for row in columns.rows()]
            if not rows:
                return found
            since = rows[-1][0]
            found += [
                (t, values["iteration_s"], values[self._work])
                for t, _, values in rows
                if values.get("iteration_s") and self._work in values
            ]

    def _rows(self, since: int) -> list[tuple[float, float]]:
        delta = self._session.fetch(cursors={self._source: since}, wait_s=0.1)
        return [
            (values[self._work], values["iteration_s"])
            for columns in delta.columns
            for _, _, values in columns.rows()
            if self._work in values and "iteration_s" in values
        ]
