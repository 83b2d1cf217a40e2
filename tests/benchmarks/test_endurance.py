"""The simulated day: what a node says arrives in the dashboard, commands come back applied, and memory is
told hour by hour."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks import endurance
from benchmarks.day import KNOBS, RUN, SECOND, START, DayClient, DayNode, SimulatedClock
from benchmarks.eight_gpus import GPUS
from hoptui.node.addresses import Addresses


def where(base: Path) -> Addresses:
    return Addresses(base / "run", base / "state")


def test_what_happens_on_the_node_is_known_to_the_client(tmp_path: Path) -> None:
    here, there = SimulatedClock(), SimulatedClock()
    node = DayNode(there, where(tmp_path))

    def ask(now: int, frames: list[bytes]) -> list[bytes]:
        node.live_until(now)
        return node.answer(frames)

    try:
        client = DayClient(here, ask)
        client.start()
        client.watch(RUN)
        for turn in range(30):
            here.now += 2 * SECOND
            client.turn()
            if turn == 10:
                client.set_next()
        node.keep_up()
    finally:
        node.close()
    for source, count in (*((f"gpu/{gpu.uuid}", 30) for gpu in GPUS), (f"run/{RUN}", 40)):
        assert len(client.store.names(source)) == count
        for name in client.store.names(source):
            series = client.store.series(source, name)
            assert series is not None
            window = series.window(START, here.now, 200)
            assert len(window.t) > 80, "two rows a second, but for those of the first turns"
    (command,) = client.store.commands.values()
    assert (command.knob, command.stage) == (KNOBS[1], "applied")


def test_a_day_is_told_by_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endurance, "LOOKS", ("h", "escape"))
    near, far = multiprocessing.Pipe()
    served: list[list[float]] = []
    node = threading.Thread(target=lambda: served.append(endurance.serve(far, tmp_path)), daemon=True)
    node.start()
    seen = endurance.look(near, 0.02)
    node.join(20)
    assert [len(served[0]), len(seen)] == [1, 2], "the beginning, and for the one that asks the end"
    assert all(at > 0 for at in (*served[0], *seen))


def test_growth_is_judged_from_the_hour_on_in_which_all_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(dashboard: list[float]) -> dict[str, Any]:
        flat = [70.0] * len(dashboard)
        return endurance.judge({"daemon": flat, "dashboard": dashboard})

    hours = 12
    rising = [50.0 + 20 * min(hour, endurance.SETTLED) / endurance.SETTLED for hour in range(hours + 1)]
    assert all(judged(rising)["met"].values())
    leaking = [50.0 + 5 * hour for hour in range(hours + 1)]
    assert list(judged(leaking)["met"].values()) == [True, False]
    assert judged(leaking)["growth_mib_per_h"] == {"daemon": 0.0, "dashboard": 5.0}
    large = [160.0] * (hours + 1)
    assert list(judged(large)["met"].values()) == [False, True]
