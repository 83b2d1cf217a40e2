"""Every message, as tagged msgpack maps.

Unknown fields are ignored, new fields have defaults, and a field never changes its type. Times are monotonic
nanoseconds of the node (`t`), durations are seconds (`_s`), unless a name says otherwise. See
docs/internals/protocol.md for each message and failure.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from hoptui.domain.columns import Columns
from hoptui.domain.details import RunDetails
from hoptui.domain.devices import FromSampler, GpuInfo, GpuProcess, Level, RunProcess, ToSampler
from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.facts import Fact
from hoptui.domain.jobs import HeadReports
from hoptui.domain.knobs import KnobState, KnobValue
from hoptui.domain.line_counts import LineCounts
from hoptui.domain.outputs import OutputPart
from hoptui.domain.phases import PhaseReadings, PhaseSpan
from hoptui.domain.run_notes import AddNote, NoteAdded, RunNote
from hoptui.domain.stacks import KEPT_S, StackSamples
from hoptui.domain.targets import SetTargets, TargetsSet, TargetState
from hoptui.domain.tuning import Change, Measured, Tune, Tuned, TunerState

PROTOCOL = 1

Verb = Literal["set", "pause", "resume", "checkpoint", "profile", "stop"]
Stage = Literal[
    "sent",  # the daemon has it, the run has not answered yet
    "accepted",  # the run has checked it
    "scheduled",  # it takes effect at the boundary named by `step`
    "applied",  # done; `effective` is what was read back
    "rejected",  # refused, nothing changed; `code` gives the reason
    "superseded",  # a later command for the same knob replaced it
    "expired",  # its time to live ended before a boundary
    "failed",  # the setter raised; the previous value is restored
    "reverted",  # applied, then undone because the run could not keep it
    "voided",  # the run restarted first
]
FINAL: frozenset[Stage] = frozenset(
    ("applied", "rejected", "superseded", "expired", "failed", "reverted", "voided")
)
STARTING = "state.starting"
"""The code of a `busy` run whose first iteration has not begun: it may still declare knobs."""
HUNG = "state.hung"
"""The code of a run without progress for much longer than an iteration takes. Its state is `busy`, or
`unresponsive` where its process sends no pulse, which older viewers know."""
OFF = "state.off"
"""The code of a run whose link has ended by an error: it trains on without hoptui."""
STACKS_ENDED = "stacks.ended"
"""The code of an error that ended the stack samples of a run."""
JOB_ENDED = "job.ended"
"""The code of an error that ended the exchange with the other nodes of a run."""
NOT_AS_ASKED = "not_as_asked"
"""The code of an applied command whose knob reads back a different value."""
LATER_CODE = "later"
"""The code of a scheduled command that the training script has taken, and that takes effect later."""
FATE_UNKNOWN = "fate_unknown"
"""The code of a command that was given to a run that ended before it said what became of it.

Its stage is `voided`, which older peers know. It is shown as `unknown`."""
State = Literal["live", "busy", "paused", "unresponsive", "exited"]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Who sent a command. The daemon sets `user` and `pid` from the kernel's peer credentials.

    Values from the viewer are overwritten. The `client` of an agent is the program that runs it.
    """

    kind: Literal["person", "agent", "tuner", "daemon"] = "person"
    user: str = ""
    pid: int = 0
    client: str = ""


