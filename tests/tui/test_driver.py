"""The thread that reads keys: it sleeps while nothing is typed, and neither a key nor the end is late for it."""

from __future__ import annotations

import os
import queue
import select
import threading
import time
import tty
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hoptui.tui import driver as module
from hoptui.tui.driver import LOOK_AGAIN_MS, TerminalDriver

DEADLINE_S = 10.0


def until(check: Callable[[], Any]) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not (found := check()):
        assert time.monotonic() < end, "waited in vain"
        threading.Event().wait(0.005)
    return found


class Reader:
    """The thread on a pseudo-terminal, without an app; `waits` are for how long it was ready to sleep, in milliseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keyboard, terminal = os.openpty()
        tty.setraw(terminal)
        self.said: queue.Queue[Any] = queue.Queue()
        self.waits: list[int | None] = []
        monkeypatch.setattr(module, "select", SimpleNamespace(poll=self._poll, POLLIN=select.POLLIN))
        made: Any = TerminalDriver.__new__(TerminalDriver)
        self.driver: Any = made
        made.fileno, made._debug = terminal, False
        made.exit_event, made._ending = threading.Event(), os.pipe()
        made.process_message = self.said.put
        self.thread = threading.Thread(target=self.driver.run_input_thread, daemon=True)
        self.thread.start()

    def _poll(self) -> Any:
        real = select.poll()

        def poll(timeout: int | None) -> list[tuple[int, int]]:
            self.waits.append(timeout)
            return real.poll(timeout)

        return SimpleNamespace(register=real.register, poll=poll)

    def type(self, keys: bytes) -> str:
        os.write(self.keyboard, keys)
        key: str = self.said.get(timeout=DEADLINE_S).key
        return key

    def end(self) -> None:
        os.write(self.driver._ending[1], b"!")
        self.driver.exit_event.set()
        self.thread.join(DEADLINE_S)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    made = Reader(monkeypatch)
    yield made
    made.end()
    for fd in (made.keyboard, made.driver.fileno, *made.driver._ending):
        os.close(fd)


def test_it_sleeps_until_a_key_and_again_after_it(reader: Reader) -> None:
    until(lambda: reader.waits)
    assert reader.waits == [None]
    assert reader.type(b"\r") == "enter"
    until(lambda: reader.waits[-1] is None and len(reader.waits) > 1)
    assert set(reader.waits[1:-1]) == {LOOK_AGAIN_MS}


def test_an_escape_of_which_nothing_comes_is_a_key(reader: Reader) -> None:
    assert reader.type(b"\x1b") == "escape"
    assert reader.type(b"\x1b[A\r") == "up"
    assert reader.said.get(timeout=DEADLINE_S).key == "enter"


def test_bytes_that_are_no_text_do_not_end_it(reader: Reader) -> None:
    reader.type(b"\xff")
    assert reader.type(b"\r") == "enter"


def test_it_ends_when_it_is_told(reader: Reader) -> None:
    until(lambda: reader.waits)
    reader.end()
    assert not reader.thread.is_alive()
