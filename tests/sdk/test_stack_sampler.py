"""The sampler of stacks: what it sees, in any kind of loop, and what it costs."""

from __future__ import annotations

import _thread
import asyncio
import gc
import hashlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hoptui.domain.stack_kinds import kind_of
from hoptui.domain.stacks import ENGINE, PHASE_FILE, Stack, StackFrame, StackSamples, other_thread_at, unpack
from hoptui.sdk import stack_sampler
from hoptui.sdk.code_places import LONGEST_NAME
from hoptui.sdk.gradient_thread import ENOUGH_OUTSIDE, GradientThread
from hoptui.sdk.stack_names import MOST_TAKES
from hoptui.sdk.stack_sampler import (
    AHEAD_S,
    BUDGET,
    EVERY_S,
    NAMING,
    RAREST_S,
    SPREAD_S,
    WAITING_BUDGET,
    SampleTimes,
    StackSampler,
    _Costs,
    _SwitchInterval,
)
from hoptui.sdk.thread_sleep import FUTEX, RUNNING, EngineThreads
from tests.conftest import until


def sampler_of(thread: Callable[[], int]) -> StackSampler:
    def failed(error: Exception) -> None:
        raise AssertionError from error

    return StackSampler(thread, lambda: "", failed)


def sample(sampler: StackSampler) -> None:
    """Take a sample as the sampler does, in another thread."""
    other = threading.Thread(target=sampler.sample)
    other.start()
    other.join(30)
    assert not other.is_alive()


def itself() -> Callable[[], int]:
    """Have this thread sampled."""
    ident = threading.get_ident()
    return lambda: ident


class Worker:
    """A thread that does something until it is told to stop, for the sampler to look at."""

    def __init__(self, work: Callable[[Callable[[], bool]], None]) -> None:
        self._over, self._at_work = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._main, args=(work,), daemon=True)

    def _main(self, work: Callable[[Callable[[], bool]], None]) -> None:
        self._at_work.set()
        work(self._over.is_set)

    def __enter__(self) -> int:
        self._thread.start()
        assert self._at_work.wait(10)
        assert self._thread.ident is not None
        return self._thread.ident

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)
        assert not self._thread.is_alive()


def busy(over: Callable[[], bool]) -> None:
    while not over():
        json.dumps(list(range(2000)))


def at_rest(over: Callable[[], bool]) -> None:
    until(over, what="the end")


def batches(over: Callable[[], bool]) -> Iterator[int]:
    while not over():
        yield sum(range(20_000))


def generator(over: Callable[[], bool]) -> None:
    for _ in batches(over):
        pass


def coroutine(over: Callable[[], bool]) -> None:
    async def augment() -> None:
        while not over():
            sorted(range(200_000), key=lambda x: -x)  # longer than others wait for the interpreter
            await asyncio.sleep(0)

    asyncio.run(augment())


COMPILED = compile("def inner(over):\n    while not over():\n        sum(range(20000))\n", "<made>", "exec")


def made(over: Callable[[], bool]) -> None:
    space: dict[str, Callable[..., None]] = {}
    exec(COMPILED, space)  # as torch.compile and notebooks do
    space["inner"](over)


def found(work: Callable[[Callable[[], bool]], None], wanted: Callable[[StackFrame], bool]) -> Stack:
    """Sample some work until a stack has the wanted frame. Return that stack."""
    with Worker(work) as thread:
        sampler = sampler_of(lambda: thread)

        def look() -> Stack | None:
            sampler.sample()
            samples = sampler.take()
            return next((s for s in unpack(samples) if any(map(wanted, s))), None) if samples else None

        return until(look, what="a sample")


@pytest.mark.parametrize(
    ("work", "function"),
    [
        (busy, "busy"),
        (generator, "batches"),
        (coroutine, "coroutine.<locals>.augment"),
        (made, "inner"),
    ],
)
def test_a_loop_is_seen_whatever_it_is(work: Callable[[Callable[[], bool]], None], function: str) -> None:
    stack = found(work, lambda frame: frame.function == function)
    outermost = [frame.function for frame in stack]
    assert outermost.index("Worker._main") < outermost.index(function)


def test_a_function_of_c_is_named_by_the_expression_that_calls_it() -> None:
    def ranks(over: Callable[[], bool]) -> None:
        while not over():
            sorted([*range(200_000)])

    stack = found(ranks, lambda frame: frame.call == "sorted")
    place = stack[-1]
    assert place.function.endswith("ranks")
    assert 0 <= place.column < place.end_column
    with open(__file__, "rb") as source:  # noqa: PTH123 - its lines as bytes
        line = source.read().splitlines()[place.line - 1]
    assert line[place.column : place.end_column] == b"sorted([*range(200_000)])"


