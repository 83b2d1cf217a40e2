"""Whether a thread sleeps, and whether torch computes gradients in threads of its own."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hoptui.sdk import thread_sleep
from hoptui.sdk.thread_sleep import FUTEX, RUNNING, EngineThreads, ThreadCall, ThreadSleep
from tests.conftest import until


@contextmanager
def thread(work: Callable[[threading.Event], object]) -> Iterator[int]:
    """A thread at work until the end of the block, as the kernel numbers it."""
    over = threading.Event()
    worker = threading.Thread(target=work, args=(over,), daemon=True)
    worker.start()
    until(lambda: worker.native_id, what="the thread")
    try:
        yield worker.native_id or 0
    finally:
        over.set()
        worker.join(10)
        assert not worker.is_alive()


def spin(over: threading.Event) -> None:
    while not over.is_set():
        sum(range(10_000))


@pytest.fixture
def sleep() -> Iterator[ThreadSleep]:
    made = ThreadSleep()
    yield made
    made.close()


def test_a_thread_that_waits_sleeps_and_one_that_computes_does_not(sleep: ThreadSleep) -> None:
    with thread(threading.Event.wait) as waits, thread(spin) as computes:
        until(lambda: sleep.look(waits) is True, what="a sleeping thread")
        until(lambda: sleep.look(computes) is False, what="a thread at work")


def test_a_thread_that_is_not_known_or_has_ended_is_unknown(sleep: ThreadSleep) -> None:
    assert sleep.look(0) is None
    with thread(threading.Event.wait) as ended:
        assert sleep.look(ended) is not None
    until(lambda: not Path(f"/proc/self/task/{ended}").exists(), what="the end of the thread")
    assert sleep.look(ended) is None
    assert sleep.look(ended + 1_000_000) is None


def test_no_file_stays_open(sleep: ThreadSleep) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    for _ in range(3):
        for number in (threading.get_native_id(), 0):
            sleep.look(number)
    sleep.close()
    sleep.close()
    assert set(Path("/proc/self/fd").iterdir()) <= before


@pytest.mark.parametrize(
    ("stat", "state"),
    [
        (b"12 (python) S 1 2", True),
        (b"12 (a) R (b) S 1", True),
        (b"12 (python) R 1 2", False),
        (b"12 (python) D 1 2", None),
        (b"", None),
    ],
)
def test_only_a_sleep_counts(
    stat: bytes, state: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleep: ThreadSleep
) -> None:
    monkeypatch.setattr(thread_sleep, "TASKS", tmp_path)
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "stat").write_bytes(stat)
    assert sleep.look(12) is state


def test_a_thread_that_waits_for_a_lock_is_in_the_call_for_it() -> None:
    call = ThreadCall()
    with thread(threading.Event.wait) as waits, thread(spin) as computes, thread(_naps) as sleeps:
        until(lambda: call.look(waits) == FUTEX, what="a thread that waits")
        until(lambda: call.look(computes) == RUNNING, what="a thread at work")
        until(lambda: call.look(sleeps) not in (None, RUNNING, FUTEX), what="a thread that sleeps")
    assert call.look(0) is None
    until(lambda: call.look(sleeps) is None, what="its end")
    call.close()


def _naps(over: threading.Event) -> None:
    """Sleep in the kernel, for no lock."""
    while not over.is_set():
        select.select([], [], [], 0.05)


def test_threads_of_the_engine_are_known_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_sleep, "TASKS", tmp_path)
    engine = EngineThreads()

    def begin(number: str, name: str) -> None:
        (tmp_path / number).mkdir()
        (tmp_path / number / "comm").write_text(f"{name}\n")

    begin("1", "python")
    (tmp_path / "2").mkdir()  # it has ended
    assert not engine.look()
    begin("3", "pt_autograd_0")
    assert engine.look()
    assert engine.look()
