"""The end of a run's process: seen at once, told when its last words have had their time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import zmq

from hoptui.daemon.process_watch import ProcessWatch
from hoptui.daemon.state.registry import Leaving, Registry, TrackedRun
from hoptui.protocol.messages import RunHello
from hoptui.recording.library import KnownEnding

SILENT = [("toy", "killed", "by SIGKILL")]


LAST_WORDS_S = 1.5


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield made
    made.kill()
    made.communicate(timeout=10)


class Told:
    """A watch with a run that is `child`, and what they said of it."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.ends: list[tuple[str, str, str]] = []
        self.poller = zmq.Poller()
        self.watch = ProcessWatch(self.poller, self.end, LAST_WORDS_S)
        hello = RunHello(protocol=1, run="r", name="toy", epoch=1, nonce="n", pid=child.pid, started=0)
        self.run, _ = Registry().hello(b"i", hello, 0.0)
        self.watch.watch(self.run)
        self.child = child

    def end(self, run: TrackedRun, reason: str, detail: str, *, told: bool = False) -> None:
        self.ends.append((run.state.name, reason, detail))
        run.exit(reason, detail, 0.0)

    def kill(self) -> dict[object, int]:
        """End the process; what the poller says then."""
        self.child.kill()
        ready = dict(self.poller.poll(10_000))
        assert ready
        return ready


@pytest.fixture
def told(child: subprocess.Popen[bytes]) -> Told:
    return Told(child)


def test_a_bye_that_is_read_after_the_end_explains_it(told: Told) -> None:
    told.watch.ended(told.kill(), 100.0)
    assert told.ends == []
    assert told.watch.next_deadline() == 100.0 + LAST_WORDS_S
    told.run.exit("finished", "", 0.0)  # what a Bye does
    told.watch.ended({}, 100.0 + LAST_WORDS_S)
    assert told.ends == []
    assert told.watch.next_deadline() is None


def test_an_end_without_a_word_is_told_once(told: Told) -> None:
    told.watch.ended(told.kill(), 100.0)
    told.watch.ended({}, 100.0 + LAST_WORDS_S / 2)
    assert told.ends == []
    for _ in range(2):
        told.watch.ended({}, 100.0 + LAST_WORDS_S)
        assert told.ends == SILENT


@pytest.mark.parametrize("seen", [True, False])
def test_a_hello_of_the_next_process_ends_the_one_before_at_once(told: Told, seen: bool) -> None:
    ready = told.kill()
    told.child.wait(10)
    if seen:
        told.watch.ended(ready, 100.0)
    told.watch.report_end("r")
    assert told.ends == SILENT
    told.watch.ended({}, 1e9)
    assert told.ends == SILENT


@pytest.mark.parametrize("seen", [True, False])
def test_a_hello_that_is_read_after_the_end_is_followed_by_the_last_words(told: Told, seen: bool) -> None:
    """The last rows of a run, and its goodbye, were lost if its hello was read too late."""
    ready = told.kill()
    if seen:
        told.watch.ended(ready, 100.0)
    told.child.wait(10)
    told.watch.watch(told.run, 101.0)
    told.watch.ended({} if seen else ready, 101.0)
    assert told.ends == []
    assert told.watch.next_deadline() == 101.0 + LAST_WORDS_S
    told.watch.ended({}, 101.0 + LAST_WORDS_S)
    assert [name for name, *_ in told.ends] == ["toy"]


def test_the_end_of_a_restored_run_is_told_at_once(told: Told) -> None:
    told.kill()
    told.child.wait(10)
    ProcessWatch(zmq.Poller(), told.end, LAST_WORDS_S).watch(told.run)
    assert told.ends == [("toy", "exited", "its process is gone")]


def test_a_restored_run_that_had_said_goodbye_ends_as_it_said(told: Told) -> None:
    told.kill()
    told.child.wait(10)
    said = KnownEnding(reason="stopped", detail="by SIGTERM", told=True, wall=5.0)
    told.run.leaving = Leaving(said, 10.0)
    ProcessWatch(zmq.Poller(), told.end, LAST_WORDS_S).watch(told.run)
    assert told.ends == [("toy", "stopped", "by SIGTERM")]


def test_nothing_stays_open(told: Told) -> None:
    [(number, _)] = told.poller.sockets
    told.watch.ended(told.kill(), 100.0)
    assert told.poller.sockets == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