def test_a_function_of_c_is_named_where_the_interpreter_has_specialized_its_call() -> None:
    """Python 3.11 then calls it in another instruction than before."""

    def packed(data: bytes) -> bytes:
        return zlib.compress(data, 1)

    def pack(over: Callable[[], bool]) -> None:
        data = random.Random(0).randbytes(100_000)
        while not over():
            packed(data)

    with Worker(pack) as thread:
        sampler, calls = sampler_of(lambda: thread), Counter[str]()

        def looked() -> bool:
            sampler.sample()
            samples = sampler.take()
            for stack, count in unpack(samples).items() if samples else ():
                if stack[-1].function.endswith("packed"):
                    calls[stack[-1].call] += count
            return calls.total() >= 20

        until(looked, what="samples")
    assert set(calls) == {"zlib.compress"}


class Collector:
    """The thresholds of the garbage collector while a stack is read, and what a script does then."""

    def __init__(self, meanwhile: tuple[int, int, int] | None = None) -> None:
        self._meanwhile = meanwhile
        self.while_read: list[int] = []

    def sample(self) -> None:
        StackSampler(self._thread, lambda: "", lambda error: None).sample()

    def _thread(self) -> int:
        self.while_read.append(gc.get_threshold()[0])
        if self._meanwhile is not None:
            gc.set_threshold(*self._meanwhile)
        return threading.get_ident()


@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(701, 11, 9)
    yield gc.get_threshold()
    gc.set_threshold(*before)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="it collects between two instructions only")
def test_no_garbage_is_collected_while_a_stack_is_read(thresholds: tuple[int, int, int]) -> None:
    collector = Collector()
    collector.sample()
    assert collector.while_read == [stack_sampler.NO_COLLECTION]
    assert gc.get_threshold() == thresholds


def test_a_threshold_that_the_script_sets_meanwhile_is_kept(thresholds: tuple[int, int, int]) -> None:
    assert thresholds != (500, 5, 5)
    Collector(meanwhile=(500, 5, 5)).sample()
    assert gc.get_threshold() == (500, 5, 5)


def test_a_child_that_is_forked_while_a_stack_is_read_collects_garbage() -> None:
    alone("""
import gc

def fork():
    child = os.fork()
    if not child:
        os._exit(gc.get_threshold() != (701, 11, 9))
    ended.append(os.waitpid(child, 0)[1])
    return main

ended = []
gc.set_threshold(701, 11, 9)
stack_sampler.StackSampler(fork, lambda: "", print).sample()
assert ended == [0]
assert gc.get_threshold() == (701, 11, 9)
""")


CRASHES = """
import threading, time
from benchmarks.stack_recording import loop
from hoptui.sdk.stack_sampler import StackSampler
step, thread, over = loop(), threading.get_ident(), threading.Event()
sampler = StackSampler(lambda: thread, lambda: "", lambda error: None)
def sample():
    while not over.wait(0.0005):
        sampler.sample()
        sampler.take()
sampling = threading.Thread(target=sample)
sampling.start()
end = time.monotonic() + 8
while time.monotonic() < end:
    step()
over.set()
sampling.join()
print("trained")
"""


@pytest.mark.guarantee("read-stack")
@pytest.mark.timeout(90)
def test_a_training_of_torch_survives_thousands_of_samples() -> None:
    """In Python 3.11 it crashed within seconds when garbage was collected while a stack was read."""
    done = subprocess.run([sys.executable, "-c", CRASHES], capture_output=True, text=True, timeout=80)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


def test_a_thread_that_does_not_exist_has_no_samples() -> None:
    sampler = sampler_of(lambda: 0)
    sampler.sample()
    assert sampler.take() is None


def test_it_samples_ten_times_a_second_and_says_what_that_costs() -> None:
    with Worker(busy) as thread:
        sampler = sampler_of(lambda: thread)
        sampler.start()
        began = time.monotonic()
        until(lambda: len(sampler._interval.chains) >= 10, what="ten samples")
        passed = time.monotonic() - began
        samples = sampler.take()
        sampler.stop()
    assert passed >= 9 * EVERY_S
    assert samples is not None
    assert 0 < samples.cost < 0.05, "a share of the time, on a busy machine"


def times_of(period_s: float, count: int) -> list[float]:
    pauses = SampleTimes(random.Random(5))
    return [*itertools.accumulate(pauses.pause_s(period_s) for _ in range(count))]