class Flops(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of training: floating-point operations per unit of `metric`, forward and backward.

    `precision` names the peak that MFU is measured against: `fp64 fp32 tf32 bf16 fp16 fp8`.
    """

    per_unit: float
    metric: str = ""
    precision: str = "bf16"


# run -> daemon ----------------------------------------------------------------------------------------------


class RunHello(msgspec.Struct, frozen=True, kw_only=True, tag="run.hello"):
    """First message of a run, sent again after each new connection.

    `epoch` is the least epoch this process can have; the daemon answers with the actual one. `nonce` is
    random per process. `headline` names the throughput metric. `can` lists the commands the run has a handler
    for. `gpus` are the UUIDs of its GPUs if it declares them. Otherwise `visible`, its `CUDA_VISIBLE_DEVICES`
    (None: not set), and `slurm_gpus`, the indices from Slurm, decide. `flops` is the number of floating-point
    operations per unit of a metric. `versions` are those of the libraries imported so far (`torch`).

    `began`: its first iteration has begun. Older runs do not say, and count as begun. They have no `details`
    either. `refused` is what its script declared or called that is not accepted. `declined` are the
    commands and knobs that it does not offer, with the reasons. `past_rows` is how many rows it has sent that
    it cannot send again, without knowing whether they were stored. `number` counts hellos; one that is
    repeated because it has no answer yet keeps its number. `stacks_off`: `HOPTUI_STACKS` or its script keeps
    its stack from being sampled; older runs do not say.

    Rank 0 represents the run. Another rank reports only its place and its GPUs, and receives no commands.
    `away`: rank 0 is on another node. Then the lowest rank of this node represents the run here, and each
    rank describes the run as rank 0 does.
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
    began: bool = True
    details: RunDetails | None = None
    declined: dict[str, str] = {}
    refused: tuple[Fact, ...] = ()
    number: int = 0
    past_rows: int = 0
    stacks_off: bool = False
    away: bool = False


class Declare(msgspec.Struct, frozen=True, kw_only=True, tag="run.declare"):
    """What the run has declared since its hello. Replaces the fields of the same names.

    `details` are None if they have not changed.
    """

    knobs: tuple[KnobState, ...] = ()
    units: dict[str, str] = {}
    headline: str = ""
    can: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    flops: Flops | None = None
    total: int | None = None
    details: RunDetails | None = None
    declined: dict[str, str] = {}
    refused: tuple[Fact, ...] = ()


class Rows(msgspec.Struct, frozen=True, kw_only=True, tag="run.rows"):
    """New rows. A run sends at most five messages per second, however fast its loop is."""

    parts: tuple[Columns, ...]


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """A stage of a command, from the run to the daemon. Viewers ignore it; older daemons forward it to them.

    `effective` and `version` are set once applied; `by` and `version` if a `version_conflict` was lost.
    `took_s` is how long the run paused for it, None if it did nothing. `followed` lists other knobs whose
    value changed as a side effect. `scheduled` with the code `restarting` means that the run replaces its
    process; the next epoch sends the final stage. `scheduled` with the code `later` means that the training
    script has taken the command and says later that it holds.

    `code` and `fields` give the reason, without words; "" means that there is none. Older runs send the
    sentence `reason` instead. `command` is set for a daemon that may not know the command.
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
    command: Command | None = None


class Pulse(msgspec.Struct, frozen=True, kw_only=True, tag="run.pulse"):
    """Sent every second by the link thread, whatever the training thread does.

    `t` is when it was sent (0: unknown). `progress_age_s` is the time since the last boundary, `phase_age_s`
    since the phase began. `paused_left_s` is the rest of the pause lease. `dropped` counts rows lost since
    the start because the daemon did not accept them. `spans` are stretches of phases that ended since
    the pulse before, as far as they are long enough for a sample of a GPU. `began`: the first iteration has
    begun. `off`: the link has ended by an error, which this says; there is no further pulse. `thread` is the
    kernel's number of the thread that trains; older runs do not say (0). `fixed_bytes` are those that
    parameters and the state of optimizers take on the process's GPU, 0 if that is unknown.
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
    spans: tuple[PhaseSpan, ...] = ()
    began: bool = True
    off: Fact | None = None
    thread: int = 0
    fixed_bytes: int = 0


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="run.note"):
    """An entry for the time axis: a checkpoint written, an evaluation passed, a warning.

    `text` comes from the training script. A note of the SDK has `code` and `fields` instead.
    """

    t: int
    step: int
    text: str = ""
    code: str = ""
    fields: dict[str, Any] = {}
    level: Literal["info", "warning"] = "info"


class Stacks(msgspec.Struct, frozen=True, kw_only=True, tag="run.stacks"):
    """Where the training thread of a process was in the last seconds. Only daemons that ask for it get it.

    `loop` has the calls in which the first iteration ended, the outermost first, as file, line and function.
    Those in packages that only the process knows are left out, see `StackSamples.packages`. It is empty
    before that, and until the packages are known.
    """

    samples: StackSamples
    loop: tuple[tuple[str, int, str], ...] = ()


class Output(msgspec.Struct, frozen=True, kw_only=True, tag="run.output"):
    """What the Python code of a process has written. Only daemons that ask for it get it."""

    part: OutputPart


