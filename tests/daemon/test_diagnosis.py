"""When the daemon looks at a run, at what of its rows, and what becomes of a verdict: with a clock that is
moved by hand."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import sys
from bisect import bisect_right
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from msgspec import structs

from hoptui.daemon import diagnosis as daemon_diagnosis
from hoptui.daemon.diagnosis import MOST_ROWS, SETTLED_NS, Diagnosing
from hoptui.daemon.state.gpu_ownership import Resolved
from hoptui.daemon.state.registry import TrackedRun
from hoptui.diagnosis import window
from hoptui.diagnosis.window import GpuWindow, ObservationWindow
from hoptui.domain.columns import concatenate, pack
from hoptui.domain.devices import GpuInfo, GpuProcess, HostInfo
from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.facts import fact
from hoptui.domain.pacing import DEFAULT
from hoptui.domain.stacks import Stack, StackFrame
from hoptui.domain.stacks import pack as pack_stacks
from hoptui.model.recorded.point_in_time import diagnosis_of
from hoptui.protocol.messages import CommandRecord, Pulse
from hoptui.recording import Recording
from hoptui.recording.library import NODE as KNOWN_NODE
from hoptui.recording.library import RUN as KNOWN_RUN
from hoptui.recording.library import KnownRun, decode_node
from tests.conftest import until
from tests.daemon.conftest import GpuNode
from tests.daemon.quiet_node import RUN, SECOND, QuietNode
from tests.domain.test_job_stragglers import job
from tests.domain.test_stragglers import REDUCE

EXAMPLE = Path(__file__).parents[1] / "recordings" / "ppo-h100.hoptui"

GPU = GpuInfo(uuid="GPU-a", index=0, name="NVIDIA H100 80GB HBM3", memory_total_bytes=80 << 30,
              power_limit_w=700.0,
              sm_clock_max_mhz=1980.0, pcie_generation=5, pcie_width=16)  # fmt: skip
EAGER = {"busy": 32.0, "sm_active": 5.6, "tensor_active": 0.3, "dram_active": 0.9, "power_w": 144.0,
         "sm_clock_mhz": 1980.0,
         "throttle": 0.0, "pcie_rx_bytes_per_s": 160e6, "memory_used_bytes": 1.4e9}  # fmt: skip
PRODUCT = EAGER | {
    "busy": 100.0, "sm_active": 96.0, "tensor_active": 94.0, "dram_active": 26.0, "power_w": 697.0,
    "throttle": 4.0,
}  # fmt: skip
PLAIN = {"iteration_s": 0.5, "phase/rollout": 0.3, "phase/update": 0.2}
PACKAGES = "/opt/env/lib/python3.12/site-packages"
COMPUTES: dict[Stack, int] = {(StackFrame(f"{PACKAGES}/torch/nn/modules/linear.py", "forward", 9),): 20}
READ = (StackFrame(f"{PACKAGES}/torch/utils/data/dataloader.py", "next", 9),)
LOADS: dict[Stack, int] = {READ: 17, **dict.fromkeys(COMPUTES, 3)}


class Watched(QuietNode):
    """A run on a GPU whose load a test chooses, and what viewers are told of it."""

    def __init__(self) -> None:
        super().__init__()
        self.node.set_hardware(HostInfo(cpus=16), (GPU,), None)
        self.diagnosing = Diagnosing(self.node)
        self.sampled: dict[Stack, int] = {}
        self.second_rank: dict[Stack, int] = {}
        self.begin("n1")

    def begin(self, nonce: str) -> None:
        self.hello(nonce=nonce)
        self.run.own(Resolved((GPU.uuid,), said=True))

    def train(
        self,
        seconds: float,
        load: dict[str, float] = EAGER,
        row: dict[str, float] = PLAIN,
        every_s: float = 0.5,
    ) -> None:
        """So many seconds of iterations, with a reading of the GPU every second, what is `sampled` every two,
        and the daemon's looks."""
        end = self.now + int(seconds * SECOND)
        iteration, reading = self.now + int(every_s * SECOND), self.now + SECOND
        while (t := min(iteration, reading)) <= end:
            self.now = t
            if t == reading:
                self.node.rows((pack(f"gpu/{GPU.uuid}", [(t, -1, load)]),))
                if self.sampled and t // SECOND % 2:
                    self.node.stacks(self.run, 0, pack_stacks(self.sampled, t - 2 * SECOND, t))
                if self.second_rank and t // SECOND % 2:
                    self.node.stacks(self.run, 1, pack_stacks(self.second_rank, t - 2 * SECOND, t))
                self.diagnosing.tend()
                reading += SECOND
            if t == iteration:
                self.node.rows((pack(f"run/{RUN}", [(t, self.run.last_step + 1, row)]),))
                iteration += int(every_s * SECOND)

    @property
    def told(self) -> Diagnosis:
        assert self.run.state.diagnosis is not None
        return self.run.state.diagnosis

    @property
    def events(self) -> list[str]:
        return [event.fields["verdict"] for event in self.node.events if event.kind == "diagnosis"]

    def set(self, knob: str = "micro_batch") -> None:
        """A change takes effect now."""
        record = CommandRecord(id=f"c{self.now}", run=RUN, epoch=1, verb="set", knob=knob, stage="applied",
                               step=self.run.last_step, t=self.now,
                               settled=self.now)  # fmt: skip
        self.node.book.restore([record])


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_verdict_is_told_once_and_recorded(watched: Watched) -> None:
    watched.train(30)
    assert watched.told.verdict == "launch-bound"
    assert watched.told.seconds == pytest.approx(20, abs=1)
    assert watched.events == ["launch-bound"]
    event = next(e for e in watched.node.events if e.kind == "diagnosis")
    assert (event.run, event.t, event.level) == (RUN, watched.told.t, "info") or event.t < watched.told.t
    assert (event.code, event.text) == ("diagnosis.verdict", "")
    assert list(event.fields["facts"][:2]) == [
        {"code": "gpu.sm_active", "fields": {"share": 0.056}},
        {"code": "gpu.any_kernel", "fields": {"share": 0.32}},
    ]
    assert diagnosis_of(event).facts[:2] == watched.told.facts[:2]