def test_there_is_one_sample_in_each_period() -> None:
    assert [int(t / EVERY_S) for t in times_of(EVERY_S, 1000)] == [*range(1000)]


@pytest.mark.parametrize("periods", [0.5, 1.0, 1.5])
def test_samples_do_not_beat_with_iterations(periods: float) -> None:
    """How often a part of an iteration is found in two seconds varies no more than by independent samples."""
    found = [t / (periods * EVERY_S) % 1 >= 0.7 for t in times_of(EVERY_S, 20_000)]
    counts = [sum(found[at : at + 20]) for at in range(0, len(found), 20)]
    assert statistics.mean(counts) == pytest.approx(6, rel=0.05)
    assert statistics.variance(counts) < 1.15 * 20 * 0.3 * 0.7


@pytest.mark.parametrize("period_s", [RAREST_S, 1.0])
def test_the_newest_sample_is_never_old(period_s: float) -> None:
    times = times_of(period_s, 1000)
    assert max(b - a for a, b in itertools.pairwise(times)) <= period_s + SPREAD_S
    assert times[-1] == pytest.approx(1000 * period_s, rel=0.01)


def test_it_samples_more_rarely_where_a_sample_is_expensive() -> None:
    def pause_s(waiting_s: float, taking_s: float) -> float:
        costs = _Costs()
        return [costs.add(waiting_s, taking_s) for _ in range(200)][-1]

    assert pause_s(0.0, 1e-6) == EVERY_S
    assert pause_s(0.0, 400e-6) == pytest.approx(400e-6 / (BUDGET - NAMING))
    assert pause_s(4e-3, 1e-6) == pytest.approx(4e-3 / WAITING_BUDGET)
    assert pause_s(1.0, 1.0) == RAREST_S


def test_at_the_start_samples_may_be_expensive_for_a_time() -> None:
    costs, taking_s = _Costs(), 400e-6
    pauses = [costs.add(0.0, taking_s) for _ in range(200)]
    often = pauses.index(taking_s / (BUDGET - NAMING))
    over_s = taking_s - EVERY_S * (BUDGET - NAMING)
    assert pauses[:often] == [EVERY_S] * often
    assert often * over_s == pytest.approx(AHEAD_S, rel=0.05)
    assert set(pauses[often:]) == {pauses[often]}, "once"


def test_a_collection_of_garbage_in_its_thread_makes_the_next_samples_no_rarer() -> None:
    costs = _Costs()
    for taking_s in (50e-6, 60e-6, 10e-3, 50e-6, 60e-6):
        assert costs.add(0.0, taking_s) == EVERY_S


@pytest.mark.parametrize(
    ("short_s", "longer_s", "rare"),
    [
        pytest.param(90e-3, 2e-3, "short", id="C code keeps the interpreter"),
        pytest.param(1e-3, 4e-3, "longer", id="it is let go of for moments"),
    ],
)
def test_the_switch_interval_that_costs_less_is_used_most(short_s: float, longer_s: float, rare: str) -> None:
    before, switch = sys.getswitchinterval(), _SwitchInterval()
    sys.setswitchinterval(5e-3)
    used: Counter[str] = Counter()
    try:
        waiting_s = short_s
        for _ in range(210):
            switch.shorten(waiting_s)
            now = "longer" if sys.getswitchinterval() > 500e-6 else "short"
            waiting_s = longer_s if now == "longer" else short_s
            used[now] += 1
    finally:
        switch.restore()
        sys.setswitchinterval(before)
    if rare == "short":
        assert used["short"] <= 20, "after each twenty with the longer one"
    else:
        assert used["longer"] <= 10, "until its cost is known"


def test_its_thread_stays_on_the_processor_of_the_sampled_one() -> None:
    """No other thread is moved, also before it has begun and after it has ended."""
    mine = os.sched_getaffinity(0)

    def on_last_processor(over: Callable[[], bool]) -> None:
        os.sched_setaffinity(0, {max(mine)})
        natives.append(threading.get_native_id())
        busy(over)

    natives: list[int] = []
    with Worker(on_last_processor) as thread:
        sampler = sampler_of(lambda: thread)
        until(lambda: natives, what="the processor")
        sampler.follow(natives[0])
        sampler.start()
        until(lambda: len(sampler._interval.chains), what="a sample")
        own = next(each for each in threading.enumerate() if each.name == "hoptui-stacks")
        sampler.follow(natives[0])
        assert os.sched_getaffinity(own.native_id or 0) == {max(mine)}
    sampler.follow(natives[0])  # that thread has ended
    sampler.stop()
    own.join(10)
    assert not own.is_alive()
    sampler.follow(threading.get_native_id())
    assert os.sched_getaffinity(0) == mine


