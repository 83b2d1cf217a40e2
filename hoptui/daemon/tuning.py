"""Drives the tuner of one run: what it observes, its commands, its published state, its rollbacks. No I/O.

An observation is derived from what the node knows; what is old or missing is unknown. Commands of a tuner
go through the same command log as all others, where users come first.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from hoptui.daemon.measurable_energy import obstacle as energy_obstacle
from hoptui.daemon.state.command_log import throughput
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.other_processes import others_busy, sources_of
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.columns import Columns
from hoptui.domain.devices import IDLE, REASONS, Level
from hoptui.domain.facts import Fact, fact
from hoptui.domain.job_stragglers import straggler_elsewhere
from hoptui.domain.stragglers import LEAST
from hoptui.domain.throughput import ASIDE_COLUMNS, PER_SECOND
from hoptui.domain.tuning import Change, Measured, Trial, TunerState
from hoptui.protocol.messages import Command, CommandRecord, Origin
from hoptui.tuner.observation import RECENT_NS, GpuNeighbours, MemoryReading, Observation, Proposal
from hoptui.tuner.rollback import TRIES, Rollback, cut_off, unfinished
from hoptui.tuner.trial import ChangeSet
from hoptui.tuner.tuner import TOLD, Tuner

POINTS = 512
"""Rows of the run that are looked at, the newest."""
RECORDS = 64
"""Commands that are looked at: the newest of anybody's, and as many of the tuner's own, however many came
after them."""
BACK_ROWS = 32
READINGS = (
    "cpu_percent",
    "memory_used_bytes",
    "memory_total_bytes",
    "memory_rss_bytes",
    "power_w",
    "power_average_w",
    "throttle",
)
"""What is looked at of a GPU, the host or a run's processes."""
DURATION = "iteration_s"
"""The column with the seconds of an iteration."""
LOSSES = ("loss", "train_loss", "train/loss")
"""What runs call their training loss."""
RETRIES = ("alloc_retries", "num_alloc_retries")
"""What runs call torch's count of allocations that had to free the cache first."""


def observe(node: Node, run: TrackedRun) -> Observation:
    """A run as it is now."""
    t = node.clock.t()
    ring, metric = node.rings.get(f"run/{run.id}"), node.throughput_of(run)
    gpus = [part for uuid in run.state.gpus if (part := _recent(node, f"gpu/{uuid}", t)) is not None]
    host = _recent(node, "host", t)
    busy = _mean(host, "cpu_percent")
    vital = run.vital(t / 1e9)
    no_energy = energy_obstacle(node, run)
    work = metric.removesuffix(PER_SECOND) if metric.endswith(PER_SECOND) else ""
    names = filter(None, (metric, work, DURATION, *LOSSES, *ASIDE_COLUMNS))
    rows = ring.excerpt(names, most=POINTS) if ring is not None and metric else None
    return Observation(
        t=t,
        epoch=run.state.epoch,
        state=vital.state,
        step=vital.step,
        knobs=run.state.knobs,
        metric=metric,
        points=throughput(rows, metric) if rows is not None else (),
        samples=throughput(rows, work) if rows is not None else (),
        losses=_losses(rows),
        durations=throughput(rows, DURATION) if rows is not None else (),
        records=_newest_records(node.book.of(run.id)),
        memories=_of_gpus(node, run, gpus) if run.state.gpus else host_memory(node, run, t),
        neighbours=tuple(_neighbours(node, run)),
        alloc_retries=next((run.metrics[name] for name in RETRIES if name in run.metrics), None),
        power_w=max((w for part in gpus if (w := _mean(part, "power_w")) is not None), default=None),
        drawn_w=_drawn(run, gpus) if no_energy is None else None,
        no_energy=no_energy,
        diagnosis=run.state.diagnosis,
        host_busy=None if busy is None else busy / 100,
        others_busy=_others_busy(node, run, t),
        throttled=_throttled(gpus),
        straggler=run.straggler or _slow_elsewhere(run),
    )


