"""One example of every message, with every field away from its default, and the decoders of all
directions."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence

import pytest

from hoptui.domain import devices
from hoptui.domain.columns import pack
from hoptui.domain.details import Repository, RunDetails
from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.domain.facts import Fact, fact
from hoptui.domain.jobs import HeadReports
from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.domain.line_counts import count as count_lines
from hoptui.domain.outputs import OutputPart
from hoptui.domain.phases import PhaseReadings, PhaseSpan
from hoptui.domain.run_notes import AddNote, NoteAdded, RunNote
from hoptui.domain.stacks import StackFrame
from hoptui.domain.stacks import pack as pack_stacks
from hoptui.domain.targets import SetTargets, Target, TargetsSet, TargetState
from hoptui.domain.tuning import Change, Limits, Measured, Trial, Tune, Tuned, TunerState
from hoptui.protocol import codec, messages

ACCUM = KnobState(
    spec=KnobSpec(
        name="grad_accum",
        kind="int",
        default=4,
        min=1,
        max=64,
        choices=(1, 2, 4, 8),
        scale="pow2",
        effect="speed",
        cost="shape",
        keeps="grad_accum × micro_batch",
        unit="batches",
        description="Batches a step.",
    ),
    value=8,
    version=3,
    in_effect=False,
    by="ana",
    took_s=0.21,
)
ANA = messages.Origin(kind="tuner", user="ana", pid=4121, client="dashboard")
COLUMNS = pack("run/r1", [(5, 1, {"loss": 0.5, "lr": 3e-4}), (9, 2, {"loss": math.inf})])
LEASE = messages.LeaseState(id=4, run="r1", granted=True, reason="taken over")
MEASURED = Measured(
    metric="tokens_per_s",
    before=1e5,
    after=1.1e5,
    gain=0.1,
    interval=0.01,
    detectable=True,
    iterations=30,
    until=90,
    settled=True,
    remarks=(Fact("effect.shared", {"knobs": ["lr"]}),),
    note="one look",
)
FOLLOWED = Change(knob="micro_batch", before=16, value=8)
RECORD = messages.CommandRecord(
    id="c1",
    run="r1",
    epoch=2,
    verb="set",
    knob="grad_accum",
    wanted=8,
    before=4,
    effective=8.0,
    version=4,
    stage="applied",
    step=1205,
    code="clamped",
    fields={"most": 8},
    reason="the most it takes",
    origin=ANA,
    why="less memory",
    purpose=(Fact("trial.both"),),
    t=17,
    wall=1.7e9,
    settled=19,
    took_s=0.21,
    measured=MEASURED,
    followed=(FOLLOWED,),
    options={"warmup": 2},
    released=ANA,
    unsaved=True,
    seq=11,
    host="node-0",
)
FLOPS = messages.Flops(per_unit=6e9, metric="tokens_per_s", precision="fp8")
EVENT = messages.Event(
    seq=12,
    t=18,
    wall=1.7e9,
    kind="checkpoint",
    code="run.started",
    fields={"pid": 7},
    text="written ✓",
    run="r1",
    step=1200,
    level="warning",
    source="gpu/GPU-1",
    alert="stall",
    host="node-0",
    host_wall=1.6e9,
)
DIAGNOSIS = Diagnosis(
    verdict="launch-bound",
    confidence=0.8,
    facts=(fact("gpu.sm_active", share=0.05), fact("gpu.any_kernel", share=1.0)),
    advice=(
        Advice(
            knob="micro_batch",
            direction="up",
            value=64,
            fact=fact("advice.knob", knob="micro_batch", before=32, value=64, effect="speed", cost="shape"),
        ),
    ),
    seconds=20.0,
    t=18,
)
LIMITS = Limits(memory=0.9, power_w=400.0, budget=0.05, objective="energy", learning=("num_envs",), dry=True)
CHANGE = Change(knob="grad_accum", before=8, value=4)
TRIAL = Trial(
    changes=(CHANGE,),
    result="kept",
    t=17,
    step=1205,
    iterations=30,
    seconds=41.5,
    measured=MEASURED,
    throughput=MEASURED,
    units=5120.0,
    why=(Fact("trial.limit", {"verdict": "launch-bound", "stale": False, "evidence": []}),),
    text="larger kernels: kept",
)
TUNER = TunerState(
    stand="trial",
    facts=(Fact("tuner.begins"),),
    text="trying grad_accum 4",
    limits=LIMITS,
    trial=TRIAL,
    next=(CHANGE,),
    tried=(TRIAL,),
    frozen=("lr",),
    spent=0.01,
    regret_units=512.0,
    best_rate=1024.0,
    started=16,
    user="ana",
)
TARGET = TargetState(
    target=Target(reading="power_w", value=0.85, side="most", share=True),
    standing="missed",
    mean=0.91,
    gpu="GPU-1",
    seconds=31.5,
    t=18,
    since=17,
    told=True,
)
NOTE = RunNote(wall=1.75e9, by="ana", text="a longer warmup ✓")
DETAILS = RunDetails(
    config={"optimizer.lr": 3e-4, "sizes": [1, "two", None], "compile": True},
    summary={"best": math.inf},
    config_left_out=3,
    summary_left_out=4,
    tags=("baseline",),
    notes="a longer warmup ✓",
    command="python train.py --fast",
    directory="/home/ana/ppo",
    script="/home/ana/ppo/train.py",
    python="3.12.1",
    packages={"torch": "2.12.0"},
    host="node-7",
    user="ana",
    environment={"RANK": "0"},
    repository=Repository(commit="3f9c2a1b", branch="main", dirty=True),
)
REPORTS = HeadReports(
    host="node-0", diagnosis=DIAGNOSIS, targets=(TARGET,), since=17, left_out={"commands": 3}
)
REFUSED = Fact("knob.refused", {"knob": "lr", "problem": "it is a text"})
RUN = messages.RunState(
    run="r1",
    name="ppo",
    epoch=2,
    pid=4120,
    started_wall=1.7e9,
    total=5000,
    knobs=(ACCUM,),
    units={"loss": "nats"},
    headline="tokens_per_s",
    can=("checkpoint", "pause"),
    gpus=("GPU-1",),
    flops=FLOPS,
    rank=1,
    world=8,
    ranks=(messages.RankState(rank=1, pid=4121, thread=4122),),
    argv="train.py --fast",
    versions={"torch": "2.12.0"},
    exit_reason="exception",
    exit_detail="ValueError",
    exited_wall=1.8e9,
    recording="/var/tmp/hoptui-1000/r1.hoptui",
    diagnosis=DIAGNOSIS,
    tuner=TUNER,
    targets=(TARGET,),
    tags=("baseline",),
    notes=(NOTE,),
    refused=(REFUSED,),
    thread=4120,
    stacks_off=True,
    held={"grad_accum": "ana (pid 4121)"},
    declined={"pause": "it has no handler"},
    head=REPORTS,
)
GPU = devices.GpuInfo(
    uuid="GPU-1",
    index=1,
    name="H100",
    memory_total_bytes=85_520_809_984,
    power_limit_w=700.0,
    sm_clock_max_mhz=1980.0,
    driver="580.1",
    architecture="Hopper",
    problem=Fact("gpu.fell_off_bus", {"nvml": 15, "error": "GPU is lost"}),
    parent="GPU-0",
    missing_because={"gpm": Fact("reading.refused")},
    memory_bandwidth_bytes_per_s=3.35e12,
    peak_flops={"bf16": 989e12},
    peak_clock_mhz=1829.0,
    peaks_source="a datasheet",
    pcie_generation=5,
    pcie_width=16,
    nvlinks=18,
)
PROCESS = devices.GpuProcess(
    gpu="GPU-1",
    pid=4120,
    memory_used_bytes=1 << 30,
    sm_percent=41.5,
    user="ana",
    command="python train.py",
    run="r1",
)
WORKER = devices.RunProcess(
    pid=4130, parent=4120, run="r1", cpu_percent=97.5, rss_bytes=1 << 30, command="python train.py"
)
NODE = messages.NodeState(
    host="node-7",
    pid=99,
    version="0.1.0",
    started_wall=1.7e9,
    wall_offset_ns=1_700_000_000_000_000_000,
    cpus=64,
    memory_total_bytes=1 << 40,
    runs=(RUN,),
    gpus=(GPU,),
    gpu_problem=Fact("driver.no_gpu"),
    sampler_problems=(Fact("sampler.closed", {"sampler": "gpus"}),),
    history="the disk is full",
    viewers=3,
    hz=2.0,
    metrics="127.0.0.1:9400",
)
VITAL = messages.Vital(
    state="busy",
    because=Fact("state.in_phase", {"phase": "checkpoint", "age_s": 140.0}),
    step=1205,
    phase="checkpoint",
    phase_age_s=140.0,
    progress_age_s=141.0,
    pulse_age_s=0.5,
    iteration_s=1.25,
    throughput=1.2e6,
    paused_left_s=12.0,
    dropped=2,
    last_t=18,
    phases=(PhaseReadings(phase="update", samples=24, readings={"sm_active": 71.2}),),
    logs_only=True,
    bad_values=3,
    head_age_s=40.5,
)
OUTPUT = OutputPart(
    stream="stderr",
    origin="file",
    source="66306:1234",
    path="/job/log.txt",
    start=40,
    end=99,
    data=b"epoch 3\n",
)
SAMPLES = pack_stacks(
    {
        (
            StackFrame("train.py", "main", 3),
            StackFrame("/libs/aug/crop.py", "crop", 12, package_at=6),
            StackFrame("data.py", "augment", 37, 37, 4, 20, "rand"),
        ): 5
    },
    10,
    20,
    left_out=2,
    cost=0.001,
    asleep={},
)
COUNTS = count_lines(SAMPLES)
DOUBLES = (array("d", [0.5, math.nan]).tobytes(),)

EXAMPLES: list[messages.Message] = [
    messages.RunHello(
        protocol=1,
        run="r1",
        name="ppo",
        epoch=2,
        nonce="n",
        pid=4120,
        started=3,
        step=7,
        total=5000,
        phase="update",
        paused=True,
        knobs=(ACCUM,),
        units={"loss": "nats"},
        headline="tokens_per_s",
        can=("checkpoint",),
        gpus=("GPU-1",),
        visible="0,1",
        slurm_gpus="4,5",
        flops=FLOPS,
        rank=1,
        world=8,
        argv="train.py",
        versions={"torch": "2.12.0"},
        began=False,
        details=DETAILS,
        refused=(REFUSED,),
        past_rows=12,
        number=2,
        stacks_off=True,
        away=True,
    ),
    messages.Declare(
        knobs=(ACCUM,),
        units={"a": "b"},
        headline="h",
        can=("stop",),
        gpus=("GPU-1",),
        flops=FLOPS,
        total=9,
        details=DETAILS,
        refused=(REFUSED,),
    ),
    messages.Rows(parts=(COLUMNS, pack("host", [(6, -1, {"cpu_percent": 3.5})]))),
    messages.Outcome(
        id="c1",
        stage="applied",
        step=1205,
        before=4,
        effective=8,
        version=4,
        by="ana",
        code="clamped",
        fields={"most": 8},
        reason="the most it takes",
        t=17,
        took_s=0.21,
        followed=(FOLLOWED,),
        command=messages.Command(id="c1", run="r1", epoch=2, verb="set", knob="n", value=8),
    ),
    messages.Pulse(
        step=7,
        t=17,
        phase="update",
        progress_age_s=1.5,
        phase_age_s=0.5,
        paused=True,
        paused_left_s=9.5,
        dropped=2,
        bad_values=3,
        spans=(PhaseSpan(path="update", start=5, end=9),),
        began=False,
        off=Fact("state.off", {"error": "OSError"}),
        thread=4120,
        fixed_bytes=6 << 30,
    ),
    messages.Note(t=9, step=7, text="written ✓", code="pause.expired", fields={"a": 1}, level="warning"),
    messages.Stacks(samples=SAMPLES, loop=(("/job/train.py", 40, "main"),)),
    messages.Output(part=OUTPUT),
    messages.JobReading(
        number=4,
        problem="RuntimeError: no connection",
        nodes=(messages.StoredRecord(1, b"record", left=True),),
        state=b"state",
        took_s=0.002,
    ),
    messages.JobReport(number=4, head=True, record=b"record", read=True),
    messages.Bye(reason="exception", detail="ValueError: no", told=True, at_exit=True, confirm=True),
    messages.RunWelcome(
        protocol=1,
        pid=99,
        version="0.1.0",
        epoch=3,
        since=17,
        acks=True,
        stored=17,
        hello=2,
        on_disk=16,
        stacks=True,
        output=True,
    ),
    messages.Acknowledgement(stages={"c1": "applied"}),
    messages.Farewell(),
    messages.Hold(seconds=60.0),
    messages.Retire(),
    messages.ViewerHello(protocol=1, viewer="v1", client="cli", kind="tuner", records=True),
    messages.Command(
        id="c1",
        run="r1",
        epoch=2,
        verb="set",
        knob="grad_accum",
        value=8,
        options={"warmup": 2, "stacks": True},
        expect_version=3,
        ttl_s=5.0,
        hold_s=30.0,
        origin=ANA,
        why="less memory",
        purpose=(Fact("trial.both"),),
        repeated=True,
        t=7 * 10**12,
    ),
    messages.Lease(id=4, run="r1", op="steal", what="pause", seconds=30.0),
    Tune(id=8, run="r1", op="freeze", knob="lr", limits=LIMITS),
    AddNote(id=11, run="r1", text="a longer warmup ✓"),
    SetTargets(id=9, run="r1", targets=(TARGET.target,), remove=("busy",), clear=True),
    messages.Fetch(
        id=5,
        run="r1",
        cursors={"host": 17},
        events=3,
        commands=2,
        state=4,
        max_rows=10,
        wait_s=0.5,
        latest=True,
        hz=10.0,
        processes=4,
        page=2,
        job="r1",
        job_version=6,
    ),
    messages.Query(id=6, source="host", run="r1", names=("cpu_percent",), t0=3, t1=9, points=64),
    messages.Describe(id=10, run="r1"),
    messages.FetchStacks(id=11, run="r1", seconds=10.0),
    messages.RunStacks(id=11, run="r1", ranks=(messages.RankStacks(rank=3, samples=SAMPLES),)),
    messages.FetchLines(id=12, run="r1", seconds=10.0, first=2, ranks=8),
    messages.RunLines(id=12, run="r1", ranks=(messages.RankLines(rank=3, counts=COUNTS),), next=4),
    messages.FetchOutput(id=13, run="r1", rank=2, since={"66306:1234": 40}),
    messages.RunOutput(id=13, run="r1", rank=2, parts=(OUTPUT,), ranks=(0, 2), problem="no_answer"),
    messages.ViewerBye(id=7),
    messages.Shutdown(id=7),
    messages.ViewerWelcome(protocol=1, pid=99, version="0.1.0", host="node-7", records=True),
    messages.Delta(
        id=5,
        now=20,
        state=5,
        node=NODE,
        vitals={"r1": VITAL},
        columns=(COLUMNS,),
        events=(EVENT,),
        commands=(RECORD,),
        more=True,
        behind_ms=2.5,
        processes=(PROCESS,),
        tree=(WORKER,),
        processes_version=4,
        job=b"state",
        job_version=6,
        next_page=3,
    ),
    messages.Buckets(
        id=6,
        source="host",
        names=("cpu_percent",),
        t=array("q", [3, 9]).tobytes(),
        step=array("q", [-1, 2]).tobytes(),
        low=DOUBLES,
        high=DOUBLES,
        mean=DOUBLES,
    ),
    messages.Description(id=10, run="r1", details=DETAILS),
    LEASE,
    Tuned(id=8, run="r1", granted=True, code="tune.off", fields={"run": "ppo"}, reason="begun", state=TUNER),
    NoteAdded(id=11, run="r1", granted=True, code="note.no_run", fields={"run": "r1"}, notes=(NOTE,)),
    TargetsSet(id=9, run="r1", granted=True, code="target.none", fields={"run": "ppo"}, targets=(TARGET,)),
    messages.Error(code="no_such_run", text="there is no run r2", id=6),
    devices.Devices(gpus=(GPU,), problem=Fact("driver.no_gpu")),
    devices.HostInfo(cpus=64, memory_total_bytes=1 << 40),
    devices.Sample(parts=(COLUMNS,)),
    devices.Tenants(processes=(PROCESS,)),
    devices.RunProcesses(processes=(WORKER,)),
    devices.Happened(
        source="gpu/GPU-1",
        t=5,
        kind="xid",
        what=Fact("gpu.xid", {"number": 79}),
        text="as older samplers say it",
        level="alarm",
    ),
    devices.Watch(hz=2.0, pids={"r1": 4120}),
]

Decode = Callable[[Sequence[bytes]], object]
DECODERS: list[tuple[object, Decode]] = [
    (messages.FromRun, codec.from_run),
    (messages.ToRun, codec.to_run),
    (messages.FromViewer, codec.from_viewer),
    (messages.ToViewer, codec.to_viewer),
    (devices.FromSampler, codec.from_sampler),
    (devices.ToSampler, codec.to_sampler),
]


@pytest.fixture(params=EXAMPLES, ids=lambda example: type(example).__name__)
def example(request: pytest.FixtureRequest) -> messages.Message:
    """Each message in turn."""
    found: messages.Message = request.param
    return found


@pytest.fixture
def examples() -> list[messages.Message]:
    return EXAMPLES


@pytest.fixture
def decoders() -> list[tuple[object, Decode]]:
    """(union, decoder) of each direction."""
    return DECODERS
