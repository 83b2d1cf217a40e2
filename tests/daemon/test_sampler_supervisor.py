"""The supervisor of samplers, with children that misbehave on purpose; time is a number."""

from __future__ import annotations

import errno
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hoptui.daemon.sampler_supervisor import START_S, UNDEAD, Sampler, SamplerProcess
from hoptui.domain.columns import pack
from hoptui.domain.devices import Devices, FromSampler, GpuInfo, HostInfo, Sample, Tenants, Watch
from hoptui.domain.facts import fact
from hoptui.node.driver_probe import DRIVER, IDLE
from tests.conftest import until
from tests.golden import Golden

FAKE = Path(__file__).with_name("fake_gpus.py")
ROOT = Path(__file__).parents[2]
SPEAKS = """
import os, sys, time
from hoptui.domain import devices
from hoptui.protocol import codec
def say(message):
    sys.stdout.buffer.write(codec.framed(message)); sys.stdout.flush()
say(devices.HostInfo(cpus=4))
say(devices.Sample(parts=()))
"""


class Bench:
    """Samplers and what they said; the clock is the real one plus `skipped`."""

    def __init__(self, plan: Path) -> None:
        self.plan_file = plan
        self.skipped = 0.0
        self.made: list[Sampler] = []
        self.said: list[FromSampler] = []

    @property
    def now(self) -> float:
        return time.monotonic() + self.skipped

    def plan(self, **fields: Any) -> None:
        """How the fake is to behave from its next tick on."""
        new = self.plan_file.with_suffix(".new")
        new.write_text(json.dumps(fields))
        new.rename(self.plan_file)

    def gpus(self) -> Sampler:
        sampler = Sampler("gpus", [sys.executable, str(FAKE), str(self.plan_file)])
        sampler.watch(Watch(hz=10.0))
        self.made.append(sampler)
        return sampler

    def host(self, script: str) -> Sampler:
        sampler = Sampler("host", [sys.executable, "-c", script])
        self.made.append(sampler)
        return sampler

    def turn(self, sampler: Sampler) -> list[FromSampler]:
        """As the daemon's loop does it; returns what was said now."""
        sampler.tend(self.now)
        said = [message for fd in sampler.fds for message in sampler.read(fd, self.now)]
        self.said += said
        return said

    def pids(self, sampler: Sampler) -> list[int]:
        return list(sampler.pids)

    def hear(self, sampler: Sampler, kind: type, good: Callable[[Any], bool] = lambda _: True) -> Any:
        """The next message of a kind."""
        return until(
            lambda: next((m for m in self.turn(sampler) if isinstance(m, kind) and good(m)), None),
            what=kind.__name__,
        )

    def skip(self, sampler: Sampler, seconds: float) -> None:
        """Time passes in which the child sends its readings as ever."""
        assert sampler._child is not None
        self.skipped += seconds
        sampler._child.heard += seconds
        self.turn(sampler)

    def hang(self, sampler: Sampler, what: int) -> None:
        """Wait until the child hangs there, and let its time run out."""
        self.plan(hang=[what])
        until(lambda: self.turn(sampler) is not None and asking(sampler) == what, what="the hang")
        self.skipped += 2.5
        self.turn(sampler)


def asking(sampler: Sampler) -> int:
    child = sampler._child
    return child.asking if child is not None else IDLE


def sources(sample: Sample) -> list[str]:
    return [part.source for part in sample.parts]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = Bench(tmp_path / "plan.json")
    yield made
    for sampler in made.made:
        sampler.close()
        for child in sampler._undead:
            child.wait(5)


def test_what_it_says_arrives(bench: Bench) -> None:
    sampler = bench.host(SPEAKS + "sys.stdin.read()")
    assert sampler.problem == fact("sampler.starting", sampler="host")
    assert bench.hear(sampler, HostInfo) == HostInfo(cpus=4)
    assert sampler.problem is None


@pytest.mark.guarantee("sampler-hangs")
def test_a_silent_child_is_killed_and_replaced(bench: Bench) -> None:
    sampler = bench.host(SPEAKS + "time.sleep(600)")
    bench.hear(sampler, Sample)
    [first] = sampler.pids
    bench.skipped += 2.5  # at 1 Hz three ticks take longer
    bench.turn(sampler)
    assert bench.pids(sampler) == [first]
    bench.skipped += 1.0
    bench.turn(sampler)
    assert sampler.problem is not None
    assert sampler.problem.code == "sampler.silent"
    assert sampler.problem.fields == {"sampler": "host", "silent_s": pytest.approx(3.5, abs=0.5)}
    assert sampler.fds == ()
    until(lambda: bench.turn(sampler) is not None and not psutil.pid_exists(first), what="its death")
    bench.skipped += 1.5
    bench.hear(sampler, HostInfo)
    assert sampler.problem is None