def _slow_elsewhere(run: TrackedRun) -> Fact | None:
    """The report of a rank of another node that the ranks here wait for, as much as for one here."""
    found = straggler_elsewhere(run.job)[0] if run.job is not None else None
    if run.job is None or found is None or found.others_wait - found.waits < LEAST:
        return None
    return run.job.slow


def _losses(rows: Columns | None) -> Sequence[tuple[int, float]]:
    """Of the first name that the run logs a training loss by."""
    known = (found for name in LOSSES if rows is not None and (found := throughput(rows, name)))
    return next(known, ())


def _newest_records(records: Sequence[CommandRecord]) -> tuple[CommandRecord, ...]:
    own = [record for record in records if record.origin.kind == "tuner"][-RECORDS:]
    chosen = {record.id for record in (*own, *records[-RECORDS:])}
    return tuple(record for record in records if record.id in chosen)


def _drawn(run: TrackedRun, gpus: Collection[Columns]) -> float | None:
    """Watts of all GPUs that take part: with fewer than the run has ranks, some are on other nodes."""
    watts = [w for part in gpus if (w := _mean_power(part)) is not None]
    there = watts and len(watts) == len(run.state.gpus) >= run.state.world
    return sum(watts) if there else None


def _mean_power(rows: Columns) -> float | None:
    """Watts. The driver's average over a second covers all of a step, an instant does not."""
    average = _mean(rows, "power_average_w")
    return average if average is not None else _mean(rows, "power_w")


def _of_gpus(node: Node, run: TrackedRun, gpus: Iterable[Columns]) -> tuple[MemoryReading, ...]:
    """Of each GPU. None at all unless all of them are known: the one that is not might have no room first."""
    found = tuple(memory for part in gpus if (memory := _of_gpu(node, run, part)) is not None)
    return found if len(found) == len(run.state.gpus) else ()


def _of_gpu(node: Node, run: TrackedRun, rows: Columns) -> MemoryReading | None:
    most, total = _most(rows, "memory_used_bytes"), _most(rows, "memory_total_bytes")
    if most is None or not total:
        return None
    uuid = rows.source.partition("/")[2]
    there = [process for process in node.processes if process.gpu == uuid]
    apart = any(p.run == run.id for p in there) and all(p.memory_used_bytes is not None for p in there)
    others = sum(p.memory_used_bytes or 0 for p in there if p.run != run.id) if apart else 0
    used = max(0, int(most) - others)
    fixed = run.fixed_bytes if run.fixed_bytes < used else 0  # more than is held cannot be true
    return MemoryReading(used=used, others=others, total=int(total), gpu=uuid, fixed=fixed)


def _neighbours(node: Node, run: TrackedRun) -> Iterator[GpuNeighbours]:
    """Yield what others do on each GPU of the run. GPUs on which no process is known as the run's are left
    out.

    The driver has no sample of a process that used no time. Without a sample of any, shares are unknown.
    """
    for gpu in run.state.gpus:
        there = [process for process in node.processes if process.gpu == gpu]
        others = [process for process in there if process.run != run.id]
        if len(others) == len(there):
            continue
        sampled = any(process.sm_percent is not None for process in there)
        busy = sum(process.sm_percent or 0.0 for process in others) / 100 if sampled else None
        yield GpuNeighbours(gpu, frozenset(process.pid for process in others), busy)


def host_memory(node: Node, run: TrackedRun, t: int) -> tuple[MemoryReading, ...]:
    """Return the memory of the host, for a run that has no GPU; empty if it is unknown.

    A run whose GPUs are not known is not taken for one without a GPU.
    """
    if node.gpus and not run.said:
        return ()
    host = _recent(node, "host", t)
    own = _most(_recent(node, f"process/{run.id}", t), "memory_rss_bytes")
    used, total = _most(host, "memory_used_bytes"), _most(host, "memory_total_bytes")
    if own is None or used is None or not total:
        return ()
    return (MemoryReading(used=int(own), others=max(0, int(used - own)), total=int(total)),)


