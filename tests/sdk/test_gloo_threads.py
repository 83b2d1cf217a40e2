"""A process exits only when the threads of Gloo hold no tensor any more."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hoptui.sdk import gloo_threads
from tests.conftest import TestNode, until

LIMIT_S = 60.0
DATA = bytes(1 << 20)
EXIT = """
import os, threading, time, zlib
import hoptui
from hoptui.sdk import gloo_threads
run = hoptui.connect("late")
data, ready, over = bytes(1 << 20), threading.Event(), threading.Event()
def free():
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as name:
        name.write(gloo_threads.NAME)
    ready.set()
    over.wait()
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        zlib.crc32(data)
    os.write(1, b"freed")
    time.sleep(60)
threading.Thread(target=free, daemon=True).start()
ready.wait()
run.close()
over.set()
"""


@contextmanager
def thread_of_gloo(busy: threading.Event) -> Iterator[threading.Event]:
    """A thread with the name of those of Gloo, which computes while `busy` is set.

    Yields the event that it sets when it goes to sleep.
    """
    ready, asleep, end = threading.Event(), threading.Event(), threading.Event()

    def main() -> None:
        comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        comm.write_text(gloo_threads.NAME)
        ready.set()
        while busy.is_set():
            zlib.crc32(DATA)
        asleep.set()
        end.wait(LIMIT_S)

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    assert ready.wait(LIMIT_S)
    try:
        yield asleep
    finally:
        busy.clear()
        end.set()
        thread.join(LIMIT_S)


def test_a_thread_that_runs_is_waited_for() -> None:
    busy = threading.Event()
    busy.set()
    with thread_of_gloo(busy) as asleep:
        later = threading.Timer(0.1, busy.clear)
        later.start()
        assert gloo_threads.wait_until_idle(LIMIT_S)
        assert asleep.is_set()
        later.join()


def test_the_wait_has_a_limit() -> None:
    busy = threading.Event()
    busy.set()
    with thread_of_gloo(busy) as asleep:
        assert not gloo_threads.wait_until_idle(0.05)
        assert not asleep.is_set()


def test_threads_that_sleep_are_not_waited_for() -> None:
    until(
        lambda: not gloo_threads._threads(), what="the end of the threads of other tests, for the kernel too"
    )
    assert gloo_threads.wait_until_idle(0.0)
    with thread_of_gloo(threading.Event()) as asleep:
        assert asleep.wait(LIMIT_S)
        assert gloo_threads.wait_until_idle(LIMIT_S)


@pytest.mark.guarantee("exit-beside-gloo")
def test_a_run_ends_after_the_thread_has_freed_its_tensor(node: TestNode) -> None:
    node.daemon()
    ended = node.start(EXIT)
    assert ended.communicate(timeout=LIMIT_S)[0] == "freed"
    assert ended.returncode == 0
