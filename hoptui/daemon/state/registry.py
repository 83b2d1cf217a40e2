"""The runs of this node and the state of each, without I/O: the clock and the evidence are passed in."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from msgspec import structs

from hoptui.daemon.state.bad_numbers import BadNumbers
from hoptui.daemon.state.derived_rows import Account, headline
from hoptui.daemon.state.gpu_ownership import Claim, Resolved, resolve
from hoptui.daemon.state.logged_rows import ENOUGH, LoggedRows
from hoptui.daemon.state.newest_values import NewestValues
from hoptui.daemon.state.stack_windows import StackWindows
from hoptui.diagnosis.phase_readings import PhaseAccount
from hoptui.domain.columns import Columns
from hoptui.domain.details import Repository, RunDetails
from hoptui.domain.devices import GpuInfo
from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.facts import Fact, fact
from hoptui.domain.jobs import JobState
from hoptui.domain.knobs import KnobState
from hoptui.domain.outputs import OutputTail, StreamName
from hoptui.domain.pacing import DEFAULT
from hoptui.domain.progress import ITERATION, finished_by_rows
from hoptui.domain.throughput import level, took, usable
from hoptui.domain.tuning import TunerState
from hoptui.protocol.job_records import HeadFacts
from hoptui.protocol.messages import (
    HUNG,
    STARTING,
    Declare,
    Outcome,
    Pulse,
    RankState,
    RunHello,
    RunState,
    State,
    Vital,
    as_asked,
)
from hoptui.protocol.ranges import MOST_COUNT
from hoptui.recording.library import KnownEnding

RECENT = 64
"""Number of iterations for a run's throughput."""
HUNG_ITERATIONS, HUNG_LONGEST = 5, 1.5
"""A run stands if it makes no progress for so many usual iterations, and so many times its longest one."""
UNHEARD, HEARD_ITERATIONS = 6, 50
"""A daemon that has not seen the start of a run waits so many times as long, for so many iterations."""
LEAST_BUSY_S = 3.0
"""Progress younger than this is never `busy`, however short the iterations are."""


@dataclass(frozen=True)
class Member:
    """A rank that does not represent its run here: its connection and its claim to GPUs.

    `pulse` is its last one, None before the first, and `pulse_at` its time in seconds.
    """

    rank: int
    identity: bytes
    claim: Claim
    pulse_at: float = math.inf
    pulse: Pulse | None = None


class Leaving(NamedTuple):
    """What a run has said whose interpreter exits. Its exit code may come until `until`, in seconds."""

    said: KnownEnding
    until: float