def _others_busy(node: Node, run: TrackedRun, t: int) -> float | None:
    """The share of the host's CPUs that processes have at work that are not of a rank of the run.

    Unknown while a rank on this node is not read. Ranks that have not joined are taken to be on other nodes.
    """
    return others_busy(node.rings, sources_of(run.state), node.hardware.cpus, t - RECENT_NS, t)


def _throttled(gpus: Iterable[Columns]) -> str:
    masks = [int(mask) for part in gpus if (mask := part.last().get("throttle")) is not None]
    words = [r.word for r in REASONS if r.bit != IDLE and any(mask & r.bit for mask in masks)]
    return ", ".join(words)


def _recent(node: Node, source: str, t: int) -> Columns | None:
    ring = node.rings.get(source)
    rows = ring.excerpt(READINGS, after=t - RECENT_NS, most=BACK_ROWS) if ring is not None else None
    return rows if rows is not None and len(rows) else None


def _values(rows: Columns | None, name: str) -> list[float]:
    if rows is None or name not in rows.names:
        return []
    return [value for value in rows.column(name) if not math.isnan(value)]


def _most(rows: Columns | None, name: str) -> float | None:
    return max(_values(rows, name), default=None)


def _mean(rows: Columns | None, name: str) -> float | None:
    values = _values(rows, name)
    return sum(values) / len(values) if values else None


NAME = "tuner"
"""The tuner's name among the viewers."""
PROGRESS_NS = 1_000_000_000
"""The progress of a trial is published this often. Anything else is published at once."""
ON_DISK_S = 30.0
"""The cost of trials is written to disk this often."""

DISK_NS = 5_000_000_000
"""If a trial is not on disk after this time, the tuner looks at the run again before it asks once more."""
SLOW_DISK_NS = 1_000_000_000
"""After this time the state shows that the tuner waits for the disk."""

Forward = Callable[[Command, TrackedRun], object]
Keep = Callable[[str], Callable[[], bool]]


@dataclass(frozen=True)
class _Intent:
    """A trial that begins once it is on disk: a daemon that is killed in it must leave it to the next one."""

    proposal: Proposal
    epoch: int
    versions: Mapping[str, int]
    """Of the run's knobs, when it was proposed."""
    t: int
    on_disk: Callable[[], bool]


