"""Every message, as tagged msgpack maps: unknown fields are ignored, new fields get defaults, a type never
changes.

Times are monotonic nanoseconds of the node (`t`), durations seconds (`_s`), unless a name says otherwise. The
protocol, message by message and failure by failure, is told in docs/internals/protocol.md.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from hoptui.domain.columns import Columns
from hoptui.domain.devices import FromSampler, GpuInfo, GpuProcess, Level, ToSampler
from hoptui.domain.facts import Fact
from hoptui.domain.knobs import KnobState, KnobValue
from hoptui.domain.tuning import Change, Diagnosis, Measured, Tune, Tuned, TunerState

PROTOCOL = 1

Verb = Literal["set", "pause", "resume", "checkpoint", "profile", "stop"]
Stage = Literal[
    "sent",  # the daemon has it, the run has not answered yet
    "accepted",  # the run has checked it
    "scheduled",  # it takes effect at the boundary named by `step`
    "applied",  # done; `effective` is what was read back
    "rejected",  # refused, nothing changed; `code` says why
    "superseded",  # a later command for the same knob took its place
    "expired",  # its time to live ended before a boundary came
    "failed",  # the setter raised, the old value is back
    "reverted",  # applied, then undone because the run could not hold it
    "voided",  # the run restarted first
]
FINAL: frozenset[Stage] = frozenset(
    ("applied", "rejected", "superseded", "expired", "failed", "reverted", "voided")
)
NOT_AS_ASKED = "not_as_asked"
"""The code of an applied command whose knob reads back another value."""
State = Literal["live", "busy", "paused", "unresponsive", "exited"]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Who asked. The daemon fills in `user` and `pid` from the kernel's peer credentials, whatever the viewer
    says."""

    kind: Literal["person", "tuner", "daemon"] = "person"
    user: str = ""
    pid: int = 0
    client: str = ""


class Flops(msgspec.Struct, frozen=True, kw_only=True):
    """What training costs: floating-point operations for each unit of the rate `metric`, forward and
    backward.

    `precision` names the peak that MFU is measured against: `fp64 fp32 tf32 bf16 fp16 fp8`.
    """

    per_unit: float
    metric: str = ""
    precision: str = "bf16"


# run -> daemon ----------------------------------------------------------------------------------------------


class RunHello(msgspec.Struct, frozen=True, kw_only=True, tag="run.hello"):
    """First message of a run, and again after each new connection.

    `epoch` is the least this process can be; the daemon answers with the one it is. `nonce` is random per
    process. `headline` names the metric that stands for throughput, `can` the commands the run has a handler
    for. `gpus` are the UUIDs of its GPUs as far as it says; otherwise `visible`, its `CUDA_VISIBLE_DEVICES`
    (None: not set), and `slurm_gpus`, the indices that Slurm gave it, decide. `flops` says how many
    floating-point operations a unit of a metric costs. `versions` are those of the libraries that it had
    imported by then (`torch`).

    Rank 0 speaks for the run. Another rank says only where it is and which GPUs it has: it is sent no
    commands.
    """

    protocol: int
    run: str
    name: str
    epoch: int
    nonce: str
    pid: int
    started: int
    step: int = 0
    total: int | None = None
    phase: str = ""
    paused: bool = False
    knobs: tuple[KnobState, ...] = ()
    units: dict[str, str] = {}
    headline: str = ""
    can: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    visible: str | None = None
    slurm_gpus: str = ""
    flops: Flops | None = None
    rank: int = 0
    world: int = 1
    argv: str = ""
    versions: dict[str, str] = {}


class Declare(msgspec.Struct, frozen=True, kw_only=True, tag="run.declare"):
    """What the run has said of itself since its hello: replaces the fields of the same names."""

    knobs: tuple[KnobState, ...] = ()
    units: dict[str, str] = {}
    headline: str = ""
    can: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    flops: Flops | None = None
    total: int | None = None


