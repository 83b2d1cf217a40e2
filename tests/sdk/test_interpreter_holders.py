"""Which threads keep the interpreter while the training thread needs it, by the CPU times of all of them."""

from __future__ import annotations

import math
import random
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from hoptui.sdk import interpreter_holders, thread_use
from hoptui.sdk.interpreter_holders import (
    FEW_SAMPLES,
    HELD_S,
    LONGEST_S,
    MOST_THREADS,
    InterpreterHolders,
    ProcessorTimes,
)
from hoptui.sdk.thread_sleep import FUTEX, RUNNING, ThreadCall
from hoptui.sdk.thread_use import UNKNOWN, ThreadUse
from tests.conftest import until

ONE, OTHER = 11, 12
NATIVE = 1000
"""The number of a thread in the kernel is so much more than its identifier."""
PASSED_S = 2.0
FRAME = sys._getframe()
RESTED = ThreadUse(0.01, 0.0)
"""What the sampler has had of the processors in this time."""


class Threads:
    """Threads that have run for so long, in place of those of this process."""

    def __init__(self) -> None:
        self.ran_s: dict[int, float] = {}

    def uses(self, threads: Iterable[int]) -> dict[int, tuple[int, ThreadUse]]:
        return {one: (NATIVE + one, ThreadUse(self.ran_s[one], 0.0)) for one in threads if one in self.ran_s}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    made = Threads()
    monkeypatch.setattr(interpreter_holders, "_uses", made.uses)
    return made


def times(
    t_s: float, training: ThreadUse = RESTED, sampler: ThreadUse = RESTED, process_s: float = 0.0
) -> ProcessorTimes:
    return ProcessorTimes(t_s, training, sampler, process_s)


BEGUN = times(0.0, ThreadUse(0.0, 0.0), ThreadUse(0.0, 0.0))


def measured(
    threads: Threads,
    training: ThreadUse,
    ran_s: dict[int, float],
    *,
    late_s: float = 4e-3,
    at_work: int = 20,
    samples: int = 20,
    sampler: ThreadUse = RESTED,
    elsewhere_s: float = 0.0,
) -> InterpreterHolders:
    """Return what is found after threads have run for so many seconds, of two.

    Threads without a number have run for `elsewhere_s`.
    """
    holders = InterpreterHolders(random.Random(7))
    threads.ran_s = dict.fromkeys(ran_s, 100.0)
    holders.see(ran_s, 0.0, at_work=True)
    holders.measure(BEGUN)
    for at in range(samples):
        holders.see(ran_s, late_s, at_work=at < at_work)
    threads.ran_s = {one: 100.0 + ran for one, ran in ran_s.items()}
    process_s = training.ran_s + sampler.ran_s + sum(ran_s.values()) + elsewhere_s
    holders.measure(times(PASSED_S, training, sampler, process_s))
    return holders


def picked(
    holders: InterpreterHolders,
    threads: Iterable[int] = (ONE, OTHER),
    call: Callable[[int], int | None] = lambda _: FUTEX,
) -> dict[int | None, float]:
    """Return the share of samples in which each of these threads keeps the interpreter."""
    there = dict.fromkeys(threads, FRAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ThreadCall, "look", lambda _, native: call(native))
        found = [holders.pick(there, lambda _: False) for _ in range(1000)]
    return {one: found.count(one) / 1000 for one in {*found}}


def test_a_thread_that_ran_while_the_training_thread_did_not_keeps_the_interpreter(threads: Threads) -> None:
    shares = picked(measured(threads, ThreadUse(0.4, 0.0), {ONE: 1.6}))
    assert shares[ONE] == pytest.approx(0.8, abs=0.05)
    assert shares[None] == pytest.approx(0.2, abs=0.05)


def test_threads_keep_it_in_proportion_to_their_time(threads: Threads) -> None:
    shares = picked(measured(threads, ThreadUse(0.0, 0.0), {ONE: 1.5, OTHER: 0.5}))
    assert shares[ONE] == pytest.approx(0.75, abs=0.05)
    assert shares[OTHER] == pytest.approx(0.25, abs=0.05)


def test_it_is_kept_no_longer_than_other_threads_ran(threads: Threads) -> None:
    assert picked(measured(threads, ThreadUse(0.2, 0.0), {ONE: 0.6}))[ONE] == pytest.approx(0.3, abs=0.05)


def test_a_wait_for_a_processor_is_no_wait_for_the_interpreter(threads: Threads) -> None:
    shares = picked(measured(threads, ThreadUse(0.4, 0.8), {ONE: 1.6}))
    assert shares[ONE] == pytest.approx(0.4, abs=0.05)