def test_viewers_are_not_told_what_they_know(watched: Watched) -> None:
    watched.train(30)
    version = watched.node.version
    watched.train(60)
    assert watched.node.version == version


def test_a_new_load_gets_a_new_verdict(watched: Watched) -> None:
    watched.train(40)
    watched.train(40, PRODUCT)
    assert watched.told.verdict == "compute-bound"
    assert watched.events == ["launch-bound", "compute-bound"]


def test_a_new_load_is_named_within_fifteen_seconds(watched: Watched) -> None:
    watched.train(40)
    watched.train(15, PRODUCT)
    assert watched.events == ["launch-bound", "compute-bound"]
    watched.train(20, PRODUCT)
    watched.train(15)
    assert watched.events == ["launch-bound", "compute-bound", "launch-bound"]


@pytest.mark.parametrize("every_s", [0.01, 0.1, 0.5, 1.3, 2.0])
def test_a_new_cause_in_the_samples_is_named_within_fifteen_seconds(watched: Watched, every_s: float) -> None:
    watched.run.own(Resolved((), said=True))
    row = {"iteration_s": every_s}
    watched.sampled = COMPUTES
    watched.train(41, row=row, every_s=every_s)
    assert watched.events == ["healthy"]
    watched.sampled = LOADS
    watched.train(15, row=row, every_s=every_s)
    assert watched.events == ["healthy", "data-bound"]
    watched.train(60, row=row, every_s=every_s)
    assert watched.events == ["healthy", "data-bound"]
    assert watched.told.confidence >= 0.9
    watched.sampled = COMPUTES
    watched.train(15, row=row, every_s=every_s)
    assert watched.events == ["healthy", "data-bound", "healthy"]