class TrackedRun:
    """One run: its declared state, and the evidence for its liveness.

    `claim` is its declaration of GPUs, `seen` are the GPUs with its processes. `state.gpus` follows from
    both, and `said` is whether the declaration decided. `listed` are the GPUs with the process of each rank
    itself, by pid. `contradicted` is whether it was reported that they are not those it claims. `members`
    are its other ranks on this node. A run whose rank 0 is on another node is `away`: its lowest rank here
    represents it, and takes no commands.
    `restarting` is whether it has left its process for a next epoch that has not come yet. `told` is whether
    it has sent, since its last hello, all outcomes that this daemon may lack. `met_at` is the time of its
    first hello to this daemon, in seconds. `resends` is whether its first rows after a hello are still to
    come. `left_tuner` is how a tuner of an earlier process or daemon ended, or one that was stopped
    before the run had said what is in effect. It is None once this process has no trial of it in effect.
    `watched` is whether the end of its process will be seen. `straggler` is the report that its other ranks
    wait for one, until they do not any more. `job` is its state on all nodes, None if it has one node.
    `head` is what the head says of it, in stamps of this node, None on the head and while that is unknown.
    It is no older than `head_at`, in seconds.
    """

    def __init__(
        self,
        state: RunState,
        *,
        nonce: str = "",
        process_started: int = 0,
        claim: Claim | None = None,
        account: Account | None = None,
        details: RunDetails | None = None,
    ) -> None:
        self.state = state
        self.details = details
        self.claim = claim or Claim(declared=state.gpus)
        self.seen: set[str] = set()
        self.listed: dict[int, set[str]] = {}
        self.contradicted = False
        self.said = False
        self.account = account or Account()
        self.phases = PhaseAccount()
        self.stacks = StackWindows()
        self.copied: dict[tuple[int, StreamName], OutputTail] = {}  # what its ranks have sent
        self.bad_numbers = BadNumbers()
        self.nonce = nonce
        self.process_started = process_started  # /proc/<pid>/stat start time: distinguishes a reused pid
        self.identity: bytes | None = None
        self.members: dict[int, Member] = {}
        self.dead: dict[int, str] = {}  # how other ranks died
        self.watched = False
        self.leaving: Leaving | None = None
        self.lived_until: float | None = None  # in seconds since 1970, for a process that nobody watches
        self.restarting = False
        self.resends = False
        self.told = False
        self.left_tuner: TunerState | None = None
        self.met_at = math.inf
        self.last_t = 0
        self.last_step = 0
        self._finished = 0  # iterations, by their rows
        self._newest = NewestValues()
        self._logged = LoggedRows()
        self._iterations: deque[float] = deque(maxlen=31)
        self._typical: float | None = None  # their median, computed on demand
        self._rates: deque[float] = deque(maxlen=RECENT)
        self._throughput: float | None = None  # computed on demand
        self.job: JobState | None = None
        self.head: HeadFacts | None = None
        self.head_at = -math.inf
        self.straggler: Fact | None = None
        self.stalled: Fact | None = None  # why it stands, as the hangs were judged last
        self._longest_s = self._longest_gap_s = 0.0  # of its iterations but the first, and between its rows
        self._seen = 0  # iterations of this process that this daemon has seen
        self._restored = False
        self._pulse: Pulse | None = None
        self._pulse_at = -math.inf
        self.no_pulse_s = DEFAULT.no_pulse_s
        self.hung_s = DEFAULT.hung_s

    @property
    def id(self) -> str:
        return self.state.run

    @property
    def rank(self) -> int:
        """The rank that represents it here."""
        return self.state.rank

    @property
    def away(self) -> bool:
        """Whether rank 0 is on another node."""
        return self.state.rank > 0

    def source(self, rank: int) -> str:
        """Return the source of the rows of a rank, as its process calls it."""
        return f"run/{self.id}" if rank == self.rank and not self.away else f"rank/{self.id}/{rank}"

    @property
    def known_ranks(self) -> tuple[int, ...]:
        """Its ranks on this node that have not left, the one that represents it first."""
        return (self.rank, *self.members)

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of every metric that it has logged, however old."""
        return self._newest.known

    def current_metrics(self) -> dict[str, float]:
        """Return the newest values that are still current, and the phases of its last iteration."""
        return self._newest.current()

    def newest_row(self, metric: str) -> tuple[int, int]:
        """Return the stamp and the iteration of the newest value of a metric."""
        return self._newest.rows[metric]

    @property
    def shown(self) -> RunState:
        """Its state for viewers, with what the head says of it."""
        state, head = self.state, self.head
        if head is None:
            return state
        return structs.replace(
            state,
            head=head.reports,
            tuner=head.tuner,
            notes=tuple(sorted({*head.notes, *state.notes}, key=lambda note: note.wall)),
        )

    @property
    def exited(self) -> bool:
        return bool(self.state.exit_reason)

    @property
    def logs_only(self) -> bool:
        """Whether its loop logs rows and passes no boundaries: it has no iterations and takes no commands."""
        return not self._began and self._logged.count >= ENOUGH

    @property
    def _began(self) -> bool:
        """Whether it has passed a boundary, as far as it is known."""
        timed = bool(self._iterations) and not self._logged.numbered  # by the run, not by its daemon
        return self._pulse is None or self._pulse.began or timed

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims of all its ranks to GPUs."""
        return (self.claim, *(member.claim for member in self.members.values()))

    def resolved(self, gpus: Sequence[GpuInfo]) -> list[Resolved]:
        """Return the GPUs of each of its ranks on this node."""
        return [self.resolved_rank(rank, gpus, self.seen) for rank in (self.rank, *self.members)]

    def resolved_rank(self, rank: int, gpus: Sequence[GpuInfo], seen: Iterable[str] = ()) -> Resolved:
        """Return the GPUs of one of its ranks. `seen` is used if nothing says which they are."""
        claim = self.claim if rank == self.rank else self.members[rank].claim
        pids = {self.rank: self.state.pid} | {each.rank: each.pid for each in self.state.ranks}
        return resolve(claim, gpus, seen, self.listed.get(pids.get(rank, 0), ()))

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes, one per rank."""
        return (self.state.pid, *(rank.pid for rank in self.state.ranks))

    def join(self, member: Member, pid: int) -> None:
        """Add another rank."""
        self.members[member.rank] = member
        ranks = {rank.rank: rank for rank in self.state.ranks} | {
            member.rank: RankState(rank=member.rank, pid=pid)
        }
        self.state = structs.replace(self.state, ranks=tuple(ranks[rank] for rank in sorted(ranks)))

    def trains_in(self, rank: int, thread: int) -> bool:
        """Store in which thread a rank trains. Return whether that is new."""
        threads = {each.rank: each.thread for each in self.state.ranks} | {self.rank: self.state.thread}
        if threads.get(rank, thread) == thread:
            return False
        threads[rank] = thread
        ranks = (structs.replace(each, thread=threads[each.rank]) for each in self.state.ranks)
        self.state = structs.replace(self.state, thread=threads[self.rank], ranks=tuple(ranks))
        return True

    def leave(self, rank: int) -> None:
        """Remove a rank that sent goodbye."""
        self.members.pop(rank, None)

    def pulse(self, pulse: Pulse, now: float) -> None:
        """Store a pulse. A run sends it after all outcomes that wait."""
        self.met_at = min(self.met_at, now)
        self.told = True
        self._pulse = pulse
        self._pulse_at = now

    @property
    def fixed_bytes(self) -> int:
        """The least that one of its processes here holds on its GPU for parameters and optimizers. 0 while
        that is unknown of one of them, or if they have not one GPU each."""
        pulses = [self._pulse, *(member.pulse for member in self.members.values())]
        if len(pulses) != len(self.state.gpus):
            return 0
        return min(pulse.fixed_bytes if pulse is not None else 0 for pulse in pulses)

    def resumed(self) -> None:
        """End its pause. The next pulse, which says so too, comes up to a second later."""
        if self._pulse is not None:
            self._pulse = structs.replace(self._pulse, paused=False, paused_left_s=0.0)

    def rows(self, columns: Columns) -> None:
        """Store the newest values. Out-of-order rows are ignored."""
        newest = columns.last_t
        if newest <= self.last_t:
            return
        if self.last_t and self.logs_only:
            gaps = (b - a for a, b in pairwise((self.last_t, *columns.times())))
            self._longest_gap_s = max(self._longest_gap_s, *(gap / 1e9 for gap in gaps))
        self.last_t = newest
        self.last_step = max(self.last_step, columns.steps()[-1])
        self._newest.add(columns)
        if ITERATION in columns.names:
            self._finished = max(self._finished, finished_by_rows(columns, self.state.total))
            seconds = list(filter(took, columns.column(ITERATION)))
            self._iterations.extend(seconds)
            later = seconds if self._seen else seconds[1:]  # the first one compiles and fills caches
            self._longest_s = max(self._longest_s, *later) if later else self._longest_s
            self._seen += len(seconds)
            self._typical = None
            self.account.iterations(columns, self.state)
        if not self._began:
            self._logged.add(columns)
        rate = headline(self.state, self.metrics)
        if rate in columns.names:
            self._rates.extend(usable(columns.column(rate)))
            self._throughput = None

    def with_rates(self, columns: Columns) -> Columns:
        """Return rows of the run with the rates of their counts and the seconds of their iterations, where it
        passes no boundaries."""
        return columns if self._began else self._logged.with_iterations(self._logged.with_rates(columns))

    def restored(self) -> None:
        """Record that an earlier daemon has seen its iterations."""
        self._restored = True

    def resume(self, step: int) -> None:
        """Take the iteration in progress from its process. Recorded rows may be of an earlier process."""
        self.last_step, self._finished = min(self.last_step, step), min(self._finished, step)

    def declare(self, said: Declare | RunHello) -> bool:
        """Store what the run declares. True if anything changed, apart from the details."""
        before = self.state, self.claim
        self.describe(said.details)
        self.state = structs.replace(
            self.state,
            knobs=said.knobs,
            units=said.units,
            headline=said.headline,
            can=said.can,
            flops=said.flops,
            total=said.total,
            declined=said.declined,
            refused=said.refused,
        )
        if isinstance(said, RunHello):
            self.claim = _claim(said)
        else:
            self.claim = replace(self.claim, declared=said.gpus)
        return (self.state, self.claim) != before

    def describe(self, details: RunDetails | None) -> None:
        """Store what the run says that it is. None: it says nothing new."""
        if details is None:
            return
        known = self.details.repository if self.details is not None else None
        self.details = structs.replace(details, repository=known)
        self.state = structs.replace(self.state, tags=details.tags)

    def found(self, repository: Repository) -> None:
        """Store the repository of its script."""
        if self.details is not None:
            self.details = structs.replace(self.details, repository=repository)

    def own(self, resolved: Resolved) -> bool:
        """Set its GPUs. True if they changed."""
        self.said = resolved.said
        if resolved.gpus == self.state.gpus:
            return False
        self.state = structs.replace(self.state, gpus=resolved.gpus)
        return True

    def outcome(self, knob: str, outcome: Outcome, by: str) -> None:
        """Store the value that was read back after a knob was set or failed to be set."""
        if outcome.effective is None or outcome.version is None or self._knows_later(knob, outcome.version):
            return
        self._rates.clear()  # rates with the previous value
        self.phases.clear(outcome.t)
        self._throughput = None
        self.state = structs.replace(
            self.state, knobs=tuple(_after(k, knob, outcome, by) for k in self.state.knobs)
        )

    def _knows_later(self, knob: str, version: int) -> bool:
        """Whether its process here has had a later value. Outcomes of rank 0 come late from another node."""
        return self.away and any(k.spec.name == knob and k.version > version for k in self.state.knobs)

    def exit(self, reason: str, detail: str, wall: float) -> None:
        self.identity = None
        self.members.clear()
        self.state = structs.replace(self.state, exit_reason=reason, exit_detail=detail, exited_wall=wall)

    def diagnosed(self, diagnosis: Diagnosis | None) -> None:
        self.state = structs.replace(self.state, diagnosis=diagnosis)

    @property
    def step(self) -> int:
        """The iteration in progress, from 0: as many have finished. A pulse can be older than a row."""
        return max(self.last_step, self._finished, self._pulse.step if self._pulse else 0)

    @property
    def newest_pulse(self) -> tuple[Pulse | None, float]:
        """Its last pulse, None before the first, and its time in seconds."""
        return self._pulse, self._pulse_at

    @property
    def phase(self) -> str:
        """The phase of its last pulse, "" for none."""
        return self._pulse.phase if self._pulse else ""

    def iteration_s(self) -> float | None:
        """Return the median seconds of the last iterations, None before the first."""
        if self._typical is None and self._iterations:
            self._typical = statistics.median(self._iterations)
        return self._typical

    def throughput(self) -> float | None:
        """Return the headline rate over the last iterations, None before the first."""
        if self._throughput is None and self._rates:
            self._throughput = level(self._rates)
        return self._throughput

    def _of_rank_0(self) -> float | None:
        """Return the headline rate that rank 0 reports from another node, None while that node is silent."""
        ranks = self.job.live_ranks() if self.job is not None else []
        return next((rank.throughput for _, rank in ranks if rank.rank == 0), None)

    def vital(self, now: float) -> Vital:
        """Return its liveness from three separate signals: its pulse, its progress, its process."""
        pulse = self._pulse
        age = now - self._pulse_at if pulse is not None else None
        state, because = self.judge(now)
        still = age if age is not None and state != "exited" else 0.0
        return Vital(
            state=state,
            because=because,
            step=self.step,
            phase=self.phase,
            phase_age_s=_phase_age_s(pulse) + still if pulse else 0.0,
            progress_age_s=self._progress_age_s(pulse, still, now) if pulse else None,
            pulse_age_s=age,
            iteration_s=self.iteration_s(),
            throughput=self._of_rank_0() if self.head is not None else self.throughput(),
            paused_left_s=max(0.0, pulse.paused_left_s - still) if pulse else 0.0,
            dropped=pulse.dropped if pulse else 0,
            last_t=self.last_t,
            phases=self.phases.readings,
            logs_only=self.logs_only,
            bad_values=pulse.bad_values if pulse else 0,
            head_age_s=self.head_age_s(now),
        )

    def head_age_s(self, now: float) -> float | None:
        """Return how old what the head says of it is at most, None on the head and while that is unknown."""
        return max(0.0, now - self.head_at) if self.head is not None else None

    @property
    def passed_none(self) -> bool:
        """Whether it has finished no iteration, or all that it planned."""
        total = self.state.total
        return self.usual_s is None or (total is not None and self.step >= total)

    @property
    def usual_s(self) -> float | None:
        """The median seconds of its recent iterations, or between its rows if it passes no boundaries."""
        return self._logged.usual_s if self.logs_only else self.iteration_s()

    def silent_s(self, rank: int, now: float) -> float | None:
        """Return for how long a rank has sent no pulse, None if that is not long."""
        if rank not in self.known_ranks:
            return None
        age = now - (self._pulse_at if rank == self.rank else self.members[rank].pulse_at)
        return age if age > self.no_pulse_s else None

    def stands_s(self, now: float) -> float | None:
        """Return the time since its last boundary or row. None if it is paused, ends, or is not known."""
        pulse = self._pulse
        if self.exited or self.restarting or self.leaving is not None or pulse is None:
            return None
        if pulse.off is not None or pulse.paused or not (pulse.began or self.last_t):
            return None
        still = self._progress_age_s(pulse, now - self._pulse_at, now)
        return min(still, max(0.0, now - self.last_t / 1e9)) if self.last_t else still

    def still_s(self, now: float) -> float | None:
        """Return the same, None as long as it is not much longer than its iterations."""
        still = self.stands_s(now)
        return still if still is not None and still > self.patience_s() else None

    def patience_s(self) -> float:
        """Return how long it may make no progress."""
        longest = self._longest_gap_s if self.logs_only else self._longest_s
        unheard = self._restored and self._seen < HEARD_ITERATIONS
        least = self.hung_s * (UNHEARD if unheard else 1)
        return max(least, HUNG_ITERATIONS * (self.usual_s or 0.0), HUNG_LONGEST * longest)

    def judge(self, now: float) -> tuple[State, Fact | None]:
        """Return the state of its liveness, and why it is not live."""
        pulse = self._pulse
        if self.exited:
            return "exited", None
        if self.restarting:
            return "busy", fact("state.restarting")
        if pulse is None:
            return "unresponsive", fact("state.not_connected")
        if pulse.off is not None:
            return "unresponsive", pulse.off
        age = now - self._pulse_at
        hung = self._hung(now)
        if age > self.no_pulse_s:
            if hung is not None and hung.code == HUNG:
                return "unresponsive", hung
            return "unresponsive", fact("state.no_pulse", age_s=age)
        if pulse.paused:
            return "paused", fact("state.paused", left_s=max(0.0, pulse.paused_left_s - age))
        if not (pulse.began or self.last_t):
            return "busy", fact(STARTING)
        if hung is not None:
            return "busy", hung
        progress = self._progress_age_s(pulse, age, now)
        typical = self._logged.usual_s if self.logs_only else self.iteration_s()
        if progress > max(LEAST_BUSY_S, 3 * typical if typical is not None else 0.0):
            if self.logs_only:
                return "busy", fact("state.no_row", age_s=progress)
            silent = [member for member in self.members.values() if now - member.pulse_at > self.no_pulse_s]
            if silent:
                longest = min(silent, key=lambda member: member.pulse_at)
                return "busy", fact("state.rank_silent", rank=longest.rank, age_s=now - longest.pulse_at)
            return "busy", fact("state.in_phase", phase=pulse.phase, age_s=_phase_age_s(pulse) + age)
        return "live", None

    def _hung(self, now: float) -> Fact | None:
        """Return why it stands, if it has made no progress since that was judged."""
        still = self.still_s(now)
        if self.stalled is None or still is None:
            return None
        return Fact(self.stalled.code, {**self.stalled.fields, "age_s": still})

    def _progress_age_s(self, pulse: Pulse, age: float, now: float) -> float:
        """Return the time since its last boundary, or since its last row if it passes none."""
        since = pulse.progress_age_s + age
        return min(since, max(0.0, now - self.last_t / 1e9)) if self.logs_only else since


class Registry:
    """The runs by id. `version` rises whenever the slow part of any of them changes."""

    def __init__(self, no_pulse_s: float = DEFAULT.no_pulse_s, hung_s: float = DEFAULT.hung_s) -> None:
        self.version = 1
        self._hung_s = hung_s
        self._no_pulse_s = no_pulse_s
        self._runs: dict[str, TrackedRun] = {}
        self._by_identity: dict[bytes, TrackedRun] = {}

    def __iter__(self) -> Iterator[TrackedRun]:
        return iter(list(self._runs.values()))

    def get(self, run: str) -> TrackedRun | None:
        return self._runs.get(run)

    def of(self, identity: bytes) -> TrackedRun | None:
        """Return the run of a connection."""
        return self._by_identity.get(identity)

    def member(self, identity: bytes) -> tuple[TrackedRun, Member] | None:
        """Return the run and the rank of a connection that does not represent the run."""
        of_all = ((run, member) for run in self._runs.values() for member in run.members.values())
        return next((found for found in of_all if found[1].identity == identity), None)

    def join(self, identity: bytes, hello: RunHello, pid: int) -> TrackedRun | None:
        """Add a rank to the run of its nonce. None while that is unknown here."""
        run = self.of_nonce(hello.nonce)
        if run is not None:
            run.join(Member(hello.rank, identity, _claim(hello)), pid)
            self.changed()
        return run

    def of_nonce(self, nonce: str) -> TrackedRun | None:
        """Return the live run whose rank 0 has this nonce."""
        return next((run for run in self._runs.values() if run.nonce == nonce and not run.exited), None)

    def live(self) -> list[TrackedRun]:
        return [run for run in self if not run.exited]

    def changed(self) -> None:
        self.version += 1

    def restore(self, run: TrackedRun) -> None:
        """Add a run from its recording, unless it has sent hello meanwhile."""
        if run.id not in self._runs:
            run.state = structs.replace(run.state, epoch=min(max(run.state.epoch, 0), MOST_COUNT))
            run.left_tuner = run.state.tuner
            run.restored()
            self._add(run)
            self.changed()

    def forget(self, runs: Iterable[str]) -> None:
        for run in runs:
            if self._runs.pop(run, None) is not None:
                self.changed()

    def hello(
        self, identity: bytes, hello: RunHello, wall: float
    ) -> tuple[TrackedRun, Literal["same", "new", "epoch"]]:
        """Connect a run. "same": this process is known; "epoch": a restart of a known run; "new": unknown.

        A run may restart within its process, which `os.execv` replaces, or which connects again. It has
        announced that, or this daemon has not heard it.

        Raises:
            DuplicateRunError: another process of this run still lives.
        """
        known = self._runs.get(hello.run)
        kind: Literal["same", "new", "epoch"] = "new"
        epoch = hello.epoch
        if known is not None and known.nonce == hello.nonce:
            kind, epoch = "same", known.state.epoch
        elif known is not None:
            # A notebook connects again, and its goodbye may be read after this.
            again = known.restarting or known.identity is None or hello.epoch > known.state.epoch
            replaced = known.state.pid == hello.pid and again
            if not known.exited and not replaced:
                raise DuplicateRunError(
                    f"run {hello.run} ({known.state.name}) is already live in pid {known.state.pid}"
                )
            # The codec refuses commands for a greater epoch.
            kind, epoch = "epoch", min(max(hello.epoch, known.state.epoch + 1), MOST_COUNT)
        if kind == "same" and known is not None:
            run = known
            run.state = structs.replace(run.state, exit_reason="", exit_detail="", exited_wall=0.0)
            run.leaving = run.lived_until = None
            run.declare(hello)
            run.resume(hello.step)
        else:
            run = TrackedRun(_state(hello, epoch, wall), nonce=hello.nonce, claim=_claim(hello))
            run.describe(hello.details)
            if known is not None:
                kept = known.state
                run.state = structs.replace(
                    run.state, targets=kept.targets, tuner=kept.tuner, notes=kept.notes
                )
                run.account = known.account
                run.account.restart()
                run.left_tuner = known.state.tuner if known.exited else known.left_tuner
            self._add(run)
        self._connect(identity, run)
        self.changed()
        return run, kind

    def disconnect(self, run: TrackedRun) -> None:
        self._by_identity = {i: r for i, r in self._by_identity.items() if r is not run}
        run.identity = None

    def _add(self, run: TrackedRun) -> None:
        run.no_pulse_s = self._no_pulse_s
        run.hung_s = self._hung_s
        self._runs[run.id] = run

    def _connect(self, identity: bytes, run: TrackedRun) -> None:
        self._by_identity = {i: r for i, r in self._by_identity.items() if r is not run and r.id != run.id}
        self._by_identity[identity] = run
        run.identity = identity


class DuplicateRunError(Exception):
    """Two live processes claim one run id. The text is one sentence."""


def _state(hello: RunHello, epoch: int, wall: float) -> RunState:
    return RunState(
        run=hello.run,
        name=hello.name,
        epoch=epoch,
        pid=hello.pid,
        started_wall=wall,
        total=hello.total,
        knobs=hello.knobs,
        units=hello.units,
        headline=hello.headline,
        can=hello.can,
        flops=hello.flops,
        declined=hello.declined,
        rank=hello.rank,
        world=hello.world,
        argv=hello.argv,
        versions=hello.versions,
        refused=hello.refused,
        stacks_off=hello.stacks_off,
    )


def _phase_age_s(pulse: Pulse) -> float:
    """Return how long it has been in its phase. Outside of phases that is at most since the last boundary."""
    return pulse.phase_age_s if pulse.phase else min(pulse.phase_age_s, pulse.progress_age_s)


def _claim(hello: RunHello) -> Claim:
    return Claim(declared=hello.gpus, visible=hello.visible, slurm=hello.slurm_gpus)


def _after(state: KnobState, knob: str, outcome: Outcome, by: str) -> KnobState:
    if state.spec.name != knob or outcome.effective is None or outcome.version is None:
        return state
    return structs.replace(
        state,
        value=outcome.effective,
        version=outcome.version,
        in_effect=as_asked(outcome) if outcome.stage == "applied" else state.in_effect,
        by=by if outcome.stage == "applied" else state.by,
        took_s=outcome.took_s if outcome.stage == "applied" else state.took_s,
    )