@pytest.mark.parametrize(("work", "least", "most"), [(busy, 0.05, 1.0), (at_rest, 0.0, 0.6)])
def test_it_says_for_how_long_the_thread_had_a_processor(
    work: Callable[[Callable[[], bool]], None], least: float, most: float
) -> None:
    """Also where other processes take most of it."""
    natives: list[int] = []

    def known(over: Callable[[], bool]) -> None:
        natives.append(threading.get_native_id())
        work(over)

    def taken() -> float | None:
        until(lambda: len(sampler._interval.chains) >= 3, what="samples")
        sampler.follow(natives[0])
        found = sampler.take()
        assert found is not None
        return found.on_cpu

    with Worker(known) as thread:
        sampler = sampler_of(lambda: thread)
        sampler.start()
        until(lambda: natives, what="the thread")
        assert taken() is None, "since when is not known"
        found = taken()
        assert found is not None
        assert least <= found <= most
    until(lambda: not Path(f"/proc/self/task/{natives[0]}").exists(), what="its end")
    sampler.follow(natives[0])
    assert sampler._use.shares() == (None, None)
    sampler.stop()


def test_a_thread_that_keeps_the_interpreter_is_in_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its frames follow those of the sampled thread, where both are found at work."""
    natives: list[int] = []

    def known(over: Callable[[], bool]) -> None:
        natives.append(threading.get_native_id())
        busy(over)

    seen: list[bool] = []
    with Worker(known) as thread, Worker(generator) as other:
        sampler = sampler_of(lambda: thread)
        monkeypatch.setattr(sampler._holders, "pick", lambda threads, _: other if other in threads else None)
        monkeypatch.setattr(sampler._holders, "see", lambda *_, at_work: seen.append(at_work))
        sampler.start()
        until(lambda: natives, what="the thread")
        sampler.follow(natives[0])
        until(lambda: any(seen), what="a sample of the thread at work")
        found = until(lambda: any(map(other_thread_at, taken(sampler))), what="the other one in a sample")
    sampler.stop()
    assert found


@pytest.mark.parametrize("waits", [False, True])
def test_frames_are_read_anew_once_a_holder_is_found(monkeypatch: pytest.MonkeyPatch, *, waits: bool) -> None:
    """Until then the thread may have gone on, and the frame that it was in has no caller any more.

    If it waits now, nobody keeps the interpreter from it.
    """
    over = threading.Event()
    turns: list[threading.Event] = [threading.Event(), threading.Event()]

    def first() -> None:
        turns[0].wait(30)

    def second() -> None:
        turns[1].set()
        if waits:
            over.wait(30)
        while not over.is_set():
            sum(range(1000))

    def train(_: Callable[[], bool]) -> None:
        first()
        second()

    def pick(threads: dict[int, Any], _: object) -> int:
        turns[0].set()
        assert turns[1].wait(30)
        return other

    with Worker(train) as thread, Worker(generator) as other:
        sampler = sampler_of(lambda: thread)
        monkeypatch.setattr(sampler, "_at_work", lambda *_: True)
        monkeypatch.setattr(stack_sampler, "waits_for_thread", lambda _: False)
        monkeypatch.setattr(sampler._holders, "pick", pick)

        def found() -> Stack | None:
            sample(sampler)
            innermost = "wait" if waits else "second"
            return next((one for one in taken(sampler) if innermost in map(name_of, one)), None)

        stack = until(found, what="a sample of the second function")
        over.set()
    if waits:
        assert not other_thread_at(stack)
        return
    names = [*map(name_of, stack[: other_thread_at(stack)])]
    assert {"train", "second"} <= set(names)
    assert "first" not in names


def name_of(frame: StackFrame) -> str:
    """The name of a function without that of its class."""
    return frame.function.rpartition(".")[2]


def taken(sampler: StackSampler) -> list[Stack]:
    samples = sampler.take()
    return [] if samples is None else list(unpack(samples))


@pytest.mark.parametrize(
    ("file", "name", "call", "at_work"),
    [
        ("train.py", "step", RUNNING, True),
        ("train.py", "step", FUTEX, True),
        ("train.py", "step", 230, False),  # it sleeps, or reads a file
        ("train.py", "step", None, False),
        ("/x/torch/autograd/graph.py", ENGINE, RUNNING, True),
        ("/x/torch/autograd/graph.py", ENGINE, FUTEX, False),  # it waits for a thread of torch
        ("/x/torch/distributed/distributed_c10d.py", "all_reduce", FUTEX, False),
        ("/x/torch/cuda/streams.py", "synchronize", FUTEX, False),
        ("/usr/lib/python3.11/threading.py", "wait", FUTEX, False),
        ("/usr/lib/python3.11/selectors.py", "select", RUNNING, False),
    ],
)
def test_a_thread_may_wait_for_the_interpreter_only_where_it_calls_no_wait(
    file: str, name: str, call: int | None, *, at_work: bool
) -> None:
    module = compile(f"def {name}(): ...", file, "exec")
    code = next(each for each in module.co_consts if hasattr(each, "co_code"))
    assert sampler_of(itself())._at_work(code, call) is at_work


def test_samples_that_nobody_takes_are_counted_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_sampler, "MOST_SAMPLES", 3)
    monkeypatch.setattr(stack_sampler, "NAMING", 1e9)
    sampler = sampler_of(itself())

    def deeper(depth: int) -> None:
        sample(sampler)
        if depth:
            deeper(depth - 1)

    deeper(9)
    samples = sampler.take()
    assert samples is not None
    assert (sum(samples.counts), samples.left_out) == (3, 7)


@pytest.mark.parametrize(
    ("phase", "names"),
    [("", []), ("data", ["data"]), ("rollout/env", ["rollout", "env"]), ("a" * 400, ["a" * LONGEST_NAME])],
)
def test_the_phase_of_a_sample_is_around_its_stack(phase: str, names: list[str]) -> None:
    sampler = StackSampler(itself(), lambda: phase, print)
    sample(sampler)
    samples = sampler.take()
    assert samples is not None
    (stack,) = unpack(samples)
    outer = [frame for frame in stack if frame.file == PHASE_FILE]
    assert outer == list(stack[: len(names)]) == [StackFrame(PHASE_FILE, name, 0) for name in names]
    assert "test_the_phase_of_a_sample_is_around_its_stack" in [frame.function for frame in stack]


def test_samples_of_two_phases_are_two_stacks() -> None:
    phases = ["data", "update", "data"]
    sampler = StackSampler(itself(), phases.pop, print)
    for _ in range(3):
        sample(sampler)
    samples = sampler.take()
    assert samples is not None
    counts = {stack[0].function: count for stack, count in unpack(samples).items()}
    assert counts == {"data": 2, "update": 1}


def _engine_run_backward(work: Callable[[], object], over: Callable[[], bool]) -> None:
    """Stand for the backward pass of torch: what it calls is C code."""
    while not over():
        work()


@pytest.mark.parametrize("sleeps", [True, False])
def test_a_thread_in_a_backward_pass_sleeps_or_computes(sleeps: bool) -> None:
    data = bytes(1 << 22)

    def work(over: Callable[[], bool]) -> None:
        natives.append(threading.get_native_id())
        # both let go of the interpreter
        _engine_run_backward(partial(time.sleep, 0.2) if sleeps else partial(hashlib.sha256, data), over)

    natives: list[int] = []
    alone = [0]
    with Worker(work) as thread:
        sampler = StackSampler(lambda: thread, lambda: "", print, lambda: alone[0])
        until(lambda: natives, what="the thread")
        found: Counter[tuple[int, ...]] = Counter()

        def looked(times: int) -> bool:
            sampler.sample()
            samples = sampler.take()
            assert samples is not None
            (stack,) = unpack(samples)
            found[samples.asleep] += stack[-1].function == "_engine_run_backward"
            return found.total() >= times

        until(partial(looked, 10), what="samples")
        assert found[()] == 10
        found.clear()
        alone[0] = natives[0]
        until(partial(looked, 20), what="samples")
        sampler._sleep.close()
    assert found[int(sleeps),] > 15  # it is at work, or waits for the interpreter, between two calls


def test_whether_a_thread_sleeps_is_unknown_if_torch_has_threads_for_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(over: Callable[[], bool]) -> None:
        natives.append(threading.get_native_id())
        _engine_run_backward(partial(time.sleep, 0.05), over)

    natives: list[int] = []
    monkeypatch.setattr(EngineThreads, "look", lambda _: True)
    with Worker(work) as thread:
        sampler = StackSampler(lambda: thread, lambda: "", print, lambda: natives[0])
        until(lambda: natives, what="the thread")
        sampler.sample()
        samples = sampler.take()
        assert samples is not None
        assert samples.asleep == ()
        sampler._sleep.close()


@pytest.mark.parametrize(
    ("before", "foreign", "own", "inside"),
    [(0, 1, 0, ["hook", "slow"]), (0, 0, 1, []), (0, 2, 0, []), (0, 1, 1, ["hook", "slow"]), (1, 0, 0, [])],
)
def test_python_that_torch_calls_in_its_own_thread_is_part_of_the_backward_pass(
    before: int, foreign: int, own: int, inside: list[str]
) -> None:
    """torch starts it without `threading`. Of two such threads, none is known to be the one. One that runs
    Python before the backward pass is another one."""
    begin, over = threading.Event(), threading.Event()
    running, ended = threading.Semaphore(0), threading.Semaphore(0)

    def slow() -> None:
        running.release()
        over.wait()

    def hook() -> None:
        slow()
        ended.release()

    def work(asked: Callable[[], bool]) -> None:
        begin.wait()
        _engine_run_backward(partial(time.sleep, 0.05), asked)

    def started(count: int) -> None:
        for _ in range(count):
            _thread.start_new_thread(hook, ())
            assert running.acquire(timeout=20)

    loaders = [threading.Thread(target=hook, daemon=True) for _ in range(own)]
    with Worker(work) as thread:
        sampler = sampler_of(lambda: thread)

        def look() -> list[str] | None:
            """Take a sample, and return what is called inside of the backward pass."""
            sampler.sample()
            samples = sampler.take()
            stacks = [*map(named, unpack(samples))] if samples is not None else []
            found = next((names for names in stacks if "_engine_run_backward" in names), None)
            return None if found is None else found[found.index("_engine_run_backward") + 1 :]

        try:
            started(before)
            for _ in range(ENOUGH_OUTSIDE):
                assert look() is None
            begin.set()
            until(lambda: look() is not None, what="a sample in the backward pass")
            started(foreign)
            for loader in loaders:
                loader.start()
                assert running.acquire(timeout=20)
            seen = [look() for _ in range(20)]
        finally:
            begin.set()
            over.set()
            for _ in range(before + foreign + own):
                assert ended.acquire(timeout=20)
            for loader in loaders:
                loader.join(20)
    found = [names for names in seen if names is not None]
    assert len(found) > 10
    assert all(names[: len(inside)] == inside and bool(names) == bool(inside) for names in found)


Starts = Callable[[Callable[[Callable[[], object]], object]], int]
CALLS = compile("def apply(call):\n    call()", "/libs/site-packages/torch/autograd/function.py", "exec")


@pytest.fixture
def foreign() -> Iterator[Starts]:
    """Start threads of C code that call something and then run Python to the end of the test."""
    over, ended = threading.Event(), threading.Semaphore(0)
    begun: list[int] = []

    def spin() -> None:
        begun.append(threading.get_ident())
        while not over.is_set():
            pass
        ended.release()

    def start(call: Callable[[Callable[[], object]], object]) -> int:
        before = len(begun)
        _thread.start_new_thread(call, (spin,))
        until(lambda: len(begun) > before, what="the thread")
        return begun[-1]

    yield start
    over.set()
    for _ in begun:
        assert ended.acquire(timeout=20)


def direct(call: Callable[[], object]) -> None:
    call()


@pytest.fixture
def no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the threads that were there before: those of the tests' runner run too."""
    before, frames = set(sys._current_frames()), sys._current_frames
    monkeypatch.setattr(
        sys, "_current_frames", lambda: {one: at for one, at in frames().items() if one not in before}
    )


