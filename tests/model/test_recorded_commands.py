"""Commands that only a recording knows still."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoptui.model.recorded.commands import older, recorded
from hoptui.node.addresses import addresses
from hoptui.protocol.messages import CommandRecord
from hoptui.recording import Recording


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of its own."""
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOPTUI_STATE_DIR", str(tmp_path / "state"))
    addresses()


def write(run: str, count: int) -> Path:
    path = addresses().recording(run)
    with Recording.create(path) as recording:
        for i in range(count):
            recording.command(
                CommandRecord(
                    id=f"{run}{i}", run=run, epoch=1, verb="checkpoint", t=i + 1, wall=1000.0 + i, seq=i + 1
                )
            )
        recording.flush()
    return path


def test_the_newest_of_those_that_are_not_known_come_first(tmp_path: Path) -> None:
    write("a", 10)
    found, problem = older(["a"], {"a8", "a9"}, 3)
    assert ([record.id for record in found], problem) == (["a5", "a6", "a7"], "")
    found, _ = older(["a"], {f"a{i}" for i in range(3, 10)}, 5)
    assert [record.id for record in found] == ["a0", "a1", "a2"]
    assert older(["a"], {f"a{i}" for i in range(10)}, 5) == ([], "")


def test_of_several_runs_they_are_told_in_the_order_of_time() -> None:
    write("a", 3)
    write("b", 3)
    found, _ = older(["a", "b", "gone"], set(), 4)
    assert [record.wall for record in found] == [1001.0, 1001.0, 1002.0, 1002.0]


def test_a_recording_that_cannot_be_read_is_told_and_the_others_count() -> None:
    write("a", 1)
    addresses().recording("b").write_bytes(b"not a database at all" * 100)
    found, problem = older(["b", "a"], set(), 9)
    assert [record.id for record in found] == ["a0"]
    assert str(addresses().recording("b")) in problem
    assert older(["a"], set(), 9)[1] == ""


def test_without_directories_there_is_nothing_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "never"))
    found, problem = older(["a"], set(), 9)
    assert found == []
    assert "never" in problem


def test_they_are_read_oldest_first() -> None:
    assert [record.id for record in recorded(write("a", 3))] == ["a0", "a1", "a2"]