def test_a_slow_start_is_no_silence(bench: Bench) -> None:
    sampler = bench.host("import time; time.sleep(600)")
    bench.turn(sampler)
    pids = sampler.pids
    bench.skipped += START_S - 5
    bench.turn(sampler)
    assert sampler.pids == pids
    bench.skipped += 10
    bench.turn(sampler)
    assert bench.pids(sampler) == []


def test_a_child_that_dies_is_replaced_ever_more_slowly(bench: Bench) -> None:
    sampler = bench.host("raise SystemExit(3)")
    starts: list[float] = []
    for _ in range(3):
        while not sampler.pids:
            bench.skipped += 0.25
            sampler.tend(bench.now)
        starts.append(bench.now)
        process = psutil.Process(sampler.pids[0])
        until(lambda p=process: p.status() == "zombie", what="its end")  # type: ignore[misc]
        sampler.tend(bench.now)
    assert sampler.problem == fact("sampler.ended", sampler="host", exit_code=3)
    gaps = [b - a for a, b in itertools.pairwise(starts)]
    assert gaps[1] > gaps[0]


COMPLAINS = """
import sys
print("GPU 0: sm_clock_mhz cannot be read", file=sys.stderr, flush=True)
"""


def test_what_it_complains_of_is_in_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture, golden: Golden
) -> None:
    sampler = bench.host(
        SPEAKS + COMPLAINS + "sys.stderr.write('half'); sys.stderr.flush(); sys.stdin.read()"
    )

    def heard() -> bool:
        bench.turn(sampler)
        return bool(caplog.messages)

    until(heard, what="the complaint")
    golden("".join(f"{line}\n" for line in caplog.messages))
    assert bench.pids(sampler)  # which is no fault


def test_why_it_died_is_in_the_log(bench: Bench, caplog: pytest.LogCaptureFixture, golden: Golden) -> None:
    sampler = bench.host("raise RuntimeError('no such library')")
    died = fact("sampler.ended", sampler="host", exit_code=1)
    until(lambda: bench.turn(sampler) is not None and sampler.problem == died, what="its end")
    said = [line for line in caplog.messages if "Traceback" in line or "Error" in line or died.code in line]
    golden("".join(f"{line}\n" for line in sorted(said)))