def functions_of_torch() -> Callable[[Callable[[], object]], object]:
    """Return a function of torch that C code calls for gradients."""
    found: dict[str, Callable[[Callable[[], object]], object]] = {}
    exec(CALLS, found)
    return found["apply"]


@pytest.mark.usefixtures("no_others")
def test_a_thread_that_torch_calls_for_gradients_is_known_at_once(foreign: Starts) -> None:
    def work(asked: Callable[[], bool]) -> None:
        _engine_run_backward(partial(time.sleep, 0.05), asked)

    with Worker(work) as thread:
        sampler = sampler_of(lambda: thread)
        foreign(functions_of_torch())

        def inside() -> list[str]:
            assert sampler.sample(), "the sampled thread waits meanwhile, so one thread runs"
            samples = sampler.take()
            stacks = [*map(named, unpack(samples))] if samples is not None else []
            found = next((names for names in stacks if "_engine_run_backward" in names), [""])
            return found[found.index("_engine_run_backward") + 1 :] if len(found) > 1 else []

        until(lambda: inside()[:2] == ["apply", "spin"], what="the thread in a sample")


@pytest.mark.usefixtures("no_others")
def test_one_other_thread_in_a_backward_pass_takes_no_turns_with_it(foreign: Starts) -> None:
    def work(asked: Callable[[], bool]) -> None:
        begun.set()
        _engine_run_backward(partial(time.sleep, 0.05), asked)

    begun = threading.Event()
    with Worker(work) as thread:
        sampler = sampler_of(lambda: thread)
        assert begun.wait(20)
        foreign(direct)
        until(sampler.sample, what="a sample in the backward pass")
        foreign(direct)
        assert not sampler.sample(), "two threads run"


