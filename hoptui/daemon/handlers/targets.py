"""The targets of runs: what users want of their GPUs, and whether it is so. No I/O.

They are part of a run's state. So viewers, its recording and the next daemon have them, and they go on with
the next process of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs

from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.diagnosis.targets import COVERED_NS, JUDGED_S, Judgement, Stretch, TrainingTime, judge
from hoptui.domain.facts import Fact, fact
from hoptui.domain.targets import MOST_TARGETS, SetTargets, TargetsSet, TargetState, changed, valid
from hoptui.domain.throughput import ASIDE_COLUMNS
from hoptui.protocol.authors import author
from hoptui.protocol.messages import Origin

SECOND = 1_000_000_000
KIND = "target"
MOST_ROWS = 8192
EVERY_NS = 5 * SECOND
"""Time between two judgements. Each looks at half a minute of rows of each GPU."""
MOVED, MOVED_NS = 0.01, 10 * SECOND
"""A new mean is published if it has moved by this share of the target, and after this time. Each publication
costs viewers the whole state of the node."""


class _Case:
    """What one process of a run has trained so far."""

    def __init__(self, nonce: str, begun: int) -> None:
        self.nonce = nonce
        self.time = TrainingTime(begun)


class TargetDesk:
    """Answers requests for targets, and judges them. `keep` brings what is known of a run to the disk."""

    def __init__(self, node: Node, keep: Callable[[str], object]) -> None:
        self._node = node
        self._keep = keep
        self._cases: dict[str, _Case] = {}
        self._due = 0

    # requests -----------------------------------------------------------------------------------------------

    def receive(self, request: SetTargets, who: Origin) -> TargetsSet:
        """Carry out a request of a viewer. If it is refused, the answer has the reason."""
        run = self._node.registry.get(request.run)
        refusal = self._refusal(request, run)
        if run is None or refusal is not None:
            no = refusal or fact("target.no_live_run", run=request.run)
            return TargetsSet(id=request.id, run=request.run, granted=False, code=no.code, fields=no.fields)
        before, after = run.state.targets, changed(run.state.targets, request)
        if after != before:
            run.state = structs.replace(run.state, targets=after)
            self._tell(run, before, after, who)
            self._look(run)
            self._publish(run)
        return TargetsSet(id=request.id, run=run.id, granted=True, targets=run.state.targets)

    def _refusal(self, request: SetTargets, run: TrackedRun | None) -> Fact | None:
        if run is None or run.exited:
            return fact("target.no_live_run", run=request.run)
        bad = next((target for target in request.targets if not valid(target)), None)
        if bad is not None:
            return fact("target.invalid", reading=bad.reading[:40])
        if len(changed(run.state.targets, request)) > MOST_TARGETS:
            return fact("target.too_many", most=MOST_TARGETS)
        known = {state.target.reading for state in run.state.targets}
        lacking = [name[:40] for name in request.remove if name not in known]
        return fact("target.none", run=run.state.name, reading=lacking[0]) if lacking else None

    def _tell(
        self, run: TrackedRun, before: tuple[TargetState, ...], after: tuple[TargetState, ...], who: Origin
    ) -> None:
        by = author(who, sentence=True)
        old, new = {state.target for state in before}, {state.target for state in after}
        gone = {(target.reading, target.side): target for target in old - new}
        for state in after:
            if state.target not in old:
                gone.pop((state.target.reading, state.target.side), None)
                self._event(run, fact("target.set", target=state.target, by=by))
        for target in gone.values():
            self._event(run, fact("target.removed", target=target, by=by))

    # judging ------------------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Judge the targets of every live run that has some, if it is due."""
        node = self._node
        t = node.clock.t()
        if t < self._due:
            return
        self._due = t + EVERY_NS
        live = {run.id: run for run in node.registry.live() if run.state.targets}
        self._cases = {run: case for run, case in self._cases.items() if run in live}
        for run in live.values():
            before = run.state.targets
            node.faults.attempt(f"judging the targets of {run.id}", self._look, run)
            after = run.state.targets
            if [state.standing for state in before] != [state.standing for state in after]:
                self._publish(run)
            elif before != after:
                node.touch()

    def _look(self, run: TrackedRun) -> None:
        stretches = self._trained(run)
        if not stretches:
            return
        start = stretches[0][0]
        gpus = [gpu for gpu in self._node.gpus if gpu.uuid in run.state.gpus]
        names = tuple(dict.fromkeys(state.target.reading for state in run.state.targets))
        rows = {}
        for gpu in gpus:
            ring = self._node.rings.get(f"gpu/{gpu.uuid}")
            found = ring.excerpt(names, after=start - COVERED_NS, most=MOST_ROWS) if ring else None
            rows[gpu.uuid] = found if found is not None and len(found) else None
        judged = tuple(
            self._after(run, state, judge(state.target, stretches, gpus, rows), stretches)
            for state in run.state.targets
        )
        if judged != run.state.targets:
            run.state = structs.replace(run.state, targets=judged)

    def _trained(self, run: TrackedRun) -> list[Stretch]:
        """Return when this process of the run trained last, empty while that is too little."""
        clock = self._node.clock
        case = self._cases.get(run.id)
        if case is None or case.nonce != run.nonce:
            lived = clock.wall() - run.state.started_wall
            case = self._cases[run.id] = _Case(run.nonce, clock.t() - int(max(0.0, lived) * SECOND))
        ring = self._node.rings.get(f"run/{run.id}")
        if ring is not None and ring.last_t > case.time.seen_t:
            names = ("iteration_s", *ASIDE_COLUMNS)
            case.time.add(ring.excerpt(names, after=case.time.seen_t, most=MOST_ROWS))
        return case.time.newest(JUDGED_S)

    def _after(
        self, run: TrackedRun, state: TargetState, found: Judgement, stretches: list[Stretch]
    ) -> TargetState:
        """Return the state after a judgement.

        Between `met` and `missed` there is always the whole training time of a judgement.
        """
        start, end = stretches[0][0], stretches[-1][1]
        waits = start < state.since <= end  # a later stamp is of another boot
        if {state.standing, found.standing} == {"met", "missed"} and waits:
            return state
        news = found.standing != state.standing
        if not news and not _moved(state, found, end):
            return state
        seconds = round(sum(last - first for first, last in stretches) / SECOND, 1)
        after = structs.replace(
            state,
            standing=found.standing,
            mean=None if found.mean is None else float(f"{found.mean:.4g}"),
            gpu=found.gpu,
            seconds=seconds,
            t=end,
            since=end if news else state.since,
        )
        if found.standing == "missed" and not state.told:
            self._event(run, fact("target.missed", **self._figures(run, after)), missed=True)
        elif found.standing == "met" and state.told:
            self._event(run, fact("target.met", **self._figures(run, after)))
        else:
            return after
        return structs.replace(after, told=found.standing == "missed")

    def _figures(self, run: TrackedRun, state: TargetState) -> dict[str, Any]:
        """Return what an event has of a judgement."""
        gpu = next((gpu.index for gpu in self._node.gpus if gpu.uuid == state.gpu), None)
        several = len(run.state.gpus) > 1
        return {
            "target": state.target,
            "mean": state.mean,
            "seconds": state.seconds,
            **({"gpu": gpu} if several and gpu is not None else {}),
        }

    def _event(self, run: TrackedRun, what: Fact, *, missed: bool = False) -> None:
        step = run.last_step if run.last_t else None
        self._node.event(KIND, what, run=run.id, step=step, level="warning" if missed else "info")

    def _publish(self, run: TrackedRun) -> None:
        """Tell viewers and the disk of targets that have changed."""
        self._node.remember(run)
        self._keep(run.id)
        self._node.touch()


def _moved(state: TargetState, found: Judgement, t: int) -> bool:
    """Return whether the mean has moved by enough, and after enough time, to be published."""
    if t - state.t < MOVED_NS or found.mean is None or state.mean is None:
        return False
    return abs(found.mean - state.mean) > MOVED * state.target.value
