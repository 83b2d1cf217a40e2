"""Which thread the training thread waits for, seen in its stack samples."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import CodeType, FrameType
from typing import Any

import pytest

from hoptui.domain.stacks import Stack, other_thread_at, unpack
from hoptui.sdk import waited_thread
from hoptui.sdk.stack_sampler import StackSampler
from hoptui.sdk.waited_thread import MOST_THREADS, STILL_S, WaitedThread
from tests.conftest import until

Work = Callable[[], None]
over = threading.Event()


def count_up() -> None:
    """Run Python until the test is over."""
    while not over.is_set():
        sum(range(1000))


def count_down() -> None:
    """Run Python until the test is over, started with another function."""
    while not over.is_set():
        sum(range(1000, 0, -1))


def get_from(numbers: queue.Queue[int]) -> None:
    numbers.get()


@contextmanager
def thread(work: Callable[..., None], *args: Any) -> Iterator[threading.Thread]:
    started = threading.Thread(target=work, args=args, daemon=True)
    started.start()
    try:
        yield started
    finally:
        over.set()
        if args:
            args[0].put(0)
        started.join(10)
        assert not started.is_alive()


@contextmanager
def consumer() -> Iterator[StackSampler]:
    """Sample a thread that waits for a queue."""
    with thread(get_from, queue.Queue()) as waiting:
        ident = waiting.ident or 0
        yield StackSampler(lambda: ident, lambda: "", failed)


def failed(error: Exception) -> None:
    raise AssertionError from error


def sampled(sampler: StackSampler, wanted: Callable[[list[str]], bool]) -> Stack:
    """Sample until the functions of a stack are as wanted."""

    def look() -> Stack | None:
        sampler.sample()
        samples = sampler.take()
        stacks = unpack(samples) if samples else ()
        return next((one for one in stacks if wanted([frame.function for frame in one])), None)

    return until(look, what="such a stack")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    over.clear()
    yield
    over.set()


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_thread_runs_follows_what_waits_for_it(threads: int) -> None:
    with ExitStack() as stack:
        sampler = stack.enter_context(consumer())
        for _ in range(threads):
            stack.enter_context(thread(count_up))
        found = sampled(sampler, lambda names: "count_up" in names)
    at = other_thread_at(found)
    assert [frame.function for frame in found[:at]][-3:] == ["get_from", "Queue.get", "Condition.wait"]
    assert [frame.function for frame in found[at:]][-1] == "count_up"


def test_a_future_and_the_end_of_a_thread_are_waited_for_too() -> None:
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        future = pool.submit(count_up)
        for wait in (future.result, stack.enter_context(thread(count_up)).join):
            waiting = stack.enter_context(thread(wait))
            sampler = StackSampler(lambda ident=waiting.ident: ident or 0, lambda: "", failed)  # type: ignore[misc]
            assert other_thread_at(sampled(sampler, lambda names: names[-1] == "count_up"))


def test_what_an_event_loop_has_given_to_a_thread_follows_its_wait() -> None:
    async def train() -> None:
        await asyncio.to_thread(count_up)

    with thread(lambda: asyncio.run(train())) as waiting:
        sampler = StackSampler(lambda: waiting.ident or 0, lambda: "", failed)
        found = sampled(
            sampler,
            lambda names: names[-1] == "count_up" and any(name.endswith("Selector.select") for name in names),
        )
        at = other_thread_at(found)
        assert found[at - 1].function.endswith("Selector.select")
        over.set()


def test_of_threads_with_different_work_none_is_named() -> None:
    with consumer() as sampler, thread(count_up), thread(count_down):
        for _ in range(20):
            found = sampled(sampler, lambda names: names[-1] == "Condition.wait")
            assert other_thread_at(found) == 0


def test_a_thread_that_runs_beside_a_training_thread_is_not_in_its_stack() -> None:
    with thread(count_up) as training, thread(count_down):
        sampler = StackSampler(lambda: training.ident or 0, lambda: "", failed)
        found = sampled(sampler, lambda names: names[-1] == "count_up")
    assert other_thread_at(found) == 0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def frame_of(ident: int, name: str) -> FrameType:
    """Return the innermost frame of a thread once it is in a function."""

    def look() -> FrameType | None:
        frame = sys._current_frames()[ident]
        return frame if frame.f_code.co_name == name else None

    return until(look, what=name)


def test_a_thread_that_stays_at_one_instruction_does_not_count_beside_one_that_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(waited_thread, "time", clock)

    def nothing_waits(_: CodeType) -> bool:
        return False

    waited = WaitedThread(nothing_waits, "/nowhere/")
    release = threading.Lock()
    release.acquire()

    def read_for_ever() -> None:
        with release:
            pass

    try:
        with thread(read_for_ever) as blocked, thread(count_up) as moves:
            still = frame_of(blocked.ident or 0, "read_for_ever")
            for passed in (0.0, 1.0):
                clock.now = passed
                frame = frame_of(moves.ident or 0, "count_up")
                assert waited.find({1: still, 2: frame}) is None, "both may run"
            clock.now = STILL_S + 1
            waited._seen.pop(2)
            frame = frame_of(moves.ident or 0, "count_up")
            assert waited.find({1: still, 2: frame}) is frame
            assert waited.find({1: still}) is still, "nothing else runs"
            release.release()
    finally:
        if release.locked():
            release.release()


def test_among_many_threads_none_is_looked_for() -> None:
    with thread(count_up) as moves:
        frame = frame_of(moves.ident or 0, "count_up")
        for count in (1, MOST_THREADS, MOST_THREADS + 1):
            waited = WaitedThread(lambda _: False, "/nowhere/")
            found = waited.find(dict.fromkeys(range(count), frame))
            assert found is (frame if count <= MOST_THREADS else None)