@pytest.mark.usefixtures("no_others")
def test_a_thread_of_python_beside_a_backward_pass_takes_turns() -> None:
    def work(asked: Callable[[], bool]) -> None:
        _engine_run_backward(partial(time.sleep, 0.05), asked)

    def spin(asked: Callable[[], bool]) -> None:
        while not asked():
            pass

    with Worker(work) as thread, Worker(spin) as other:
        sampler = sampler_of(lambda: thread)
        until(lambda: other in sys._current_frames(), what="the other thread")
        assert not any(sampler.sample() for _ in range(ENOUGH_OUTSIDE))


def test_a_thread_of_python_leaves_its_identifier_to_that_of_torch(foreign: Starts) -> None:
    gradients = GradientThread()
    over = threading.Event()
    ended = threading.Thread(target=over.wait, daemon=True)
    ended.start()
    until(lambda: ended.ident in sys._current_frames(), what="the thread")
    torch = foreign(direct)
    frames = sys._current_frames()
    for _ in range(ENOUGH_OUTSIDE):
        gradients.see_outside({torch: frames[ended.ident or 0]})
    over.set()
    ended.join(20)
    assert gradients.pop({torch: frames[torch]}) is frames[torch]
    gradients.see_outside({torch: frames[torch]})
    assert gradients.pop({torch: frames[torch]}) is None, "it runs Python elsewhere"


