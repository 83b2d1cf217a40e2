"""The sampler's watchdog, with children that behave badly on purpose."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from hoptui.daemon.sampler import Sampler
from hoptui.wire.messages import Devices, Watch
from tests.conftest import until

SPEAKS = """
import sys, time
from hoptui.wire import codec, messages
sys.stdout.buffer.write(codec.framed(messages.Devices(reason="none here"))); sys.stdout.flush()
"""


def child(script: str) -> Sampler:
    return Sampler([sys.executable, "-c", script])


@pytest.fixture
def samplers() -> Iterator[list[Sampler]]:
    made: list[Sampler] = []
    yield made
    for sampler in made:
        sampler.close()


def heard(sampler: Sampler) -> bool:
    return any(isinstance(m, Devices) for m in sampler.read(time.monotonic()))


def test_what_it_says_arrives(samplers: list[Sampler]) -> None:
    sampler = child(SPEAKS + "sys.stdin.read()")
    samplers.append(sampler)
    assert sampler.problem
    assert sampler.tend(time.monotonic())
    until(lambda: heard(sampler), what="Devices")
    assert sampler.problem == ""


def test_a_silent_child_is_killed_and_replaced(samplers: list[Sampler]) -> None:
    sampler = child(SPEAKS + "time.sleep(600)")  # as if a driver call never returned
    samplers.append(sampler)
    now = time.monotonic()
    sampler.tend(now)
    until(lambda: heard(sampler), what="Devices")
    first = sampler.pid
    assert first is not None
    sampler.watch(Watch(hz=10.0))
    assert not sampler.tend(time.monotonic() + 1.0)  # not yet
    later = time.monotonic() + 2.5
    assert sampler.tend(later)
    assert "has not answered" in sampler.problem
    assert sampler.fd is None
    until(
        lambda: not psutil.pid_exists(first) or psutil.Process(first).status() == "zombie", what="its death"
    )
    assert sampler.tend(later + 1.5)
    assert sampler.pid not in (None, first)
    until(lambda: heard(sampler), what="the next child")


def test_a_child_that_dies_is_replaced_ever_more_slowly(samplers: list[Sampler]) -> None:
    sampler = child("raise SystemExit(3)")
    samplers.append(sampler)
    now, starts = time.monotonic(), []
    for _ in range(3):
        while not (sampler.pid is None and sampler.tend(now)):
            now += 0.25
            if sampler.pid is not None:
                process = psutil.Process(sampler.pid)
                until(lambda p=process: p.status() == "zombie", what="its end")  # type: ignore[misc]
                sampler.tend(now)
        starts.append(now)
    assert "exit code 3" in sampler.problem
    gaps = [b - a for a, b in itertools.pairwise(starts)]
    assert gaps[1] > gaps[0]


def test_nonsense_on_the_pipe_ends_the_child(samplers: list[Sampler]) -> None:
    sampler = child(
        "import sys, time; sys.stdout.buffer.write(b'\\xff' * 64); sys.stdout.flush(); time.sleep(600)"
    )
    samplers.append(sampler)
    sampler.tend(time.monotonic())
    until(lambda: not heard(sampler) and "nonsense" in sampler.problem, what="the nonsense")
    assert sampler.pid is None


def test_no_such_program(samplers: list[Sampler]) -> None:
    sampler = Sampler(["/nonexistent/sampler"])
    samplers.append(sampler)
    assert not sampler.tend(time.monotonic())
    assert "could not be started" in sampler.problem


def test_closing_leaves_no_process() -> None:
    sampler = child("import time; time.sleep(600)")
    sampler.tend(time.monotonic())
    pid = sampler.pid
    assert pid is not None
    sampler.close()
    assert not psutil.pid_exists(pid)