class StoredRecord(msgspec.Struct, frozen=True, array_like=True):
    """The record of a node, as it is in the store of the job. `slot` is the place of the node there.

    `left`: its process has said there that it ended in order.
    """

    slot: int
    record: bytes
    left: bool = False


class JobReading(msgspec.Struct, frozen=True, kw_only=True, tag="job.reading"):
    """What a process has read from the store of its job, after the JobReport of this `number`.

    `problem` is why nothing was read or written, "" if it worked. `nodes` are the records that have changed
    since the reading before, for the head. `state` is the head's record, for the others, None if it has not
    changed. `took_s` is how long the operations of the store took.
    """

    number: int
    problem: str = ""
    nodes: tuple[StoredRecord, ...] = ()
    state: bytes | None = None
    took_s: float = 0.0


class Bye(msgspec.Struct, frozen=True, kw_only=True, tag="run.bye"):
    """The run ends by itself.

    `told`: the final outcome of every command that this process received was sent before. `at_exit`: the
    interpreter exits, so the exit code of the process may say more. `confirm`: the process waits for a
    `Farewell`, because the daemon may be killed with it.
    """

    reason: Literal["finished", "stopped", "exception"]
    detail: str = ""
    told: bool = False
    at_exit: bool = False
    confirm: bool = False


# daemon -> run ----------------------------------------------------------------------------------------------


class RunWelcome(msgspec.Struct, frozen=True, kw_only=True, tag="run.welcome"):
    """The answer to RunHello. `epoch` is this process's, and `hello` the hello's `number` (or 0).

    `since` is the stamp of the last row that the daemon has. The run sends newer ones again. Those up to
    `on_disk` outlive the daemon; older daemons do not say (None), and rows up to `since` count. `acks`: the
    daemon acknowledges final outcomes. `stored` is the stamp of the newest row that earlier daemons have left
    in the recording, 0 for none. A run with `past_rows` gets a second answer with it, once the recording is
    open, if the first had no `since`. With `stacks`, the daemon wants stack samples.
    """

    protocol: int
    pid: int
    version: str
    epoch: int
    since: int = 0
    acks: bool = False
    stored: int | None = None
    hello: int = 0
    on_disk: int | None = None
    stacks: bool = False
    output: bool = False


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True, tag="outcome.ack"):
    """The daemon has these final outcomes: stages by the id of their command."""

    stages: dict[str, Stage]


class JobReport(msgspec.Struct, frozen=True, kw_only=True, tag="job.report"):
    """Once a second, to the process that represents a run of several nodes on its node.

    It writes `record` to the store of the job: of the head the record for all nodes, of another node its own.
    The head reads the records of all nodes. Another node reads the head's with `read`. None: write nothing.
    """

    number: int
    head: bool = False
    record: bytes | None = None
    read: bool = False


class Farewell(msgspec.Struct, frozen=True, kw_only=True, tag="run.farewell"):
    """The answer to a `Bye` with `confirm`: the daemon has written what the disk takes now."""


class Hold(msgspec.Struct, frozen=True, kw_only=True, tag="run.hold"):
    """Renews the pause lease: stay paused for `seconds` from now."""

    seconds: float


class Retire(msgspec.Struct, frozen=True, kw_only=True, tag="daemon.retire"):
    """A user stopped the daemon: do not start it again, and reconnect when it runs again."""


# viewer -> daemon -------------------------------------------------------------------------------------------


class ViewerHello(msgspec.Struct, frozen=True, kw_only=True, tag="viewer.hello"):
    """First message of a viewer. `viewer` is random per viewer process and survives reconnects.

    `records`: it takes the records of its commands as they are sent by themselves. Older viewers wait for
    an Outcome instead, and get both.
    """

    protocol: int
    viewer: str
    client: str
    kind: Literal["person", "agent", "tuner"] = "person"
    records: bool = False


