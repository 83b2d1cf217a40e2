"""Which threads keep the interpreter while the training thread needs it, by the CPU times of all of them."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterable

import pytest

from hoptui.sdk import interpreter_holders, thread_use
from hoptui.sdk.interpreter_holders import FEW_SAMPLES, HELD_S, MOST_THREADS, InterpreterHolders
from hoptui.sdk.thread_use import UNKNOWN, ThreadUse
from tests.conftest import until

ONE, OTHER = 11, 12
PASSED_S = 2.0
RESTED = ThreadUse(0.01, 0.0)
"""What the sampler has had of the processors."""


class Threads:
    """Threads that have run for so long, in place of those of this process."""

    def __init__(self) -> None:
        self.ran_s: dict[int, float] = {}

    def uses(self, threads: Iterable[int]) -> dict[int, ThreadUse]:
        return {one: ThreadUse(self.ran_s[one], 0.0) for one in threads if one in self.ran_s}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    made = Threads()
    monkeypatch.setattr(interpreter_holders, "_uses", made.uses)
    return made


def measured(
    threads: Threads,
    training: ThreadUse,
    ran_s: dict[int, float],
    *,
    late_s: float = 4e-3,
    at_work: int = 20,
    samples: int = 20,
    sampler: ThreadUse = RESTED,
) -> InterpreterHolders:
    """Return what is found after threads have run for so many seconds, of two."""
    holders = InterpreterHolders(random.Random(7))
    for ends in (False, True):
        for at in range(samples):
            holders.see(ran_s, late_s, at_work=at < at_work)
        threads.ran_s = {one: ends * ran for one, ran in ran_s.items()}
        holders.measure(training, sampler, PASSED_S)
    return holders


def picked(holders: InterpreterHolders, threads: Iterable[int] = (ONE, OTHER)) -> dict[int | None, float]:
    """Return the share of samples in which each thread keeps the interpreter."""
    there = set(threads)
    found = [holders.pick(there) for _ in range(1000)]
    return {one: found.count(one) / 1000 for one in {*found}}


def test_a_thread_that_ran_while_the_training_thread_did_not_keeps_the_interpreter(threads: Threads) -> None:
    shares = picked(measured(threads, ThreadUse(0.4, 0.0), {ONE: 1.6}))
    assert shares[ONE] == pytest.approx(0.8, abs=0.05)
    assert shares[None] == pytest.approx(0.2, abs=0.05)


def test_threads_keep_it_in_proportion_to_their_time(threads: Threads) -> None:
    shares = picked(measured(threads, ThreadUse(0.0, 0.0), {ONE: 1.5, OTHER: 0.5}))
    assert shares[ONE] == pytest.approx(0.75, abs=0.05)
    assert shares[OTHER] == pytest.approx(0.25, abs=0.05)


def test_it_is_kept_no_longer_than_the_threads_ran(threads: Threads) -> None:
    assert picked(measured(threads, ThreadUse(0.2, 0.0), {ONE: 0.6}))[ONE] == pytest.approx(0.3, abs=0.05)


def test_a_wait_for_a_processor_is_no_wait_for_the_interpreter(threads: Threads) -> None:
    shares = picked(measured(threads, ThreadUse(0.4, 0.8), {ONE: 1.6}))
    assert shares[ONE] == pytest.approx(0.4, abs=0.05)


def test_a_thread_that_has_ended_since_is_not_picked(threads: Threads) -> None:
    assert picked(measured(threads, ThreadUse(0.0, 0.0), {ONE: 1.9}), (OTHER,)) == {None: 1.0}


@pytest.mark.parametrize(
    ("training", "late_s", "at_work", "samples", "sampler"),
    [
        pytest.param(ThreadUse(1.9, 0.0), 4e-3, 20, 20, RESTED, id="the training thread ran"),
        pytest.param(ThreadUse(0.1, 1.8), 4e-3, 20, 20, RESTED, id="other processes have the processors"),
        pytest.param(ThreadUse(0.1, 0.0), 0.9 * HELD_S, 20, 20, RESTED, id="the sampler need not wait"),
        pytest.param(ThreadUse(0.1, 0.0), 4e-3, 20, 20, ThreadUse(0.0, 0.08), id="it waits for a processor"),
        pytest.param(ThreadUse(0.1, 0.0), 4e-3, 2, 20, RESTED, id="the training thread waits"),
        pytest.param(ThreadUse(0.1, 0.0), 4e-3, 4, FEW_SAMPLES - 1, RESTED, id="few samples"),
        pytest.param(UNKNOWN, 4e-3, 20, 20, RESTED, id="the training thread is unknown"),
        pytest.param(ThreadUse(0.1, math.nan), 4e-3, 20, 20, RESTED, id="its queue is unknown"),
        pytest.param(ThreadUse(0.1, 0.0), 4e-3, 20, 20, UNKNOWN, id="the sampler is unknown"),
    ],
)
def test_nothing_is_found_without_all_signs(
    threads: Threads, training: ThreadUse, late_s: float, at_work: int, samples: int, sampler: ThreadUse
) -> None:
    ran = {ONE: 1.9}
    found = measured(threads, training, ran, late_s=late_s, at_work=at_work, samples=samples, sampler=sampler)
    assert picked(found) == {None: 1.0}


def test_a_thread_that_used_no_time_keeps_nothing(threads: Threads) -> None:
    """It looks as if it ran: it is blocked in C code."""
    assert picked(measured(threads, ThreadUse(0.1, 0.0), {ONE: 0.0})) == {None: 1.0}


def test_what_a_thread_ran_before_it_was_seen_does_not_count(threads: Threads) -> None:
    holders = InterpreterHolders(random.Random(7))
    for _ in range(FEW_SAMPLES):
        holders.see((ONE,), 4e-3, at_work=True)
    threads.ran_s = {ONE: 1e6}
    holders.measure(ThreadUse(0.0, 0.0), RESTED, PASSED_S)
    assert picked(holders) == {None: 1.0}


def test_no_more_than_some_threads_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def uses(threads: Iterable[int]) -> dict[int, ThreadUse]:
        asked.extend(threads)
        return {}

    monkeypatch.setattr(interpreter_holders, "_uses", uses)
    holders = InterpreterHolders(random.Random(7))
    for one in range(5 * MOST_THREADS):
        holders.see((one,), 0.0, at_work=True)
    holders.measure(ThreadUse(0.0, 0.0), RESTED, PASSED_S)
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
        assert interpreter_holders._uses([ident, 1])[ident].ran_s > 0.02
        assert set(interpreter_holders._uses([ident, 1])) == {ident}
    finally:
        over.set()
        spins.join(10)
    until(lambda: thread_use.thread_use(number) is UNKNOWN, what="its end")


def test_a_share_is_at_most_the_whole_and_unknown_stays_unknown() -> None:
    before, now = ThreadUse(1.0, math.nan), ThreadUse(3.1, 2.0)
    ran, queued = now.since(before).share(2.0)
    assert ran == 1.0
    assert math.isnan(queued)