def named(stack: Stack) -> list[str]:
    return [frame.function.rpartition(".")[2] for frame in stack]


def test_an_error_ends_it_and_is_reported() -> None:
    errors: list[Exception] = []

    def broken() -> int:
        raise RuntimeError("planted")

    sampler = StackSampler(broken, lambda: "", errors.append)
    sampler.start()
    until(lambda: errors, what="the error")
    assert str(errors[0]) == "planted"
    assert sampler.take() is None


def test_naming_takes_a_bounded_time_and_the_rest_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_sampler, "NAMING", 0.0)
    monkeypatch.setattr(stack_sampler, "NAMING_AHEAD_S", 0.0)
    sampler = sampler_of(itself())

    def deeper(depth: int) -> None:
        sample(sampler)
        if depth:
            deeper(depth - 1)

    deeper(4)
    sample(sampler)
    sample(sampler)
    sizes = []
    while (samples := sampler.take()) is not None:
        sizes.append(sum(samples.counts))
    assert len(sizes) >= 5, "one stack at a time"
    assert sum(sizes) == 7


def test_the_start_of_a_run_does_not_keep_its_loop_from_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_sampler, "NAMING", 0.0)
    monkeypatch.setattr(stack_sampler, "NAMING_AHEAD_S", 0.0)
    sampler = sampler_of(itself())

    def start(depth: int) -> None:
        sample(sampler)
        if depth:
            start(depth - 1)

    def loop() -> None:
        for _ in range(5):
            sample(sampler)

    def take() -> StackSamples:
        samples = sampler.take()
        assert samples is not None
        return samples

    def at_loop(frame: StackFrame) -> bool:
        return frame.function.endswith(".loop")

    start(40)
    assert take().left_out == 0
    loops, left_out = [], 0
    for _ in range(MOST_TAKES + 2):
        loop()
        samples = take()
        loops.append(sum(n for stack, n in unpack(samples).items() if any(at_loop(each) for each in stack)))
        left_out += samples.left_out
    assert loops == [5] * (MOST_TAKES + 2), "it has its name at once, and never waits again"
    assert left_out >= 41 - (MOST_TAKES + 2), "the start is too old, and counted"


COMPILER = """
def _compile(depth):
    def deeper(depth):
        if depth:
            deeper(depth - 1)
        sample(sampler)
    deeper(depth)

def elsewhere(depth):
    _compile(depth)
"""


