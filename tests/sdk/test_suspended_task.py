"""What the task of asyncio that trains awaits, in its stack samples."""

from __future__ import annotations

import asyncio
import gc
import queue
import sys
import threading
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import hoptui
from hoptui.domain.stack_kinds import place_of
from hoptui.domain.stacks import Stack, unpack
from hoptui.sdk.stack_sampler import StackSampler
from hoptui.sdk.suspended_task import TaskRef, in_event_loop, running_task, suspended
from tests.conftest import until

MOST = 100


class Started:
    """A coroutine in an event loop of another thread, with the task that runs it."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.task: TaskRef | None = None

    async def inner(self) -> None:
        await self.over.wait()

    @types.coroutine
    def middle(self) -> Generator[Any, None, None]:
        yield from self.inner()

    async def outer(self) -> None:
        self.task = running_task()
        await self.middle()


@contextmanager
def running(work: Callable[[], Coroutine[Any, Any, None]], over: asyncio.Event) -> Iterator[threading.Thread]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(work()), daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
        assert not thread.is_alive()
        loop.close()


def names(chain: list[types.CodeType | int]) -> list[str]:
    return [code.co_name for code in chain[::2] if isinstance(code, types.CodeType)]


def failed(error: Exception) -> None:
    raise AssertionError from error


def test_all_that_a_task_awaits_is_found() -> None:
    started = Started()
    with running(started.outer, started.over):

        def look() -> list[str] | None:
            found = names(suspended(started.task, MOST))
            return found if "wait" in found else None

        assert until(look, what="the task waits") == ["wait", "inner", "middle", "outer"]
        assert names(suspended(started.task, 2)) == ["middle", "outer"]
    gc.collect()
    assert suspended(started.task, MOST) == []


class Batches:
    """A task that trains on what a generator yields. The generator waits for another task."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.task: TaskRef | None = None

    async def read(self) -> None:
        await self.over.wait()

    async def batches(self) -> AsyncIterator[None]:
        await asyncio.create_task(self.read())
        yield

    async def train(self) -> None:
        self.task = running_task()
        async for _ in self.batches():
            pass


def test_asynchronous_generators_and_awaited_tasks_are_followed() -> None:
    started = Batches()
    with running(started.train, started.over):

        def look() -> list[str] | None:
            found = names(suspended(started.task, MOST))
            return found if "wait" in found else None

        assert until(look, what="the task waits") == ["wait", "read", "batches", "train"]
        assert names(suspended(started.task, 2)) == ["batches", "train"]


def test_an_object_of_the_script_is_not_asked() -> None:
    class Odd:
        def __await__(self) -> Odd:
            return self

        def __iter__(self) -> Odd:
            return self

        def __next__(self) -> None:
            return None

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    async def waits() -> None:
        odd: Awaitable[None] = Odd()
        await odd

    async def check() -> None:
        task = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        found = suspended(TaskRef(task), MOST)
        task.cancel()
        assert names(found) == ["waits"]

    asyncio.run(check())


def test_without_a_task_there_is_nothing() -> None:
    assert running_task() is None
    assert suspended(None, MOST) == []


def test_asyncio_is_not_imported_for_it() -> None:
    modules = sys.modules.copy()
    try:
        del sys.modules["asyncio"]
        assert running_task() is None
        assert "asyncio" not in sys.modules
    finally:
        sys.modules.update(modules)


def test_the_line_that_awaits_is_the_place_of_the_sample() -> None:
    started = Started()
    with running(started.outer, started.over) as thread:
        sampler = StackSampler(lambda: thread.ident or 0, lambda: "", failed, task=lambda: started.task)

        def look() -> Stack | None:
            sampler.sample()
            samples = sampler.take()
            stacks = unpack(samples) if samples else ()
            return next((one for one in stacks if any(f.function == "Started.inner" for f in one)), None)

        found = until(look, what="a sample of the task")
    place = place_of(found)
    assert place.file == __file__
    assert place.function == "Started.inner"
    assert found[-1].function.endswith("Selector.select")
    assert found[-1].call.endswith("poll")


class CompiledLoop(asyncio.SelectorEventLoop):
    """An event loop whose method that runs a task is C code, as that of uvloop is."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.run_until_complete = self.ends.get  # type: ignore[method-assign, assignment]


def test_an_event_loop_of_c_code_is_one_too() -> None:
    async def nothing() -> None:
        pass

    loop = CompiledLoop()
    work = nothing()

    def run() -> None:
        runner = asyncio.Runner(loop_factory=lambda: loop)
        runner.run(work)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:

        def inside() -> bool:
            frame = sys._current_frames().get(thread.ident or 0)
            return frame is not None and in_event_loop(frame)

        until(inside, what="the loop")
    finally:
        loop.ends.put(None)
        thread.join(10)
        asyncio.SelectorEventLoop.run_until_complete(loop, asyncio.gather(*asyncio.all_tasks(loop)))
        loop.close()
    assert not thread.is_alive()


def test_a_run_knows_the_task_that_trains() -> None:
    async def train() -> None:
        with hoptui.connect("suspended") as run:
            for _ in run.iterations(2):
                known = run._core.state.training.task
                assert known is not None
                assert known() is asyncio.current_task()

    asyncio.run(train())
    with hoptui.connect("no task") as run:
        for _ in run.iterations(2):
            assert run._core.state.training.task is None