def test_a_rank_that_its_gpu_waits_for_is_the_first_sure_verdict(watched: Watched) -> None:
    """The second rank waits in `item` for its GPU, on which the kernel of a collective spins. Seven samples a
    second: the ranks together have enough for other verdicts before each has enough for this one."""
    watched.run.state = structs.replace(watched.run.state, world=2)
    slow = (StackFrame("/job/train.py", "score", 12),)
    watched.sampled = {slow: 13, **dict.fromkeys(COMPUTES, 1)}
    watched.second_rank = {
        (StackFrame("/job/train.py", "main", 30, call="loss.item"),): 13,
        **dict.fromkeys(COMPUTES, 1),
    }
    sure = []
    for _ in range(22):
        watched.train(2, EAGER | {"busy": 50.0, "sm_active": 1.0}, row={"iteration_s": 0.1}, every_s=0.1)
        told = watched.run.state.diagnosis
        sure += [told.verdict] if told is not None and told.confidence > 0.6 else []
    assert set(sure) == {"straggler"}
    assert watched.told.confidence >= 0.9
    assert watched.told.facts[1].fields["line"] == 12


def test_a_slow_rank_of_another_node_is_the_verdict_here(watched: Watched) -> None:
    """Both ranks of this node wait for it. Without the report of the job, that looks like slow
    communication."""
    watched.run.state = structs.replace(watched.run.state, world=4)
    waits: dict[Stack, int] = {REDUCE: 14, **dict.fromkeys(COMPUTES, 6)}
    watched.sampled = watched.second_rank = waits
    watched.train(30, EAGER | {"busy": 30.0}, row={"iteration_s": 0.1}, every_s=0.1)
    assert watched.told.verdict == "communication-bound"
    watched.run.job = job()
    watched.train(20, EAGER | {"busy": 30.0}, row={"iteration_s": 0.1}, every_s=0.1)
    assert watched.told.verdict == "straggler"
    [rank, line] = watched.told.facts
    assert (rank.fields["rank"], rank.fields["host"], line.fields["line"]) == (3, "gpu01", 37)


def test_a_new_cause_with_few_samples_is_not_unknown_meanwhile(watched: Watched) -> None:
    watched.run.own(Resolved((), said=True))
    watched.sampled = COMPUTES
    watched.train(41)
    watched.sampled = {READ: 4, **dict.fromkeys(COMPUTES, 1)}
    watched.train(40)
    assert watched.events == ["healthy", "data-bound"]


def test_an_iteration_that_evaluates_for_long_is_no_new_cause(watched: Watched) -> None:
    watched.run.own(Resolved((), said=True))
    watched.sampled = COMPUTES
    watched.train(40)
    for _ in range(3):
        watched.sampled = {READ: 12, **dict.fromkeys(COMPUTES, 8)}
        watched.train(8, row={"iteration_s": 8.0}, every_s=8.0)
        watched.train(3)  # its last samples come when shorter iterations have ended
        watched.sampled = COMPUTES
        watched.train(30)
    assert watched.events == ["healthy"]