def test_what_a_compiler_calls_is_one_stack() -> None:
    file = "/opt/env/lib/python3.12/site-packages/torch/_dynamo/convert_frame.py"
    sampler = sampler_of(itself())
    found: dict[str, Any] = {"sampler": sampler, "sample": sample}
    exec(compile(COMPILER, file, "exec"), found)
    for depth in range(10):
        found["elsewhere"](depth)
    samples = sampler.take()
    assert samples is not None
    ((stack, count),) = unpack(samples).items()
    assert count == 55
    assert [frame.function for frame in stack[-2:]] == ["elsewhere", "_compile"]
    assert (stack[-1].file, stack[-1].call) == (file, "")
    assert kind_of(stack) == "compile"


def test_names_that_no_message_can_carry_are_spelled_so_that_one_can() -> None:
    code = compile("sample(sampler)", "/home/\udce9/" + "x" * 10_000, "exec")
    sampler = sampler_of(itself())
    exec(code, {"sampler": sampler, "sample": sample})
    samples = sampler.take()
    assert samples is not None
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(samples), type=StackSamples) == samples
    assert max(map(len, samples.names)) <= LONGEST_NAME


ALONE = """
import os, sys, threading, zlib
from hoptui.domain.stacks import unpack
from hoptui.sdk import stack_sampler

stack_sampler.EVERY_S, stack_sampler.BUDGET, stack_sampler.WAITING_BUDGET = 0.01, 1.0, 1.0
main = threading.get_ident()
sampler = stack_sampler.StackSampler(lambda: main, lambda: "", print)
before = sys.getswitchinterval()


def until(what):
    for _ in range(10_000_000):
        if what():
            return
    raise SystemExit("it did not happen")


def short():
    return sys.getswitchinterval() < before


def sampled(wanted):
    taken = []
    def enough():
        samples = sampler.take()
        taken.extend(samples.counts if samples is not None else ())
        return sum(taken) >= wanted
    return enough

"""
"""The start of a script whose process has no other threads, as that of these tests may have."""


def alone(script: str) -> None:
    """Run `script` in a process of its own. It fails if an `assert` of it does."""
    subprocess.run([sys.executable, "-c", ALONE + script], check=True, timeout=60)


def test_python_between_calls_that_let_go_of_the_interpreter_is_seen() -> None:
    alone("""
data = bytes(20_000)

def python():
    for _ in range(10_000):
        pass

def letting_go():
    zlib.crc32(data)

counts = {"python": 0, "letting_go": 0}
sampler.start()
for n in range(1_000_000):
    python()
    letting_go()
    if n % 1000 == 0 and (samples := sampler.take()) is not None:
        for stack, count in unpack(samples).items():
            if stack[-1].function in counts:
                counts[stack[-1].function] += count
        if sum(counts.values()) >= 100:
            break
assert 3 * counts["python"] > counts["letting_go"], counts  # none, with an interval of 5 ms
""")


def test_a_thread_that_sleeps_does_not_keep_the_switch_interval_long() -> None:
    """It is in a function of the script, and looks as if it ran."""
    alone("""
import time

def naps():
    while True:
        time.sleep(0.2)

threading.Thread(target=naps, daemon=True).start()
sampler.start()

def shortened():
    sampler.follow(threading.get_native_id())
    return short()

until(shortened)
""")


def test_the_switch_interval_is_short_while_it_samples_and_then_that_of_the_script() -> None:
    alone("""
sampler.start()
until(short)
child = os.fork()
if not child:
    os._exit(sys.getswitchinterval() != before)
assert os.waitpid(child, 0)[1] == 0, "a forked child has no sampler"
sampler.stop()
until(lambda: threading.active_count() == 1)
assert sys.getswitchinterval() == before
""")


def test_the_switch_interval_is_that_of_the_script_while_another_thread_runs_python() -> None:
    alone("""
over, work, at_work = threading.Event(), threading.Event(), threading.Event()

def other():
    work.wait()
    at_work.set()
    while not over.is_set():
        sum(range(100))

threading.Thread(target=other, daemon=True).start()
sampler.start()
until(short)
work.set()
until(at_work.is_set)
until(lambda: not short())
enough, seen = sampled(20), 0
while not enough():
    seen += short()
assert not seen
over.set()
until(short)
""")


def test_a_switch_interval_that_the_script_sets_meanwhile_is_kept() -> None:
    alone("""
sampler.start()
until(short)
sys.setswitchinterval(0.25)
own = sys.getswitchinterval()
until(sampled(3))
sampler.stop()
until(lambda: threading.active_count() == 1)
assert sys.getswitchinterval() == own
""")
