"""The tuners of the daemon: one for each run for which a user has requested it. No viewer needs to stay
connected. No I/O.

Their actions are reported as the state of their runs and as events, and stored for the next daemon.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from msgspec import structs

from hoptui.daemon.measurable_energy import obstacle as energy_obstacle
from hoptui.daemon.state.node import AFTER_FAULT_NS, Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.daemon.tuning import NAME, Forward, TunerController, observe
from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import MOST_NAMED
from hoptui.domain.tuning import Change, Limits, Tune, Tuned, TunerState, check_limits, may_turn
from hoptui.protocol.authors import author
from hoptui.protocol.messages import Origin
from hoptui.tuner.change_points import ChangePointDetector
from hoptui.tuner.observation import PriorResult
from hoptui.tuner.overrides import KnobOverrides
from hoptui.tuner.prior_results import TunerResult, best, key
from hoptui.tuner.rollback import cut_off, unfinished
from hoptui.tuner.tuner import Tuner

log = logging.getLogger("hoptui.daemon")

UNTUNED_NS = 2_000_000_000
"""How often a run without a tuner is checked for changes of its speed that no command explains."""
CRASHED_KEPT = 50
MORE = 1.1
KILLED, CRASHED = fact("daemon.restarted"), fact("run.crashed")
BROKE, BREAK = fact("tuner.broken"), fact("tuner.broke")


class ResultStore(Protocol):
    """What the archive does for tuners. `keep` brings what is known of a run to the disk at once. It returns
    a function that returns whether it is there."""

    @property
    def settled(self) -> Sequence[TunerResult]: ...
    def settle(self, result: TunerResult) -> None: ...
    def keep(self, run: str) -> Callable[[], bool]: ...


class _Crashed(NamedTuple):
    """What the tuner of a run that crashed has left, and what it tried just then, because that may be why."""

    left: TunerState
    cause: Fact
    trying: tuple[Change, ...]


class TunerDesk:
    """Answers requests to tuners, and has each look at its run. `forward` sends a command on to a run."""

    def __init__(
        self,
        node: Node,
        memory: ResultStore,
        forward: Forward,
        make: Callable[[Limits, int, str, PriorResult | None, KnobOverrides], Tuner] = Tuner,
    ) -> None:
        self._node = node
        self._memory = memory
        self._forward = forward
        self._make = make
        self._tunings: dict[str, TunerController] = {}
        self._crashed: dict[str, _Crashed] = {}  # of runs that may come back as another epoch
        self._undoing: dict[str, TunerController] = {}  # of runs without a tuner
        self._settled: dict[str, PriorResult] = {}
        self._detectors: dict[str, ChangePointDetector] = {}
        self._looked: dict[str, int] = {}

    # requests -----------------------------------------------------------------------------------------------

    @property
    def at_work(self) -> bool:
        """Whether there is a tuner that wants to look at its run often."""
        return bool(self._tunings)

    def tunes(self, run: TrackedRun) -> bool:
        """Whether there is a tuner of this run."""
        return run.id in self._tunings

    def receive(self, tune: Tune, viewer: str, who: Origin) -> Tuned:
        """Carry out a request of a viewer. If it is refused, the answer has the reason."""
        run = self._node.registry.get(tune.run)
        if run is None or run.exited:
            no = fact("tune.no_live_run", run=tune.run)
            return Tuned(id=tune.id, run=tune.run, granted=False, code=no.code, fields=no.fields)
        refusal = self._held_against(tune, run, who) or self._refusal(tune, run)
        if refusal is None:
            self._carry_out(tune, run, viewer, who)
        state = run.state.tuner or TunerState()
        answer = Tuned(id=tune.id, run=run.id, granted=refusal is None, state=state)
        if refusal is not None:
            answer = structs.replace(answer, code=refusal.code, fields=refusal.fields)
        return answer

    def release(self, run: TrackedRun, knobs: Iterable[str], who: Origin) -> None:
        """The tuner may turn these knobs, whoever has set them."""
        tuning = self._tunings.get(run.id)
        for knob in knobs:
            self._node.book.release(run.id, knob, who)
        if tuning is not None:
            tuning.publish()

    def _carry_out(self, tune: Tune, run: TrackedRun, viewer: str, who: Origin) -> None:
        tuning, by = self._tunings.get(run.id), author(who, sentence=True)
        match tune.op:
            case "start":
                if tuning is not None:  # a dry one
                    tuning.stop(NAME)
                self._crashed.pop(run.id, None)
                ended, left = run.state.tuner, run.left_tuner
                self._undoing.pop(run.id, None)
                self._release_named(run, tune.limits, who)
                tuning = self._begin(run, tune.limits, who.user)
                if left is not None and (trial := unfinished(left)) is not None:
                    tuning.undo(trial, _ending(left))
                if ended is not None:
                    tuning.come_after(ended)
                tuning.event(fact("tuner.started", by=by, dry=tune.limits.dry))
                tuning.publish()
            case "stop" if tuning is not None:
                del self._tunings[run.id]
                tuning.event(fact("tuner.stopped", by=by))
                tuning.stop(viewer)
                if run.identity is None or not run.told:  # nobody knows yet what is in effect
                    run.left_tuner = run.state.tuner
            case "freeze" if tuning is not None:
                self._node.book.overrides(run.id).freeze([tune.knob])
                tuning.event(fact("tuner.frozen", knob=tune.knob, by=by))
                tuning.publish()
            case "release":
                released = fact("tuner.released", knob=tune.knob, by=by)
                self._node.event("tuner", released, run=run.id, step=run.last_step)
                self.release(run, (tune.knob,), who)

    def _release_named(self, run: TrackedRun, limits: Limits, who: Origin) -> None:
        """Give back the knobs that the limits name, though a user has set them: that is asked for now."""
        held = self._node.book.overrides(run.id).chosen & set(limits.learning)
        if held:
            released = fact("tuner.may_change", knobs=sorted(held), by=author(who, sentence=True))
            self._node.event("tuner", released, run=run.id, step=run.last_step)
        self.release(run, held, who)

    def _held_against(self, tune: Tune, run: TrackedRun, who: Origin) -> Fact | None:
        """Why an agent may not release a knob, or start a tuner that would. None if it may."""
        if who.kind != "agent" or tune.op not in ("release", "start"):
            return None
        held = self._node.book.holders(run.id)
        knobs = (tune.knob,) if tune.op == "release" else tune.limits.learning
        return next((fact("held_by_person", knob=k, by=held[k]) for k in knobs if k in held), None)

    def _refusal(self, tune: Tune, run: TrackedRun) -> Fact | None:
        name, tuning = run.state.name, self._tunings.get(run.id)
        knobs = [knob.spec.name for knob in run.state.knobs]
        if tune.op in ("freeze", "release") and tune.knob not in knobs:
            return fact("unknown_knob", run=name, knob=tune.knob, known=knobs[:MOST_NAMED])
        if tune.op in ("stop", "freeze") and tuning is None:
            return fact("tune.off", run=name)
        if tune.op == "start":
            if run.away:
                return fact("tune.away", run=name, host=run.job.head_host if run.job is not None else "")
            if tuning is not None and not tuning.state.limits.dry:
                return fact("tune.on_already", run=name, user=tuning.state.user)
            return _pointless(tune.limits, run) or self._powerless(tune.limits, run)
        return None

    def _powerless(self, limits: Limits, run: TrackedRun) -> Fact | None:
        """Why the limits cannot apply to a run that need the power of its GPUs. None if they may apply."""
        problem = energy_obstacle(self._node, run)
        if limits.objective == "energy":
            return problem
        no_gpu = problem is not None and problem.code == "tune.no_gpu"
        return problem if limits.power_w is not None and no_gpu else None

    def _begin(self, run: TrackedRun, limits: Limits, user: str) -> TunerController:
        found = self._best(run, limits)
        known = PriorResult(found.values, found.peak) if found is not None else None
        self._node.book.overrides(run.id).thaw()
        run.left_tuner = None
        tuning = self._tunings[run.id] = self._controller(run, limits, user, known)
        self._settled.pop(run.id, None)
        return tuning

    def _controller(
        self, run: TrackedRun, limits: Limits, user: str, known: PriorResult | None = None
    ) -> TunerController:
        overrides = self._node.book.overrides(run.id)
        tuner = self._make(limits, self._node.clock.t(), user, known, overrides)
        return TunerController(self._node, self._forward, self._memory.keep, tuner, run)

    # looking ------------------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Let each tuner look at its run, and check other runs for changes without a command. Call it twice a
        second."""
        t = self._node.clock.t()
        for run in self._node.registry.live():
            try:
                self._tend(run, t)
            except Exception:  # a fault of the tuner's costs the tuner and nothing else
                log.exception("the tuner of %s broke", run.id)
                self._detectors.pop(run.id, None)
                self._looked[run.id] = t + AFTER_FAULT_NS
                self._abandon(run)

    def _tend(self, run: TrackedRun, t: int) -> None:
        if run.id not in self._tunings and run.state.knobs:
            self._take_up(run)
        # A process that comes after another declares its knobs late.
        set_up = run.state.knobs or run.id not in self._tunings
        # What users have set since the daemon before is in the outcomes that the run tells.
        if run.identity is None or run.restarting or not (set_up and run.told):
            return
        if run.left_tuner is not None and run.state.knobs and run.id not in self._tunings:
            self._undo(run, run.left_tuner)
        if run.id not in self._tunings and t - self._looked.get(run.id, 0) < UNTUNED_NS:
            return
        self._looked[run.id] = t
        self._look(run)

    def _abandon(self, run: TrackedRun) -> None:
        """Drop a tuner that broke, even if it cannot be ended in the regular way. No later daemon takes it
        up."""
        broken = self._tunings.pop(run.id, None)
        self._undoing.pop(run.id, None)
        run.left_tuner = None
        try:
            if broken is not None:
                broken.abandon(BROKE, BREAK)
        except Exception:
            log.exception("the tuner of %s broke once more while it was ended", run.id)
        state = run.state.tuner
        if state is not None and state.stand != "off":
            ended = structs.replace(cut_off(state, BREAK), stand="off", facts=(BROKE,))
            run.state = structs.replace(run.state, tuner=ended)
            self._node.event("tuner", BROKE, run=run.id, step=run.last_step, level="warning")
            self._node.remember(run)
            self._node.touch()

    def close(self) -> None:
        """Leave all tuners at a regular end of the daemon: no run keeps values that are being tried."""
        for run, tuning in (*self._tunings.items(), *self._undoing.items()):
            self._node.faults.attempt(f"leaving the tuner of {run}", tuning.leave)

    def end(self, run: TrackedRun) -> None:
        """End the tuner of a run that has exited. Call it before the recording is closed."""
        try:
            self._end(run)
        except Exception:
            log.exception("the tuner of %s broke at the end of its run", run.id)
            self._abandon(run)

    def _end(self, run: TrackedRun) -> None:
        if run.id not in self._tunings:
            self._take_up(run)  # a tuner left by an earlier daemon: its end is reported too
        self._detectors.pop(run.id, None)
        self._looked.pop(run.id, None)
        self._settled.pop(run.id, None)
        self._undoing.pop(run.id, None)
        tuning = self._tunings.pop(run.id, None)
        if tuning is None:
            return
        over = run.state.exit_reason in ("finished", "stopped")
        crashed = run.state.exit_reason in ("exception", "failed", "killed")
        cause = CRASHED if crashed else fact("run.process_ended")
        trying = tuning.trying
        left = tuning.off(fact("tuner.run_ended", reason=run.state.exit_reason), None if over else cause)
        if not over:
            self._crashed[run.id] = _Crashed(left, cause, trying)
            self._distrust(run, trying, left.limits)
            while len(self._crashed) > CRASHED_KEPT:
                del self._crashed[next(iter(self._crashed))]

    def _take_up(self, run: TrackedRun) -> None:
        """Go on with what another daemon, or another epoch of the run, has left."""
        left = run.state.tuner
        if left is not None and left.stand != "off":
            self._begin(run, left.limits, left.user).go_on(left, KILLED, tell=True)
        elif (crashed := self._crashed.pop(run.id, None)) is not None:
            tuning = self._begin(run, crashed.left.limits, crashed.left.user)
            tuning.go_on(crashed.left, crashed.cause, tell=False)
            knobs = (change.knob for change in crashed.trying)
            tuning.leave_alone(knobs, fact("tuner.in_trial", cause=crashed.cause))

    def _undo(self, run: TrackedRun, left: TunerState) -> None:
        """Undo the trial of a tuner that has ended, if it is still in effect. The tuner stays off."""
        if run.id not in self._undoing:
            trial = unfinished(left)
            if trial is None:
                run.left_tuner = None
                return
            self._undoing[run.id] = self._controller(run, left.limits, left.user)
            self._undoing[run.id].undo(trial, _ending(left))
        if self._undoing[run.id].roll_back(observe(self._node, run)):
            del self._undoing[run.id]
            run.left_tuner = None

    def _look(self, run: TrackedRun) -> None:
        seen = observe(self._node, run)
        shift = self._detectors.setdefault(run.id, ChangePointDetector()).look(seen)
        if shift is not None:
            gain = shift.after / shift.before - 1
            what = fact("shift.throughput", gain=gain, step=shift.step, cause=shift.cause)
            self._node.event(
                "shift", what, run=run.id, step=shift.step, level="warning" if gain < 0 else "info"
            )
        tuning = self._tunings.get(run.id)
        if tuning is None:
            return
        tuning.look(replace(seen, shift=shift))
        found = tuning.tuner.found()
        if found is not None and _news(found, self._settled.get(run.id)):
            self._settled[run.id] = found
            self._memory.settle(self._result(run, found, tuning.state.limits))

    # memory -------------------------------------------------------------------------------------------------

    def _result(self, run: TrackedRun, found: PriorResult, limits: Limits) -> TunerResult:
        return TunerResult(
            key=self._kind(run),
            values=dict(found.values),
            peak=found.peak,
            objective=limits.objective,
            run=run.id,
            name=run.state.name,
            wall=self._node.clock.wall(),
        )

    def _distrust(self, run: TrackedRun, tried: Iterable[Change], limits: Limits) -> None:
        """A run crashed while it was tried what had served another best: no other is to be given that."""
        known = self._best(run, limits)
        if known is None:
            return
        values = dict(known.values)
        for change in tried:
            if values.get(change.knob) == change.value:
                del values[change.knob]
        if values != known.values:
            self._memory.settle(structs.replace(known, values=values, wall=self._node.clock.wall()))

    def _best(self, run: TrackedRun, limits: Limits) -> TunerResult | None:
        """What served a run of this kind best, of what a tuner within `limits` can bring about."""
        theirs = self._node.book.held(run.id)
        held = {
            knob.spec.name: knob.value
            for knob in run.state.knobs
            if knob.spec.name in theirs or not may_turn(knob.spec, limits)
        }
        return best(self._memory.settled, self._kind(run), limits.objective, held)

    def _kind(self, run: TrackedRun) -> str:
        gpus = [gpu.name for gpu in self._node.gpus if gpu.uuid in run.state.gpus]
        return key(run.state, gpus, self._node.book.of(run.id))


def _ending(left: TunerState) -> Fact:
    """Why a tuner has ended."""
    return left.facts[0] if left.facts else fact("run.process_ended")


def _news(found: PriorResult, known: PriorResult | None) -> bool:
    """Whether a result is worth another line of the file: other values, or a tenth more memory."""
    if known is None or found.values != known.values:
        return True
    return (found.peak or 0) > MORE * (known.peak or 0)


def _pointless(limits: Limits, run: TrackedRun) -> Fact | None:
    """Why a tuner within these limits could do nothing for a run, None if it can."""
    name, knobs = run.state.name, {knob.spec.name: knob.spec for knob in run.state.knobs}
    try:
        check_limits(limits)
    except ValueError:
        return fact("tune.bad_limits", limits=limits)
    if not knobs:
        return fact("tune.no_knobs", run=name)
    unknown = [knob for knob in limits.learning if knob != "*" and knob not in knobs]
    if unknown:
        return fact("unknown_knob", run=name, knob=unknown[0], known=list(knobs)[:MOST_NAMED])
    if not any(may_turn(spec, limits) for spec in knobs.values()):
        return fact("tune.nothing_to_turn", run=name)
    return None