def test_it_looks_every_two_seconds(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    look = watched.diagnosing._look

    def counted(run: TrackedRun, *rest: Any) -> bool:
        looks.append(watched.now)
        return look(run, *rest)

    monkeypatch.setattr(watched.diagnosing, "_look", counted)
    watched.train(40)
    assert looks == list(range(looks[0], looks[0] + 40 * SECOND, int(DEFAULT.diagnose_s * SECOND)))


def test_compilation_after_a_change_does_not_count(watched: Watched) -> None:
    watched.train(40, PRODUCT)
    assert watched.told.verdict == "compute-bound"
    watched.set()
    # the change, and one iteration that compiles for 30 s, in which the GPU rests
    watched.train(31, EAGER, PLAIN | {"iteration_s": 30.0}, every_s=30.0)
    watched.train(40, PRODUCT)
    assert watched.events == ["compute-bound"]


def test_what_was_advised_is_not_advised_for_another_value(watched: Watched) -> None:
    watched.train(30)
    assert watched.told.advice
    watched.set()
    watched.train(2)
    assert watched.told.advice == ()
    assert watched.told.verdict == "launch-bound"


def test_that_a_knob_was_turned_is_noticed_between_two_looks(watched: Watched) -> None:
    watched.train(30)
    watched.diagnosing.tend()
    assert not watched.told.stale
    watched.now += 1
    watched.set()
    watched.diagnosing.tend()
    assert watched.told.stale
    told = watched.told
    watched.diagnosing.tend()
    assert watched.told is told


def test_evaluation_is_left_out(watched: Watched) -> None:
    for _ in range(6):
        watched.train(4, PRODUCT)
        watched.train(
            5, EAGER, {"iteration_s": 5.0, "phase/update": 0.2, "phase/evaluation": 4.8}, every_s=5.0
        )
    assert watched.told.verdict == "compute-bound"
    assert watched.told.facts[-1].code == "time.aside"
    assert watched.told.facts[-1].fields["share"] == pytest.approx(5 / 9, abs=0.1)


def test_a_paused_run_is_not_looked_at(watched: Watched) -> None:
    watched.train(20)
    before = watched.told
    watched.run.pulse(Pulse(step=40, paused=True, paused_left_s=3600.0), watched.now / SECOND)
    watched.node.rows((pack(f"run/{RUN}", [(watched.now + 1, 99, PLAIN)]),))
    for _ in range(30):
        watched.now += SECOND
        watched.run.pulse(Pulse(step=40, paused=True, paused_left_s=3600.0), watched.now / SECOND)
        watched.node.rows((pack(f"gpu/{GPU.uuid}", [(watched.now, -1, PRODUCT)]),))
        watched.diagnosing.tend()
    assert watched.told is before


def test_iterations_longer_than_the_window(watched: Watched) -> None:
    watched.train(900, PRODUCT, {"iteration_s": 60.0, "phase/update": 59.0}, every_s=60.0)
    assert watched.told.verdict == "compute-bound"
    assert watched.told.seconds == 180
    assert watched.told.confidence >= 0.9


def test_iterations_of_a_millisecond(watched: Watched) -> None:
    watched.train(12, EAGER, {"iteration_s": 0.001, "phase/update": 0.001}, every_s=0.001)
    assert watched.told.verdict == "launch-bound"
    assert watched.told.seconds > 2 * MOST_ROWS / 1000


def test_the_first_iterations_do_not_count(watched: Watched) -> None:
    watched.train(SETTLED_NS / SECOND - 1, EAGER, PLAIN | {"iteration_s": 8.0}, every_s=8.0)
    watched.train(30, PRODUCT)
    assert watched.events == ["compute-bound"]


def test_another_epoch_and_another_daemon_begin_anew(watched: Watched) -> None:
    watched.train(30)
    watched.run.exit("exception", "killed", watched.wall())
    watched.begin("n2")
    assert watched.run.state.diagnosis is None
    watched.train(30)
    assert watched.events == ["launch-bound", "launch-bound"]
    watched.diagnosing = Diagnosing(watched.node)  # as after a daemon that was killed: its word is of then
    watched.now += int(DEFAULT.diagnose_s * SECOND)
    watched.diagnosing.tend()
    assert watched.run.state.diagnosis is None
    watched.train(30)
    assert watched.told.verdict == "launch-bound"
    assert len(watched.events) == 3


def test_a_run_without_a_gpu_of_its_own(watched: Watched) -> None:
    watched.run.own(Resolved((), said=True))
    watched.train(30, row=PLAIN | {"phase/data": 0.4})
    assert (watched.told.verdict, watched.told.confidence) == ("data-bound", 0.6)


@pytest.mark.parametrize(
    ("count", "verdict"),
    [("env_steps", "env-bound"), ("rollout/ep_rew_mean", "env-bound"), ("samples", "data-bound")],
)
def test_another_process_steps_environments_if_the_run_logs_what_these_give(
    watched: Watched, count: str, verdict: str
) -> None:
    receives = StackFrame("/usr/lib/python3.12/multiprocessing/connection.py", "Connection.recv", 249)
    watched.sampled = {(receives._replace(call="read"),): 18, **dict.fromkeys(COMPUTES, 2)}
    watched.train(30, row=PLAIN | {count: 8.0})
    assert watched.told.verdict == verdict


def test_that_nothing_is_known_is_an_event_only_after_something_was(watched: Watched) -> None:
    blind = {"busy": 100.0}
    watched.train(30, blind)
    assert watched.told.verdict == "unknown"
    assert watched.events == []
    watched.train(40)
    watched.train(60, blind)
    assert watched.events == ["launch-bound", "unknown"]


def test_others_at_work_on_its_gpu(watched: Watched) -> None:
    def someone(percent: float | None) -> tuple[GpuProcess, ...]:
        return (GpuProcess(gpu=GPU.uuid, pid=9, sm_percent=percent),)

    watched.node.set_processes(someone(80.0))
    watched.train(30)
    assert watched.told.confidence == 0.6
    assert watched.told.facts[-1] == fact("gpu.shared", gpus=[0])
    watched.node.set_processes(someone(1.0))
    watched.train(30)
    assert watched.told.confidence == 0.95


def test_a_recorded_run_gets_the_verdict_that_it_deserves() -> None:
    """PPO on an H100 while its knobs are turned: 1.6 to 32 M environment steps a second, and its kernels stay
    small."""
    with Recording.open(EXAMPLE, still=True) as recording:
        state = msgspec.json.decode(recording.recall(KNOWN_RUN) or b"", type=KnownRun).state
        facts = decode_node(recording.recall(KNOWN_NODE) or b"")
        sources = {s: concatenate(s, list(recording.rows(s))) for s in recording.sources()}
        changes = [record for record in recording.commands() if record.settled]
    there = QuietNode(state=structs.replace(state, exit_reason="", exited_wall=0.0))
    run = there.node.registry.get(state.run)
    assert run is not None
    there.node.set_hardware(HostInfo(cpus=facts.cpus), facts.gpus, None)
    diagnosing = Diagnosing(there.node)
    there.now = min(rows.times()[0] for rows in sources.values())
    end = max(rows.times()[-1] for rows in sources.values())
    diagnosing.tend()
    seen = []
    while there.now < end:
        before, there.now = there.now, there.now + SECOND
        for rows in sources.values():
            new = rows.after(before)
            there.node.rows((new.slice(0, bisect_right(new.times(), there.now)),))
        there.node.book.restore(record for record in changes if before < record.settled <= there.now)
        diagnosing.tend()
        seen.append(run.state.diagnosis)
    found = [diagnosis for diagnosis in seen if diagnosis is not None]
    assert len(found) > 150
    assert {diagnosis.verdict for diagnosis in found} == {"launch-bound"}
    assert found[-1].confidence >= 0.9
    assert sum(event.kind == "diagnosis" for event in there.node.events) == 1


TRAINS = """
import time, hoptui
run = hoptui.connect("small", stacks=False)  # it sleeps: the GPU of the test is told its load
run.gpus(["GPU-a"])
run.knob("grad_accum", 4, min=1, max=64, effect="speed")
for i in run.iterations():
    with run.phase("update"):
        time.sleep(0.05)
    run.log(samples=10)
"""


def test_from_a_training_script_to_the_command_line(gpu_node: GpuNode) -> None:
    viewer = gpu_node.start(timings={"diagnose_s": 0.2})
    gpu_node.node.spawn([sys.executable, "-c", TRAINS])
    until(lambda: any(run.diagnosis for run in gpu_node.state().runs), what="a diagnosis")
    told = json.loads(gpu_node.node.hoptui("status", "small", "--json").stdout)
    found = told["diagnosis"]
    assert found["verdict"] == "launch-bound"
    assert found["confidence"] >= 0.5
    assert found["evidence"][:2] == ["SM active 50 %", "busy 100 %"]
    assert found["facts"][0] == {"code": "gpu.sm_active", "fields": {"share": 0.5}}
    assert found["advice"][0]["knob"] == "grad_accum"
    (event,) = [e for e in told["events"] if e["kind"] == "diagnosis"]
    assert event["code"] == "diagnosis.verdict"
    assert event["fields"]["verdict"] == "launch-bound"
    assert event["fields"]["facts"][0] == found["facts"][0]
    assert "what limits it" in gpu_node.node.hoptui("status", "small").stdout
    assert viewer.run("small").diagnosis is not None


@pytest.mark.parametrize(
    ("kind", "module"), [(ObservationWindow, daemon_diagnosis), (GpuWindow, window)], ids=["run", "gpu"]
)
def test_every_field_of_a_window_is_filled(kind: type, module: ModuleType) -> None:
    """One that is left at its default would make a verdict that never comes."""
    made = (node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Call))
    calls = [node for node in made if ast.unparse(node.func) == kind.__name__]
    filled = max(({keyword.arg for keyword in call.keywords} for call in calls), key=len)
    lacking = {field.name for field in dataclasses.fields(kind)} - filled
    assert not lacking, f"fill {lacking} of {kind.__name__} in {module.__name__}"