class Command(msgspec.Struct, frozen=True, kw_only=True, tag="command"):
    """A request to a run, from the viewer to the daemon and on to the run.

    The viewer creates the `id`, so it can send the same command again: it is applied at most once. `value` is
    absolute; for `profile` it is the number of iterations to trace, and `options` are those of
    `hoptui.domain.traces`. `expect_version` makes it compare-and-set. `ttl_s` counts from its arrival in the
    run, 0 is no limit. For a pause, `hold_s` is the lease after which the run resumes by itself. `why` is a
    user's note, `purpose` are the tuner's reasons. `repeated`: the viewer has sent it to an earlier daemon,
    which may have passed it on. `t` is when it was given, nanoseconds of the node's monotonic clock; 0 is
    unknown.
    """

    id: str
    run: str
    epoch: int
    verb: Verb
    knob: str = ""
    value: KnobValue | None = None
    options: dict[str, int | bool] = {}
    expect_version: int | None = None
    ttl_s: float = 600.0
    hold_s: float = 60.0
    origin: Origin = Origin()
    why: str = ""
    purpose: tuple[Fact, ...] = ()
    repeated: bool = False
    t: int = 0


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
    """A request for everything newer than the viewer's cursors.

    The daemon answers with a Delta when there is something new, or after `wait_s`. `cursors` maps a source to
    the stamp of the viewer's newest row; other sources are not sent. `events` and `commands` are its newest
    sequence numbers for the run `run` (empty: all runs), `state` the version of the node's state. With
    `latest`, every known source answers with one row of its newest values instead. `hz` is the requested
    sampling rate of the GPUs (0: any; at most 10). `processes` is the viewer's version of the processes on
    GPUs, None if it does not need them. `page` is the `next_page` of the last answer, 0 for the beginning,
    None for a viewer that takes the state of the node in one page. `job` is a run whose ranks on all nodes
    are wanted, and `job_version` what the viewer has of it.
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
    page: int | None = None
    job: str = ""
    job_version: int = 0


class Query(msgspec.Struct, frozen=True, kw_only=True, tag="query"):
    """A request for past values of a source between two stamps in at most `points` buckets.

    0 stands for the first and the last row. `run` selects the recording for the host's and the GPUs' past
    (empty: any live run's).
    """

    id: int
    source: str
    run: str = ""
    names: tuple[str, ...] = ()
    t0: int = 0
    t1: int = 0
    points: int = 512


class Describe(msgspec.Struct, frozen=True, kw_only=True, tag="describe"):
    """A request for the details of a run."""

    id: int
    run: str


class FetchStacks(msgspec.Struct, frozen=True, kw_only=True, tag="stacks.fetch"):
    """A request for where the training threads of a run were in the last seconds, at most a minute."""

    id: int
    run: str
    seconds: float = KEPT_S


class FetchLines(msgspec.Struct, frozen=True, kw_only=True, tag="lines.fetch"):
    """A request for the lines of the script that a run was at in the last seconds, at most a minute.

    Of a run that has ended, it is the time before its newest samples. The answer begins with rank `first`
    and has at most `ranks` processes.
    """

    id: int
    run: str
    seconds: float = KEPT_S
    first: int = 0
    ranks: int = 1


class FetchOutput(msgspec.Struct, frozen=True, kw_only=True, tag="output.fetch"):
    """A request for what a process of a run has written to stdout and stderr.

    `since` has, by the source of a part, the offset up to which the viewer has it.
    """

    id: int
    run: str
    rank: int = 0
    since: dict[str, int] = {}


class ViewerBye(msgspec.Struct, frozen=True, kw_only=True, tag="viewer.bye"):
    """The viewer disconnects. Without it, the daemon notices by its silence."""

    id: int = 0


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="daemon.shutdown"):
    """End the daemon. Runs continue without it."""

    id: int


# daemon -> viewer -------------------------------------------------------------------------------------------


class ViewerWelcome(msgspec.Struct, frozen=True, kw_only=True, tag="viewer.welcome"):
    """The answer to a ViewerHello. `records`: viewers get the records of their commands without asking."""

    protocol: int
    pid: int
    version: str
    host: str
    records: bool = False


class LeaseState(msgspec.Struct, frozen=True, kw_only=True, tag="lease.state"):
    """The answer to a Lease. `reason` says why it is not `granted`."""

    id: int = 0
    run: str = ""
    granted: bool = False
    reason: str = ""


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A command as viewers see it and as the recording stores it.

    `wall` is seconds since 1970, for display. `settled` is the stamp of its final stage, 0 before. `took_s`
    is how long the run paused for it. `followed` lists other knobs whose value changed as a side effect.
    `released` is the author who later allowed the tuner to change the knob. `unsaved`: the final stage is not
    on disk yet. `host` is the head that has told its end, empty if no other node has.
    """

    id: str
    run: str
    epoch: int
    verb: Verb
    knob: str = ""
    wanted: KnobValue | None = None
    options: dict[str, int | bool] = {}
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
    unsaved: bool = False
    seq: int = 0
    host: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An entry on the time axis. `run` is empty for the node's own. `kind` is a stable word.

    `code` and `fields` describe the event; `hoptui.presentation.sentences` makes the sentence. `text` is a
    training script's note, or the sentence of an older recording. `source` names the device it concerns, if
    any (`gpu/<uuid>`). `alert` is the kind of alert that fired with it, empty for none. `host` is the node
    that reports it, empty for this one, and `host_wall` the time by the clock of that node. `t` and `wall`
    are of this node then, and late by the time that the report took. Recordings do not keep these three.
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
    alert: str = ""
    host: str = ""
    host_wall: float = 0.0


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a run on this node, other than the one that represents it.

    Its rows are the source `rank/<run id>/<rank>`.
    `thread` is the kernel's number of the thread that trains, 0 if it is unknown.
    """

    rank: int
    pid: int
    thread: int = 0


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run besides its rows.

    `rank` represents the run on this node: 0, or another one if rank 0 is on another node.
    `started_wall` and `exited_wall` are seconds since 1970. `can` lists the commands it has a handler for.
    `gpus` are the UUIDs of its GPUs: declared, or derived from its environment and its processes. `ranks` are
    the other processes of this epoch on this node, in order of rank. `diagnosis` and `tuner` are None before
    there is one. `targets` are what users want of its GPUs. `tags` are those of its details. `refused` is
    what its script declared or called that is not accepted. `declined` are the commands and knobs that it
    does not offer, with the reasons. `thread` is the kernel's number of the thread that trains in rank 0, 0
    if it is unknown. `stacks_off`: the stack of rank 0 is not sampled, as the user wants it. `held` are the
    knobs that the tuner and agents leave alone because a person set them, with the authors ("" if not known).
    It is None from an older daemon, which does not know agents. `notes` are what users wrote on it. `head` is
    what the node of rank 0 says of it: None on that node, and while nothing has been read. With it, `tuner`,
    `held` and `notes` are those of the head.
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
    targets: tuple[TargetState, ...] = ()
    tags: tuple[str, ...] = ()
    declined: dict[str, str] = {}
    refused: tuple[Fact, ...] = ()
    thread: int = 0
    stacks_off: bool = False
    held: dict[str, str] | None = None
    notes: tuple[RunNote, ...] = ()
    head: HeadReports | None = None


class Vital(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fast part of a run's state. `because` explains a state other than `live` in a few words.

    `step` is the iteration in progress, from 0, and so the number of those that have finished.
    `throughput` is the run's headline rate over its last iterations (see `throughput.level`), None if
    unknown. `phases` are those during which the GPUs were read often enough. `logs_only`: its loop logs rows
    and passes no boundaries, so commands are refused. Then `step` is unknown unless there is `iteration_s`:
    its rows have rising numbers. `bad_values` counts logged values that were no numbers. `head_age_s` is how
    old what the head says of the run is at most. It is None on the head, and while nothing of it is known.
    """

    state: State
    because: Fact | None = None
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
    phases: tuple[PhaseReadings, ...] = ()
    logs_only: bool = False
    bad_values: int = 0
    head_age_s: float | None = None


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """The node and everything on it.

    `gpu_problem` is why there are no GPU readings (None: there are). `sampler_problems` are why samplers give
    no readings, or not all of them. `history` says what is wrong with history (empty: nothing), such as
    why it is not being kept. `metrics_problem` is why the Prometheus endpoint has ended, `alerts_problem` why
    alerts do not arrive.
    `wall_offset_ns` added to a stamp gives wall time. `hz` is the current sampling rate of the GPUs.
    `metrics` is the address of the Prometheus endpoint, if there is one.
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
    gpu_problem: Fact | None = None
    sampler_problems: tuple[Fact, ...] = ()
    history: str = ""
    viewers: int = 0
    hz: float = 0.0
    metrics: str = ""
    metrics_problem: Fact | None = None
    alerts_problem: Fact | None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True, tag="delta"):
    """The answer to a Fetch. `more`: something was held back because of the size, ask again at once.

    `node` has only the first runs, or those of the asked page, if `next_page` is not 0. Events and commands
    continue at the viewer's cursors.

    A Delta with the id 0 answers no Fetch. It has the record of a command, for the viewer that sent the
    command. The `seq` of that record is 0, so that it moves no cursor.

    `state` is the version of `node`, which is None if the viewer already has it. `now` is the stamp of the
    answer. `behind_ms` is how far the newest row sent lags behind the newest one known. `processes` are those
    on GPUs, if the viewer asked for them and lacks this version, and `tree` are those of the runs. `job` is
    the state on all nodes of the run that it asked for, encoded by `job_records.encode_state`. It is None if
    the viewer has this version, or if there is none.
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
    tree: tuple[RunProcess, ...] | None = None
    processes_version: int = 0
    next_page: int = 0
    job: bytes | None = None
    job_version: int = 0


class Buckets(msgspec.Struct, frozen=True, kw_only=True, tag="buckets"):
    """The answer to a Query: least, greatest and mean of each bucket per name, as float64, NaN if empty.

    `t` and `step` (int64) are those of the last row of each bucket.
    """

    id: int
    source: str
    names: tuple[str, ...]
    t: bytes
    step: bytes
    low: tuple[bytes, ...]
    high: tuple[bytes, ...]
    mean: tuple[bytes, ...]


class Description(msgspec.Struct, frozen=True, kw_only=True, tag="description"):
    """The answer to Describe. `details` are None if the run is unknown or says none, as an older one does."""

    id: int
    run: str
    details: RunDetails | None = None


class RankStacks(msgspec.Struct, frozen=True, kw_only=True):
    """The stack samples of one process of a run."""

    rank: int
    samples: StackSamples


class RunStacks(msgspec.Struct, frozen=True, kw_only=True, tag="stacks"):
    """The answer to FetchStacks, in order of rank. A process that sends no samples is left out."""

    id: int
    run: str
    ranks: tuple[RankStacks, ...] = ()


class RankLines(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of one process of a run."""

    rank: int
    counts: LineCounts


class RunLines(msgspec.Struct, frozen=True, kw_only=True, tag="lines"):
    """The answer to FetchLines, in order of rank. A process that sends no samples is left out.

    `next` is the rank that the next page begins with, -1 if this is the last.
    """

    id: int
    run: str
    ranks: tuple[RankLines, ...] = ()
    next: int = -1


class RunOutput(msgspec.Struct, frozen=True, kw_only=True, tag="output"):
    """The answer to FetchOutput: a page of each stream. `ranks` are those that can be asked for.

    No part: the process is unknown. `problem` is `no_answer` if a file system does not answer, `failed` if
    the daemon has an error, else empty.
    """

    id: int
    run: str
    rank: int = 0
    parts: tuple[OutputPart, ...] = ()
    ranks: tuple[int, ...] = ()
    problem: str = ""


class Error(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """A request that cannot be answered: a stable `code` and one sentence."""

    code: str
    text: str
    id: int = 0


def as_asked(done: Outcome | CommandRecord) -> bool:
    """Return whether an applied change has the requested value. Older runs give a reason if not."""
    return done.code != NOT_AS_ASKED and (bool(done.code) or not done.reason)


def record_of(command: Command, *, t: int = 0, wall: float = 0.0) -> CommandRecord:
    """Return the record of a command that was given at `t` and that nobody has answered."""
    return CommandRecord(
        id=command.id,
        run=command.run,
        epoch=command.epoch,
        verb=command.verb,
        knob=command.knob,
        wanted=command.value,
        options=command.options,
        origin=command.origin,
        why=command.why,
        purpose=command.purpose,
        t=t,
        wall=wall,
    )


FromRun = RunHello | Declare | Rows | Outcome | Pulse | Note | Stacks | Output | JobReading | Bye
ToRun = RunWelcome | Acknowledgement | Command | JobReport | Farewell | Hold | Retire | Error
FromViewer = (
    ViewerHello
    | Command
    | Lease
    | Tune
    | SetTargets
    | AddNote
    | Fetch
    | Query
    | Describe
    | FetchStacks
    | FetchLines
    | FetchOutput
    | ViewerBye
    | Shutdown
)
ToViewer = (
    ViewerWelcome
    | Delta
    | Buckets
    | Description
    | RunStacks
    | RunLines
    | RunOutput
    | Outcome
    | LeaseState
    | Tuned
    | TargetsSet
    | NoteAdded
    | Error
)
Message = FromRun | ToRun | FromViewer | ToViewer | FromSampler | ToSampler