def test_a_flood_of_complaints_does_not_keep_it(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    flood = "sys.stderr.write('x' * 100_000 + 'y\\n' * 100_000); sys.stderr.flush()\n"
    sampler = bench.host(SPEAKS + flood + SPEAKS)
    bench.hear(sampler, HostInfo)
    bench.hear(sampler, HostInfo)
    assert max(map(len, caplog.messages)) < 1000
    assert len(caplog.messages) < 2000
    assert any(message.endswith(" lines more") for message in caplog.messages)


def test_the_end_of_the_pipe_is_its_end(bench: Bench) -> None:
    sampler = bench.host(SPEAKS + "os.close(1); time.sleep(600)")
    bench.hear(sampler, Sample)
    until(lambda: bench.turn(sampler) is not None and not sampler.pids, what="its end")
    assert sampler.problem == fact("sampler.closed", sampler="host")


def test_nonsense_on_the_pipe_ends_the_child(bench: Bench) -> None:
    sampler = bench.gpus()
    bench.hear(sampler, Sample)
    bench.plan(nonsense=True)
    until(lambda: bench.turn(sampler) is not None and sampler.problem is not None, what="the nonsense")
    assert sampler.problem is not None
    assert sampler.problem.code == "sampler.bad_message"
    assert bench.pids(sampler) == []
    assert sampler.left == ()


def test_no_such_program(bench: Bench) -> None:
    sampler = Sampler("gpus", ["/nonexistent/sampler"])
    sampler.tend(bench.now)
    assert sampler.problem == fact("sampler.not_started", sampler="gpus", error=os.strerror(errno.ENOENT))


def test_closing_leaves_no_process(bench: Bench) -> None:
    sampler = bench.host("import time; time.sleep(600)")
    sampler.tend(bench.now)
    [pid] = sampler.pids
    sampler.close()
    assert not psutil.pid_exists(pid)


@pytest.mark.guarantee("sampler-hangs")
def test_a_gpu_that_hangs_is_left_alone_and_the_others_go_on(bench: Bench) -> None:
    sampler = bench.gpus()
    assert sources(bench.hear(sampler, Sample)) == ["gpu/GPU-a", "gpu/GPU-b"]
    [first] = sampler.pids
    bench.hang(sampler, 1)
    assert sampler.left == (1,)
    assert sampler.problem is not None
    assert (sampler.problem.code, sampler.problem.fields["gpu"]) == ("sampler.gpu_hung", 1)
    bench.said = []
    assert sources(bench.hear(sampler, Sample)) == ["gpu/GPU-a"]
    assert first not in sampler.pids
    assert sampler.problem == fact("sampler.gpus_left", gpus=[1])
    # The list that the new child has before it asked the driver is not passed on: no GPU vanishes for a
    # moment.
    assert [len(m.gpus) for m in bench.said if isinstance(m, Devices)] == [1]


def test_it_is_tried_again_beside_the_others(bench: Bench) -> None:
    sampler = bench.gpus()
    bench.hear(sampler, Sample)
    bench.hang(sampler, 1)
    bench.hear(sampler, Sample)
    [reading] = sampler.pids
    bench.skip(sampler, 61)
    assert len(sampler.pids) == 2
    for _ in range(3):
        assert sources(bench.hear(sampler, Sample)) == ["gpu/GPU-a"]
    trial = sampler._trial
    assert trial is not None
    until(lambda: bench.turn(sampler) is not None and trial.asking == 1, what="the second hang")
    bench.skip(sampler, START_S + 1)
    assert bench.pids(sampler) == [reading]
    assert sampler.suspects.pause_s(1) == 120.0
    bench.plan()
    until(lambda: bench.turn(sampler) is not None and not sampler._undead, what="the trial's death")
    bench.skip(sampler, 121)
    both = bench.hear(sampler, Sample, lambda sample: len(sample.parts) == 2)
    assert sources(both) == ["gpu/GPU-a", "gpu/GPU-b"]
    assert sampler.left == ()
    assert sampler.problem is None
    assert reading not in sampler.pids


def test_the_driver_as_a_whole_is_asked_ever_more_rarely(bench: Bench) -> None:
    sampler = bench.gpus()
    bench.hear(sampler, Sample)
    child = sampler._child
    assert child is not None
    assert child._probe is not None
    os.pwrite(child._probe.fd, DRIVER.to_bytes(8, "little", signed=True), 0)
    bench.skipped += 60.0
    sampler.tend(bench.now)
    assert sampler.problem == fact("sampler.driver_hung", again_s=60.0)
    assert list(sampler.left) == [DRIVER]
    bench.skipped += 30.0
    bench.turn(sampler)
    assert bench.pids(sampler) == []
    bench.skipped += 31.0
    assert len(bench.hear(sampler, Sample).parts) == 2
    assert sampler.left == ()
    assert sampler.problem is None


class Undead(SamplerProcess):
    """A child in uninterruptible sleep: no signal ends it."""

    made: list[Undead] = []

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.made.append(self)

    @property
    def status(self) -> int | None:
        return None

    def wait(self, seconds: float) -> bool:
        return False


def test_what_cannot_be_killed_is_never_waited_for_and_not_multiplied(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hoptui.daemon.sampler_supervisor.SamplerProcess", Undead)
    monkeypatch.setattr("hoptui.daemon.sampler_supervisor.CLOSE_S", 0.0)
    sampler = bench.gpus()
    bench.hear(sampler, Sample)
    bench.hang(sampler, 0)
    bench.hear(sampler, Sample)
    bench.skip(sampler, 400)  # the one that hung still lives: GPU 0 is not tried again
    assert len(sampler.pids) == 1
    for _ in range(UNDEAD - 1):
        child = sampler._child
        assert child is not None
        child.heard -= 100
        begun = time.monotonic()
        sampler.tend(bench.now)
        assert time.monotonic() - begun < 0.5
        bench.skipped += 61
        sampler.tend(bench.now)
    assert bench.pids(sampler) == []
    assert sampler.problem == fact("sampler.undead", sampler="gpus", count=3)
    for one in Undead.made:
        one._process.kill()
        one._process.wait(10)


def test_the_newest_list_alone_comes_from_a_trial() -> None:
    """What a trial said before it had read every GPU is used in one piece, as one state of the node."""
    sampler = Sampler("gpus", ["/nonexistent"])
    gpus = (GpuInfo(uuid="GPU-a", index=0, name="H100"),)
    said: list[FromSampler] = [
        Devices(problem=fact("driver.not_asked")),
        Devices(gpus=gpus),
        Sample(parts=(pack("gpu/GPU-a", [(1, -1, {})]),)),
    ]

    class Trial:
        sampled = True
        backlog: list[FromSampler] = []

        def read(self, now: float) -> list[FromSampler]:
            return said

    nobody = Tenants()  # of those whom the child before had seen, unless the trial has seen them too
    assert sampler._read_trial(Trial(), 0.0) == [nobody, *said[1:]]  # type: ignore[arg-type]
