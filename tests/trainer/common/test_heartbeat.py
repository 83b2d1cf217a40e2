"""When a rank is missed, and what the others are told."""

from __future__ import annotations

import subprocess

import pytest

from hoptui_trainer.common.heartbeat import SILENT_S, Heartbeat, Neighbour, machine
from tests.conftest import until


class MemoryStore:
    """A store in this process; `gone` makes every call raise."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.gone = False

    def set(self, key: str, value: str) -> None:
        self._there()
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        self._there()
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        self._there()
        found = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(found).encode()
        return found

    def check(self, keys: list[str]) -> bool:
        self._there()
        return all(key in self.values for key in keys)

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        self._there()
        return self.values.setdefault(key, desired_value.encode())

    def _there(self) -> None:
        if self.gone:
            raise RuntimeError("connection reset")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    monkeypatch.setattr("hoptui_trainer.common.heartbeat.BEAT_S", 0.005)
    return MemoryStore()


def beating(store: MemoryStore, said: list[str]) -> Heartbeat:
    heartbeat = Heartbeat(store, 0, 2, "rank 0", said.append)
    heartbeat.start()
    return heartbeat


def test_a_rank_of_another_machine_is_missed_when_its_beats_stop() -> None:
    away = Neighbour("another-boot pid:[4026531836] 17")
    beats = [away.gone(beats=n, now=10.0 * n) for n in range(5)]
    assert beats == [False] * 5  # late, and alive
    assert not away.gone(beats=4, now=40.0 + SILENT_S)
    assert away.gone(beats=4, now=40.1 + SILENT_S)
    assert SILENT_S <= 25  # others end within 30 s


def test_a_rank_of_this_machine_is_missed_when_its_process_is_gone() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        here = Neighbour(f"{machine()} {child.pid}")
        assert not here.gone(beats=0, now=0.0)
        # Silent, but there: it may be stopped, or hold the interpreter.
        assert not here.gone(beats=0, now=1e6)
        child.kill()
        until(lambda: here.gone(beats=0, now=0.0), what="the end of the process")  # a zombie is over


def test_a_rank_that_left_is_not_missed(store: MemoryStore) -> None:
    said: list[str] = []
    place = subprocess.Popen(["true"])
    place.wait(5)
    heartbeat = beating(store, said)
    store.set("left/1", "1")
    store.set("place/1", f"{machine()} {place.pid}")
    until(lambda: int(store.values.get("beat/0", b"0")) > 20, what="some beats")
    assert not said
    del store.values["left/1"]
    assert heartbeat.wait(5.0) == "rank 1 vanished"
    heartbeat.stop()


def test_the_first_reason_is_everybodys_and_a_store_that_is_gone_is_one(store: MemoryStore) -> None:
    said: list[str] = []
    first = "rank 1: MemoryError: too much"
    heartbeat = beating(store, said)
    store.set("reason", first)
    assert heartbeat.wait(5.0) == first
    assert heartbeat.post("rank 0: RuntimeError: later") == first
    heartbeat.stop()
    other = beating(MemoryStore(), said)
    other._store.gone = True  # type: ignore[attr-defined]
    assert other.wait(5.0) == "rank 0 vanished"
    other.stop()