class Rows(msgspec.Struct, frozen=True, kw_only=True, tag="run.rows"):
    """New rows, at most ten messages a second however fast the loop is."""

    parts: tuple[Columns, ...]


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """A stage of a command, from the run to the daemon. Viewers ignore it; older daemons send it to them.

    `effective` and `version` are set once applied; `by` and `version` where a `version_conflict` was lost.
    `took_s` is how long the run stood still for it, None where it did nothing. `followed` are knobs that
    nobody set and that have another value because of it. `scheduled` with the code `restarting`: the run
    replaces its process for it, and the next epoch settles it.

    `code` and `fields` say why, without words; "" is nothing to add. `reason` is the sentence that older runs
    send instead.
    """

    id: str
    stage: Stage
    step: int | None = None
    before: KnobValue | None = None
    effective: KnobValue | None = None
    version: int | None = None
    by: str = ""
    code: str = ""
    fields: dict[str, Any] = {}
    reason: str = ""
    t: int = 0
    took_s: float | None = None
    followed: tuple[Change, ...] = ()


class Pulse(msgspec.Struct, frozen=True, kw_only=True, tag="run.pulse"):
    """Every second from the link thread, whatever the training thread does.

    `t` is when it was sent (0: unknown), `progress_age_s` is the time since the last boundary, `phase_age_s`
    since the phase began, `paused_left_s` how long the pause lease still runs, `dropped` rows lost since the
    start because the daemon did not take them.
    """

    step: int
    t: int = 0
    phase: str = ""
    progress_age_s: float = 0.0
    phase_age_s: float = 0.0
    paused: bool = False
    paused_left_s: float = 0.0
    dropped: int = 0
    bad_values: int = 0


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="run.note"):
    """Something worth a line on the time axis: a checkpoint written, an evaluation passed, a warning.

    `text` is the training script's own. What the SDK reports has a `code` and `fields` instead.
    """

    t: int
    step: int
    text: str = ""
    code: str = ""
    fields: dict[str, Any] = {}
    level: Literal["info", "warning"] = "info"


class Bye(msgspec.Struct, frozen=True, kw_only=True, tag="run.bye"):
    """The run ends by itself."""

    reason: Literal["finished", "stopped", "exception"]
    detail: str = ""


# daemon -> run ----------------------------------------------------------------------------------------------


class RunWelcome(msgspec.Struct, frozen=True, kw_only=True, tag="run.welcome"):
    """`epoch` is this process's; `since` the stamp of the last row the daemon keeps on disk: newer ones are
    sent again."""

    protocol: int
    pid: int
    version: str
    epoch: int
    since: int = 0


class Hold(msgspec.Struct, frozen=True, kw_only=True, tag="run.hold"):
    """The pause lease is renewed: stay paused for so long from now."""

    seconds: float


class Retire(msgspec.Struct, frozen=True, kw_only=True, tag="daemon.retire"):
    """A person stopped the daemon: do not start it again, connect when somebody else does."""


# viewer -> daemon -------------------------------------------------------------------------------------------


class ViewerHello(msgspec.Struct, frozen=True, kw_only=True, tag="viewer.hello"):
    """First message of a viewer. `viewer` is random per viewer process and survives reconnects."""

    protocol: int
    viewer: str
    client: str
    kind: Literal["person", "tuner"] = "person"


class Command(msgspec.Struct, frozen=True, kw_only=True, tag="command"):
    """A request to a run; from the viewer to the daemon and on to the run.

    The viewer makes the `id`, so that it can send the same command again: it is applied at most once. `value`
    is absolute; for `profile` it is the number of iterations to trace. `expect_version` makes it
    compare-and-set. `ttl_s` counts from its arrival in the run, 0 is no limit; for a pause, `hold_s` is the
    lease after which the run goes on by itself. `why` is a user's note, `purpose` are the tuner's reasons.
    """

    id: str
    run: str
    epoch: int
    verb: Verb
    knob: str = ""
    value: KnobValue | None = None
    expect_version: int | None = None
    ttl_s: float = 600.0
    hold_s: float = 60.0
    origin: Origin = Origin()
    why: str = ""
    purpose: tuple[Fact, ...] = ()


class Lease(msgspec.Struct, frozen=True, kw_only=True, tag="lease"):
    """Renew the pause of a run: it stays paused for `seconds` from now. `op` is `renew`, `what` is `pause`.

    Older viewers send other values. Those leases no longer exist; the answer is not `granted`.
    """

    id: int
    run: str
    op: Literal["take", "renew", "release", "steal"]
    what: Literal["wheel", "pause", "knobs"] = "wheel"
    seconds: float = 15.0