class TunerController:
    """A tuner and its run.

    `keep` writes what is known of the run to disk at once. It returns a function that returns whether that is
    there. `forward` sends a command to the run.

    The published state has the trials of an earlier tuner, too. When this tuner takes over from one that was
    cut off, it first rolls back the unfinished trial.
    """

    def __init__(self, node: Node, forward: Forward, keep: Keep, tuner: Tuner, run: TrackedRun) -> None:
        self.tuner = tuner
        self._node = node
        self._forward = forward
        self._keep = keep
        self._run = run.id
        self._on_disk: Callable[[], bool] = lambda: False  # whether the newest state is
        self._intent: _Intent | None = None
        self._earlier: TunerState | None = None
        self._rollback: Rollback | None = None  # of a trial that was cut off
        self._goes_on: Fact | None = None  # why it took over, until that is reported
        self._reported = 0  # when the last trial began whose end was reported
        self._published_at = 0
        self._begun = node.clock.t()

    @property
    def run(self) -> TrackedRun:
        """The run as it is now. A restarted run is another object."""
        run = self._node.registry.get(self._run)
        assert run is not None, "a run is forgotten long after its tuner"
        return run

    @property
    def state(self) -> TunerState:
        """The state of the tuner, with the trials of an earlier one."""
        state, earlier, intent = self.tuner.state, self._earlier, self._intent
        if intent is not None and self._node.clock.t() - intent.t >= SLOW_DISK_NS:
            state = structs.replace(state, stand="waiting", facts=(fact("wait.disk"),))
        if earlier is None:
            return state
        if self._rollback is not None:
            return structs.replace(earlier, frozen=state.frozen)
        tried = (*earlier.tried, *state.tried)[-TOLD:]
        return structs.replace(state, tried=tried, started=earlier.started)

    @property
    def trying(self) -> tuple[Change, ...]:
        """The changes of the running trial, or of the one that was cut off and is not rolled back yet."""
        if self._intent is not None:
            return ()
        trial = self._rollback.trial if self._rollback is not None else self.state.trial
        return trial.changes if trial is not None and trial.result == "running" else ()

    def come_after(self, ended: TunerState) -> None:
        """Take over the trials and the costs of an earlier tuner that has ended."""
        self.tuner.charge(ended)
        self._earlier = structs.replace(ended, started=self.tuner.state.started)
        self._reported = _last_end(ended)

    def go_on(self, left: TunerState, cause: Fact, *, tell: bool) -> None:
        """Take over from a tuner that was cut off, and roll back its trial.

        With `tell`, the end of that trial is still to be reported.
        """
        self.tuner.take_over(left)
        self._earlier = cut_off(left, cause)
        self._reported = _last_end(left if tell else self._earlier)
        trial = unfinished(left)
        why = fact("rollback.unfinished", cause=cause)
        self._rollback = Rollback.undo(trial, why) if trial is not None else None
        self._goes_on = cause
        self.publish()

    def leave_alone(self, knobs: Iterable[str], why: Fact) -> None:
        """Leave these knobs alone until they are released."""
        names = [knob for knob in knobs if knob not in self.tuner.overrides.all]
        self.tuner.overrides.freeze(names)
        if names:
            self.event(fact("tuner.leaves_alone", knobs=names, why=why), "warning")
            self.publish()

    def undo(self, trial: Trial, cause: Fact) -> None:
        """Prepare the rollback of a trial of an earlier tuner that has ended."""
        self._rollback = Rollback.undo(trial, fact("rollback.unfinished", cause=cause))
        self._goes_on = cause

    def roll_back(self, observation: Observation) -> bool:
        """Go on with that rollback without tuning the run. True once it is over."""
        rollback = self._rollback
        if rollback is None or not self._advance(rollback, observation):
            return rollback is None
        self._rollback = self._goes_on = None
        self._warn_of_rest(rollback)
        return True

    def look(self, observation: Observation) -> None:
        """Let the tuner look at the run, and carry out what it proposes."""
        if self._rollback is not None and not self._roll_back(self._rollback, observation):
            return
        if self._goes_on is not None:
            self.event(fact("tuner.goes_on", cause=self._goes_on))
            self._goes_on = None
        if self._intent is not None and self._begin(self._intent, observation.t):
            return
        # What users set before is in its overrides, unless it was released.
        own = [record for record in observation.records if record.t >= self._begun]
        proposal = self.tuner.look(replace(observation, records=own))
        self.publish()
        if proposal is None:
            return
        if self.tuner.state.trial is None:  # it undoes a trial, or makes room
            self._make(proposal)
        else:
            epoch, versions = self.run.state.epoch, self._versions()
            self._intent = _Intent(proposal, epoch, versions, observation.t, self._on_disk)
            self._begin(self._intent, observation.t)

    def _begin(self, intent: _Intent, t: int) -> bool:
        """Begin a trial once it is on disk. False if that is no longer wanted, or the disk does not take it.

        The tuner drops a proposal for which no commands were sent, at its next look.
        """
        same = intent.epoch == self.run.state.epoch and intent.versions == self._versions()
        if same and not intent.on_disk() and t - intent.t < DISK_NS:
            self.publish()
            return True
        self._intent = None
        if same and intent.on_disk():
            self._make(intent.proposal)
            return True
        return False

    def _make(self, proposal: Proposal) -> None:
        """Make the changes of a proposal of the tuner."""
        ids = _ids(proposal.changes)
        self.tuner.sent(ids)
        self._submit(proposal.changes, proposal.why, ids)
        self.publish()

    def stop(self, viewer: str) -> None:
        """End the tuner, and roll back an unfinished trial in the name of this viewer."""
        self._intent = None
        stopped = self.tuner.stop(self._node.clock.t())
        rollback, self._rollback = self._rollback or stopped, None
        self.publish()
        if rollback is None:
            return
        if rollback.chosen(self._node.book.of(self._run)):
            self.event(fact("rollback.user_chose", knobs=list(rollback.targets)))
        else:
            self._roll_back_at_once(rollback, fact("trial.tuner_stopped"), viewer)

    def off(self, why: Fact, crash: Fact | None = None) -> TunerState:
        """End the tuner of a run that cannot be set any more. Returns the state that it left.

        `crash` is the reason that leaves a trial unfinished.
        """
        self._intent, left = None, self.state
        if crash is None:
            self.tuner.stop(self._node.clock.t())
        state = cut_off(left, crash) if crash is not None else self.state
        self._publish(structs.replace(state, stand="off", facts=(why,), text=""))
        return left

    def abandon(self, why: Fact, cause: Fact) -> None:
        """End a tuner that is at fault, without calling it, and roll back an unfinished trial."""
        rollback = self._unfinished()
        self.off(why, cause)
        self._rollback = None
        self.event(why, "warning")
        if rollback is not None:
            self._roll_back_at_once(rollback, cause)

    def leave(self) -> None:
        """Roll back an unfinished trial because the daemon ends. The next daemon checks the outcome."""
        self._intent = None
        rollback = self._unfinished()
        if rollback is not None:
            self._roll_back_at_once(rollback, fact("daemon.ends"))

    def event(self, what: Fact, level: Level = "info") -> None:
        """Publish an event of this tuner."""
        self._node.event("tuner", what, run=self._run, step=self.run.last_step, level=level)

    def publish(self) -> None:
        """Publish the state, if it is news."""
        self._publish(self.state)

    def _publish(self, state: TunerState) -> None:
        run, t = self.run, self._node.clock.t()
        before = run.state.tuner
        same = before is not None and _steady(state) == _steady(before)
        if state == before or (same and t - self._published_at < PROGRESS_NS):
            return
        self._published_at = t
        run.state = structs.replace(run.state, tuner=state)
        self._node.touch()
        if same:
            return
        for trial in state.tried:
            if trial.t > self._reported:
                self._reported = trial.t
                self.event(trial_ended(trial), "warning" if trial.result == "failed" else "info")
        self._node.remember(run)
        self._on_disk = self._keep(run.id)

    def _unfinished(self) -> Rollback | None:
        """The rollback of a trial that this tuner leaves unfinished."""
        if self._rollback is not None:
            return self._rollback
        trial = unfinished(self.state)
        return Rollback.undo(trial) if trial is not None else None

    def _advance(self, rollback: Rollback, observation: Observation) -> bool:
        """Send what a rollback wants to set now. True once it is over."""
        run = self.run
        changes = rollback.look(
            replace(observation, records=self._node.book.of(run.id)), self.tuner.overrides
        )
        if changes:
            move = ChangeSet(changes, rollback.why, _ids(changes))
            rollback.sent(move, observation.t)
            self._submit(changes, move.why, move.ids)
        return rollback.done

    def _roll_back(self, rollback: Rollback, observation: Observation) -> bool:
        """Go on with the rollback of a trial that was cut off; True once it is over."""
        if self._advance(rollback, observation):
            self._rollback, cause, self._goes_on = None, self._goes_on, None
            now = observation.values()
            goes_on = fact(
                "tuner.goes_on",
                cause=cause,
                in_trial=rollback.trial.result == "running",
                values={c.knob: now[c.knob] for c in rollback.trial.changes if c.knob in now},
                missing=[change.knob for change in rollback.missing],
            )
            self._warn_of_rest(rollback)
            self.event(goes_on, "warning" if rollback.left or rollback.missing else "info")
        return rollback.done

    def _roll_back_at_once(self, rollback: Rollback, cause: Fact, viewer: str = NAME) -> None:
        """Send a rollback without waiting for its outcome, and warn of values that cannot be set."""
        knobs, records = self.run.state.knobs, self._node.book.of(self._run)
        self._lacking(rollback.targets)
        changes = rollback.at_once(knobs, records, self.tuner.overrides.chosen)
        why = (*rollback.why, cause)
        self._warn(self._submit(changes, why, _ids(changes), viewer))

    def _warn_of_rest(self, rollback: Rollback) -> None:
        """Warn of the values that a rollback could not set."""
        self._warn((change, fact("rollback.refused", tries=TRIES)) for change in rollback.left)
        self._warn((change, fact("rollback.not_declared")) for change in rollback.missing)

    def _warn(self, refused: Iterable[tuple[Change, Fact]]) -> None:
        """Warn of values that cannot be set."""
        for change, reason in refused:
            stuck = fact("rollback.impossible", knob=change.knob, value=change.value, why=reason)
            self.event(stuck, "warning")

    def _lacking(self, knobs: Iterable[str]) -> None:
        """Warn of knobs that cannot be set, because the restarted run has not declared them yet."""
        declared = {knob.spec.name for knob in self.run.state.knobs}
        if lacking := [knob for knob in knobs if knob not in declared]:
            self.event(fact("rollback.not_declared_yet", knobs=lacking), "warning")

    def _versions(self) -> dict[str, int]:
        return {knob.spec.name: knob.version for knob in self.run.state.knobs}

    def _submit(
        self, changes: Sequence[Change], why: tuple[Fact, ...], ids: Mapping[str, str], viewer: str = NAME
    ) -> list[tuple[Change, Fact]]:
        """Send these commands together. Returns those that were refused here, with the reason.

        A command that changes nothing replaces one on its way, whichever comes first. So it expects no
        version.
        """
        node, run, versions = self._node, self.run, self._versions()
        origin = Origin(kind="tuner", user=self.tuner.state.user, pid=os.getpid(), client=NAME)
        refused = []
        for change in changes:
            command = Command(
                id=ids[change.knob],
                run=run.id,
                epoch=run.state.epoch,
                verb="set",
                knob=change.knob,
                value=change.value,
                expect_version=versions.get(change.knob) if change.value != change.before else None,
                origin=origin,
                purpose=why,
            )
            answer, onward = node.book.submit(command, run, viewer, node.clock.wall(), node.clock.t())
            if onward is not None:
                self._forward(onward, run)
            else:
                refused.append((change, Fact(answer.code, answer.fields)))
        return refused


def trial_ended(trial: Trial) -> Fact:
    """An ended trial for an event. Its `t` identifies the trial."""
    measured = trial.measured or Measured()
    return fact(
        "trial.ended",
        t=trial.t,
        result=trial.result,
        changes=trial.changes,
        gain=measured.gain,
        interval=measured.interval,
        detectable=measured.detectable,
        why=trial.why,
    )


def _steady(state: TunerState) -> TunerState:
    """A state without what changes at every look. Of the run's time it has only whole steps."""
    trial = state.trial
    if trial is not None:
        trial = structs.replace(trial, iterations=0, seconds=0.0, measured=None, throughput=None, why=())
    tried = tuple(structs.replace(ended, units=0.0) if ended.units else ended for ended in state.tried)
    lived_s = state.lived_s // ON_DISK_S
    return structs.replace(state, trial=trial, tried=tried, spent=0.0, lived_s=lived_s, facts=())


def _last_end(state: TunerState) -> int:
    return max((trial.t for trial in state.tried), default=0)


def _ids(changes: Sequence[Change]) -> dict[str, str]:
    return {change.knob: os.urandom(8).hex() for change in changes}