def test_threads_that_begin_and_end_have_the_rest_of_the_time(threads: Threads) -> None:
    """A timer starts a new one each time."""
    shares = picked(measured(threads, ThreadUse(0.1, 0.0), {ONE: 0.0}, elsewhere_s=1.8))
    assert shares[OTHER] == pytest.approx(0.9, abs=0.05)
    assert ONE not in shares, "it is blocked in C code"


def test_a_thread_with_the_identifier_of_one_that_has_ended_is_another_one(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has just begun, and what it had so far says nothing."""
    holders = InterpreterHolders(random.Random(7))
    for native, ran_s, now in ((21, 0.5, BEGUN), (22, 0.01, times(PASSED_S, RESTED, RESTED, 1.92))):
        for _ in range(FEW_SAMPLES):
            holders.see((ONE,), 4e-3, at_work=True)
        use = {ONE: (native, ThreadUse(ran_s, 0.0))}
        monkeypatch.setattr(interpreter_holders, "_uses", lambda _, use=use: use)
        holders.measure(now)
    assert picked(holders, (ONE,))[ONE] == pytest.approx(0.95, abs=0.05)


def test_the_thread_that_had_it_waits_for_it_while_a_sample_is_taken(threads: Threads) -> None:
    """Another one is in C code, sleeps, or is unknown."""
    holders = measured(threads, ThreadUse(0.0, 0.0), {ONE: 1.0, OTHER: 1.0})
    for call in (RUNNING, 230, None):
        states = {NATIVE + ONE: FUTEX, NATIVE + OTHER: call}
        assert picked(holders, call=states.get).keys() <= {ONE, None}
    asleep = {NATIVE + ONE: 230, NATIVE + OTHER: RUNNING}
    assert picked(holders, call=asleep.get).keys() <= {OTHER, None}, "it is on its way to wait"
    assert picked(holders, call=lambda _: 230) == {None: 1.0}
    assert ONE in picked(holders, (ONE,), call=lambda _: 230), "there is no other one, so it is not asked"


def test_files_of_threads_are_closed() -> None:
    before = set(Path("/proc/self/fd").iterdir())
    holders = InterpreterHolders(random.Random(7))
    holders._natives = dict.fromkeys(range(3), threading.get_native_id())
    assert {holders._call(one) for one in range(3)}.isdisjoint((None, FUTEX)), "it reads its own state"
    assert len(set(Path("/proc/self/fd").iterdir()) - before) == 1
    assert holders._call(4) == FUTEX, "it is not known"
    holders.close()
    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_a_thread_that_has_ended_or_waits_is_not_picked(threads: Threads) -> None:
    holders = measured(threads, ThreadUse(0.0, 0.0), {ONE: 1.9})
    assert picked(holders, (OTHER,)) == {None: 1.0}
    assert {holders.pick({ONE: FRAME}, lambda _: True) for _ in range(100)} == {None}


@pytest.mark.parametrize(
    ("training", "late_s", "at_work", "sampler"),
    [
        pytest.param(ThreadUse(1.9, 0.0), 4e-3, 20, RESTED, id="the training thread ran"),
        pytest.param(ThreadUse(0.1, 1.8), 4e-3, 20, RESTED, id="other processes have the processors"),
        pytest.param(ThreadUse(0.1, 0.0), 0.9 * HELD_S, 20, RESTED, id="the sampler need not wait"),
        pytest.param(ThreadUse(0.1, 0.0), 4e-3, 20, ThreadUse(0.0, 0.08), id="it waits for a processor"),
        pytest.param(ThreadUse(0.1, 0.0), 4e-3, 2, RESTED, id="the training thread waits"),
        pytest.param(UNKNOWN, 4e-3, 20, RESTED, id="the training thread is unknown"),
        pytest.param(ThreadUse(0.1, math.nan), 4e-3, 20, RESTED, id="its queue is unknown"),
        pytest.param(ThreadUse(0.1, 0.0), 4e-3, 20, UNKNOWN, id="the sampler is unknown"),
    ],
)
def test_nothing_is_found_without_all_signs(
    threads: Threads, training: ThreadUse, late_s: float, at_work: int, sampler: ThreadUse
) -> None:
    found = measured(threads, training, {ONE: 1.9}, late_s=late_s, at_work=at_work, sampler=sampler)
    assert picked(found) == {None: 1.0}


def test_threads_that_used_no_time_keep_nothing(threads: Threads) -> None:
    """They look as if they ran: they are blocked in C code."""
    assert picked(measured(threads, ThreadUse(0.1, 0.0), {ONE: 0.0})) == {None: 1.0}


def test_a_thread_is_idle_that_has_hardly_run_lately(threads: Threads) -> None:
    holders = measured(threads, ThreadUse(1.9, 0.0), {ONE: 0.001, OTHER: 0.02})
    assert holders.idle(ONE)
    assert not holders.idle(OTHER)
    assert not holders.idle(13), "nothing is known of it"
    for _ in range(FEW_SAMPLES):
        holders.see((ONE, OTHER), 0.0, at_work=True)
    threads.ran_s[ONE] += 0.5
    holders.measure(times(2 * PASSED_S, ThreadUse(3.0, 0.0), ThreadUse(0.02, 0.0), 4.0))
    assert not holders.idle(ONE), "it runs now"


def test_where_samples_are_rare_the_time_goes_on(threads: Threads) -> None:
    """C code of a thread keeps the interpreter for long, so the sampler rarely gets it."""
    holders = InterpreterHolders(random.Random(7))
    threads.ran_s = {ONE: 0.0}
    holders.see((ONE,), 0.0, at_work=True)
    holders.measure(BEGUN)
    for second in range(1, 2 * FEW_SAMPLES + 1):
        holders.see((ONE,), 0.6, at_work=True)
        threads.ran_s = {ONE: 0.95 * second}
        holders.measure(times(second, ThreadUse(0.01 * second, 0.0), RESTED, 0.96 * second))
        assert (None not in picked(holders) or picked(holders)[None] < 0.2) == (second >= FEW_SAMPLES)


def test_what_was_known_is_dropped_once_it_is_old(threads: Threads) -> None:
    holders = measured(threads, ThreadUse(0.4, 0.0), {ONE: 1.6})
    holders.measure(times(PASSED_S + LONGEST_S, ThreadUse(0.4, 0.0), RESTED, 2.0))
    assert ONE in picked(holders)
    holders.measure(times(PASSED_S + LONGEST_S + 1, ThreadUse(0.4, 0.0), RESTED, 2.0))
    assert picked(holders) == {None: 1.0}


def test_another_training_thread_begins_anew(threads: Threads) -> None:
    holders = measured(threads, ThreadUse(0.4, 0.0), {ONE: 1.6})
    holders.measure(times(2 * PASSED_S, ThreadUse(0.1, 0.0), RESTED, 2.0))
    assert picked(holders) == {None: 1.0}


def test_samples_may_be_taken_while_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are taken in another thread."""
    holders = InterpreterHolders(random.Random(7))
    asked: list[int] = []

    def uses(threads: Iterable[int]) -> dict[int, tuple[int, ThreadUse]]:
        for one in threads:
            holders.see((100 + len(asked),), 0.0, at_work=True)
            asked.append(one)
        return {}

    monkeypatch.setattr(interpreter_holders, "_uses", uses)
    for t_s in (0.0, 1.0, 2.0):
        for _ in range(FEW_SAMPLES):
            holders.see((ONE, OTHER), 4e-3, at_work=True)
        holders.measure(times(t_s, ThreadUse(0.0, 0.0), ThreadUse(0.0, 0.0), t_s))
    assert {ONE, OTHER} <= set(asked)


def test_no_more_than_some_threads_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def uses(threads: Iterable[int]) -> dict[int, tuple[int, ThreadUse]]:
        asked.extend(threads)
        return {}

    monkeypatch.setattr(interpreter_holders, "_uses", uses)
    holders = InterpreterHolders(random.Random(7))
    for one in range(5 * MOST_THREADS):
        holders.see((one,), 0.0, at_work=True)
    holders.measure(BEGUN)
    assert len(asked) == MOST_THREADS


def test_the_kernel_says_how_long_a_thread_ran() -> None:
    over = threading.Event()

    def spin() -> None:
        while not over.is_set():
            sum(range(1000))

    spins = threading.Thread(target=spin, daemon=True)
    spins.start()
    try:
        number, ident = spins.native_id or 0, spins.ident or 0
        until(lambda: thread_use.thread_use(number).ran_s > 0.02, what="CPU time")
        found = interpreter_holders._uses([ident, 1])
        assert found.keys() == {ident}
        assert found[ident][0] == number
        assert found[ident][1].ran_s > 0.02
    finally:
        over.set()
        spins.join(10)
    until(lambda: thread_use.thread_use(number) is UNKNOWN, what="its end")


def test_a_share_is_at_most_the_whole_and_unknown_stays_unknown() -> None:
    before, now = ThreadUse(1.0, math.nan), ThreadUse(3.1, 2.0)
    ran, queued = now.since(before).share(2.0)
    assert ran == 1.0
    assert math.isnan(queued)
    assert before.since(now).share(2.0).ran_s == 0.0