class Fetch(msgspec.Struct, frozen=True, kw_only=True, tag="fetch"):
    """What is new since my cursors? Answered with a Delta when something is, or after `wait_s`.

    `cursors` maps a source to the stamp of the newest row the viewer has; sources not named are not sent.
    `events` and `commands` are the newest sequence numbers it has of the run named by `run` (empty: of all
    runs), `state` the version of the node's state. With `latest`, every known source answers with one row of
    its newest values instead. `hz` is how often this viewer would like GPUs to be sampled (0: it does not
    mind; at most 10). `processes` is the version it has of the processes on GPUs, None: it does not want
    them.
    """

    id: int
    run: str = ""
    cursors: dict[str, int] = {}
    events: int = 0
    commands: int = 0
    state: int = 0
    max_rows: int = 2000
    wait_s: float = 1.0
    latest: bool = False
    hz: float = 0.0
    processes: int | None = None


class Query(msgspec.Struct, frozen=True, kw_only=True, tag="query"):
    """Past values of a source between two stamps (0: from the first, to the last) in at most `points`
    buckets.

    `run` says whose recording to look in for the host's and the GPUs' past (empty: any live run's).
    """

    id: int
    source: str
    run: str = ""
    names: tuple[str, ...] = ()
    t0: int = 0
    t1: int = 0
    points: int = 512


class ViewerBye(msgspec.Struct, frozen=True, kw_only=True, tag="viewer.bye"):
    """The viewer leaves; without it the daemon finds out by its silence."""

    id: int = 0


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="daemon.shutdown"):
    """End the daemon; runs go on without it."""

    id: int


# daemon -> viewer -------------------------------------------------------------------------------------------


class ViewerWelcome(msgspec.Struct, frozen=True, kw_only=True, tag="viewer.welcome"):
    protocol: int
    pid: int
    version: str
    host: str


