"""Reading where the time of a recorded run went in a thread: nobody waits for it, and it always answers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hoptui.client import line_reader
from hoptui.client.line_reader import LIVE_NS, LineReader
from hoptui.domain.line_counts import FoundLines
from tests.conftest import until

PATH = Path(__file__)
LIMIT_S = 20.0


class SlowLines:
    """A recording that is read when a test lets it. It says which moment it was asked about."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[tuple[str, int]] = []
        self.go = threading.Semaphore(0)

    def around(self, t: int) -> FoundLines:
        return self._read("around", t)

    def upto(self, t: int) -> FoundLines:
        return self._read("upto", t)

    def _read(self, what: str, t: int) -> FoundLines:
        self.asked.append((what, t))
        assert self.go.acquire(timeout=LIMIT_S)
        if t == 13:
            raise ZeroDivisionError("no such luck")
        return FoundLines(detail=f"{what} {t}")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowLines:
    made = SlowLines(PATH)
    monkeypatch.setattr(line_reader, "RecordedLines", lambda path: made)
    return made


def test_the_newest_question_of_each_kind_is_answered(slow: SlowLines) -> None:
    reader, found = LineReader(), list[FoundLines]()
    for t in (1, 2, 3):
        reader.ask(PATH, t, found.append, whole=False)
        until(lambda: slow.asked, what="a reader", seconds=LIMIT_S)
        reader.ask(PATH, t, found.append, whole=True)
    slow.go.release(10)
    until(lambda: len(found) == 3, what="the answers", seconds=LIMIT_S)
    assert slow.asked == [("around", 1), ("upto", 3), ("around", 3)]
    until(lambda: not reader._reading, what="the end of the thread", seconds=LIMIT_S)


def test_a_failure_is_an_answer_and_the_next_question_is_answered(slow: SlowLines) -> None:
    reader, found = LineReader(), list[FoundLines]()
    slow.go.release(10)
    reader.ask(PATH, 13, found.append, whole=True)
    until(lambda: len(found) == 1, what="an answer", seconds=LIMIT_S)
    assert (found[0].problem, found[0].detail) == ("unreadable", "no such luck")
    reader.ask(PATH, 14, found.append, whole=True, live=True)
    until(lambda: len(found) == 2, what="another answer", seconds=LIMIT_S)
    assert found[1] == FoundLines(detail="upto 14", t0=14, t1=14 + LIVE_NS)


def test_a_recording_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    reader, found = LineReader(), list[FoundLines]()
    path = tmp_path / "none.hoptui"
    reader.ask(path, 5, found.append, whole=True)
    until(lambda: len(found) == 1, what="an answer", seconds=LIMIT_S)
    assert (found[0].problem, found[0].detail) == ("no_recording", str(path))
    assert not path.exists()
