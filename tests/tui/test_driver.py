"""The thread that reads keys: it sleeps while nothing is typed, and neither a key nor the end is late for
it."""

from __future__ import annotations

import asyncio
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
    """The thread on a pseudo-terminal, without an app; `waits` are for how long it was ready to sleep, in
    milliseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keyboard, terminal = os.openpty()
        tty.setraw(terminal)
        self.said: queue.Queue[Any] = queue.Queue()
        self.waits: list[int | None] = []
        self.taken = threading.Event()  # whether the app takes what it is given
        self.taken.set()
        self.loop = asyncio.new_event_loop()
        self.app = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.app.start()
        monkeypatch.setattr(module, "taken", self._taken)
        monkeypatch.setattr(module, "select", SimpleNamespace(poll=self._poll, POLLIN=select.POLLIN))
        made: Any = TerminalDriver.__new__(TerminalDriver)
        self.driver: Any = made
        made.fileno, made._debug = terminal, False
        made.exit_event, made._ending = threading.Event(), os.pipe()
        made.process_message = self.said.put
        made._app, made._loop = None, self.loop
        self.thread = threading.Thread(target=self.driver.run_input_thread, daemon=True)
        self.thread.start()

    def _poll(self) -> Any:
        real = select.poll()

        def poll(timeout: int | None) -> list[tuple[int, int]]:
            self.waits.append(timeout)
            return real.poll(timeout)

        return SimpleNamespace(register=real.register, poll=poll)

    async def _taken(self, app: None) -> None:
        while not self.taken.is_set():
            await asyncio.sleep(0.001)

    def type(self, keys: bytes) -> str:
        os.write(self.keyboard, keys)
        key: str = self.said.get(timeout=DEADLINE_S).key
        return key

    def end(self) -> None:
        os.write(self.driver._ending[1], b"!")
        self.driver.exit_event.set()
        self.thread.join(DEADLINE_S)

    def close(self) -> None:
        self.end()
        self.taken.set()
        asyncio.run_coroutine_threadsafe(self.loop.shutdown_asyncgens(), self.loop).result(DEADLINE_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.app.join(DEADLINE_S)
        self.loop.close()


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    made = Reader(monkeypatch)
    yield made
    made.close()
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


def test_a_key_waits_until_the_app_has_done_with_the_one_before(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 1000.0)
    reader.taken.clear()
    assert reader.type(b"16\r") == "1"
    with pytest.raises(queue.Empty):
        reader.said.get(timeout=0.05)
    reader.taken.set()
    assert [reader.said.get(timeout=DEADLINE_S).key for _ in range(2)] == ["6", "enter"]


def test_it_does_not_wait_for_ever(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    reader.taken.clear()
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    assert reader.type(b"16") == "1"
    assert reader.said.get(timeout=DEADLINE_S).key == "6"


def test_it_does_not_wait_at_the_end(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    reader.taken.clear()
    monkeypatch.setattr(module, "PATIENCE_S", 1000.0)
    reader.type(b"7")
    reader.end()
    assert not reader.thread.is_alive()