class LeaseState(msgspec.Struct, frozen=True, kw_only=True, tag="lease.state"):
    """The answer to a Lease; `reason` says why it is not `granted`."""

    id: int = 0
    run: str = ""
    granted: bool = False
    reason: str = ""


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A command as every viewer sees it and as the recording keeps it: who, when, from, to, outcome, effect.

    `wall` is seconds since 1970 for people's eyes; `settled` the stamp of its final stage, 0 before; `took_s`
    how long the run stood still for it; `followed` what it moved besides its knob. `released` is who has said
    since that the tuner may turn the knob all the same.
    """

    id: str
    run: str
    epoch: int
    verb: Verb
    knob: str = ""
    wanted: KnobValue | None = None
    before: KnobValue | None = None
    effective: KnobValue | None = None
    version: int | None = None
    stage: Stage = "sent"
    step: int | None = None
    code: str = ""
    fields: dict[str, Any] = {}
    reason: str = ""
    origin: Origin = Origin()
    why: str = ""
    purpose: tuple[Fact, ...] = ()
    t: int = 0
    wall: float = 0.0
    settled: int = 0
    took_s: float | None = None
    measured: Measured | None = None
    followed: tuple[Change, ...] = ()
    released: Origin | None = None
    seq: int = 0


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A line on the time axis. `run` is empty for the node's own. `kind` is a stable word.

    `code` and `fields` say what happened; `hoptui.presentation.sentences` makes the sentence. `text` is a
    training script's own note, or the sentence of an older recording. `source` names the device it is about,
    if it is about one (`gpu/<uuid>`).
    """

    seq: int
    t: int
    wall: float
    kind: str
    code: str = ""
    fields: dict[str, Any] = {}
    text: str = ""
    run: str = ""
    step: int | None = None
    level: Level = "info"
    source: str = ""


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a run besides rank 0's, on this node. Its rows are the source `rank/<run id>/<rank>`."""

    rank: int
    pid: int


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run besides its rows. `metrics` are the newest values, `last_t` the stamp of the
    newest row.

    `started_wall` and `exited_wall` are seconds since 1970. `can` lists the commands it has a handler for.
    `gpus` are the UUIDs of its GPUs: as it says, or as its environment and its processes tell. `ranks` are
    the other processes of this epoch that have come to this node, in order of rank. `diagnosis` and `tuner`
    are None before there is one.
    """

    run: str
    name: str
    epoch: int
    pid: int
    started_wall: float
    total: int | None = None
    knobs: tuple[KnobState, ...] = ()
    units: dict[str, str] = {}
    headline: str = ""
    can: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    flops: Flops | None = None
    rank: int = 0
    world: int = 1
    ranks: tuple[RankState, ...] = ()
    argv: str = ""
    versions: dict[str, str] = {}
    exit_reason: str = ""
    exit_detail: str = ""
    exited_wall: float = 0.0
    recording: str = ""
    diagnosis: Diagnosis | None = None
    tuner: TunerState | None = None


class Vital(msgspec.Struct, frozen=True, kw_only=True):
    """The fast part of a run's state: `why` explains a state that is not `live` in a few words.

    `throughput` is the run's headline rate over its last iterations (`pace.level`), None where it has none.
    """

    state: State
    why: str = ""
    step: int = 0
    phase: str = ""
    phase_age_s: float = 0.0
    progress_age_s: float | None = None
    pulse_age_s: float | None = None
    iteration_s: float | None = None
    throughput: float | None = None
    paused_left_s: float = 0.0
    dropped: int = 0
    last_t: int = 0


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """The node and everything on it. `gpu_reason` says in one line why there are no GPU readings (empty:
    there are).

    `history` says why history is not being kept (empty: it is); `wall_offset_ns` added to a stamp gives wall
    time. `hz` is how often GPUs are sampled now, `metrics` the address of the Prometheus endpoint, if there
    is one.
    """

    host: str
    pid: int
    version: str
    started_wall: float
    wall_offset_ns: int
    cpus: int = 0
    memory_total_bytes: int = 0
    runs: tuple[RunState, ...] = ()
    gpus: tuple[GpuInfo, ...] = ()
    gpu_reason: str = ""
    sampler: str = ""
    history: str = ""
    viewers: int = 0
    hz: float = 0.0
    metrics: str = ""


class Delta(msgspec.Struct, frozen=True, kw_only=True, tag="delta"):
    """The answer to a Fetch. `more` means that rows were held back for size: ask again at once.

    A Delta with the id 0 answers no Fetch. It has the record of a command, for the viewer that sent the
    command. The `seq` of that record is 0, so that it moves no cursor.

    `state` is the version of `node`, which is None when the viewer has it already. `now` is the stamp of the
    answer; `behind_ms` how far the newest row sent lags behind the newest one known. `processes` are those on
    GPUs if the viewer wants them and has not got this version of them.
    """

    id: int
    now: int
    state: int
    node: NodeState | None = None
    vitals: dict[str, Vital] = {}
    columns: tuple[Columns, ...] = ()
    events: tuple[Event, ...] = ()
    commands: tuple[CommandRecord, ...] = ()
    more: bool = False
    behind_ms: float = 0.0
    processes: tuple[GpuProcess, ...] | None = None
    processes_version: int = 0


class Buckets(msgspec.Struct, frozen=True, kw_only=True, tag="buckets"):
    """The answer to a Query: for each name the least, greatest and mean of every bucket, as float64, NaN
    where empty.

    `t` and `step` (int64) stand for the last row of each bucket.
    """

    id: int
    source: str
    names: tuple[str, ...]
    t: bytes
    step: bytes
    low: tuple[bytes, ...]
    high: tuple[bytes, ...]
    mean: tuple[bytes, ...]


class Error(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """A request that cannot be answered: a stable `code` and one sentence."""

    code: str
    text: str
    id: int = 0


def as_asked(done: Outcome | CommandRecord) -> bool:
    """Whether an applied change has the value that was asked for. Older runs give a reason if not."""
    return done.code != NOT_AS_ASKED and (bool(done.code) or not done.reason)


FromRun = RunHello | Declare | Rows | Outcome | Pulse | Note | Bye
ToRun = RunWelcome | Command | Hold | Retire | Error
FromViewer = ViewerHello | Command | Lease | Tune | Fetch | Query | ViewerBye | Shutdown
ToViewer = ViewerWelcome | Delta | Buckets | Outcome | LeaseState | Tuned | Error
Message = FromRun | ToRun | FromViewer | ToViewer | FromSampler | ToSampler
