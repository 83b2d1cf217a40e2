"""The processes on GPUs, sorted, with the workers that they have started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hoptui.domain.devices import GpuProcess, RunProcess
from hoptui.tui.components import process_tree
from hoptui.tui.components.process_tree import SORTS, ProcessRow, Sort, arranged
from hoptui.tui.screens.overview import OverviewScreen
from hoptui.tui.snapshot import View
from tests.golden import Golden
from tests.tui.conftest import RUN, Scene, rendered

MakeScene = Callable[..., Scene]
GIB = 1 << 30


def worker(pid: int, parent: int, cpu: float | None, command: str = "pt_data_worker") -> RunProcess:
    size = GIB * 3 // 2
    return RunProcess(pid=pid, parent=parent, run=RUN, cpu_percent=cpu, rss_bytes=size, command=command)


def ranks(scene: MakeScene) -> Scene:
    """Two ranks with loaders, one of which has a child, and a process of somebody else."""
    there = scene(gpus=2).live()
    train = "python train.py"
    gpus = (
        GpuProcess(gpu="GPU-0", pid=100, memory_used_bytes=20 * GIB, sm_percent=70.0, user="ana",
                   command=train, run=RUN),
        GpuProcess(gpu="GPU-1", pid=200, memory_used_bytes=40 * GIB, user="ana", command=train, run=RUN),
        GpuProcess(gpu="GPU-1", pid=999, sm_percent=5.0, user="ben", command="blender"),
    )  # fmt: skip
    tree = (
        worker(100, 0, 99.0, train), worker(101, 100, 20.0), worker(102, 100, 90.0),
        worker(103, 102, None, "ffmpeg -i x"), worker(200, 0, 50.0, train), worker(201, 200, 1.0),
    )  # fmt: skip
    there.tell(processes=gpus, tree=tree)
    return there


def view(there: Scene) -> View:
    return there.app().view(None)


def pids(rows: list[ProcessRow]) -> list[int]:
    return [row.pid for row in rows]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("GPU", [100, 200, 999]), ("memory", [200, 100, 999]), ("CPU", [100, 200, 999]),
        ("SM", [100, 999, 200]), ("pid", [100, 200, 999]), ("command", [999, 100, 200]),
    ],
)  # fmt: skip
def test_unknown_values_come_last(scene: MakeScene, sort: Sort, order: list[int]) -> None:
    assert pids(arranged(view(ranks(scene)), sort)) == order


def test_what_a_process_has_started_follows_it(scene: MakeScene) -> None:
    there = view(ranks(scene))
    assert [row.started for row in arranged(there, "GPU")] == [3, 1, 0]
    rows = arranged(there, "CPU", {100})
    assert pids(rows) == [100, 102, 103, 101, 200, 999]
    assert [row.depth for row in rows] == [0, 1, 2, 1, 0, 0]


def test_the_order_stays_where_it_was(scene: MakeScene) -> None:
    there = ranks(scene)
    before = arranged(view(there), "CPU", {100})
    tree = [worker(101, 100, 99.0), worker(102, 100, 0.0), worker(104, 100, 50.0), worker(200, 0, 100.0)]
    there.tell(processes=there.client.store.processes, tree=(worker(100, 0, 1.0), *tree))
    kept = [row.id for row in before]
    assert pids(arranged(view(there), "CPU", {100}, kept)) == [100, 102, 101, 104, 200, 999]
    assert pids(arranged(view(there), "CPU", {100})) == [200, 100, 101, 104, 102, 999]


def test_a_process_that_holds_a_gpu_is_no_worker(scene: MakeScene) -> None:
    there = ranks(scene)
    tree = (worker(100, 0, 1.0), worker(200, 100, 1.0), worker(201, 200, 1.0))
    there.tell(processes=there.client.store.processes, tree=tree)
    assert pids(arranged(view(there), "pid", {100, 200})) == [100, 200, 201, 999]


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_the_rows(scene: MakeScene, golden: Golden, width: int) -> None:
    there = view(ranks(scene))
    lines = [process_tree.head(there, width, "memory")]
    lines += process_tree.lines(there, arranged(there, "memory", {100}), width, 1)
    golden("\n".join(rendered(lines, width)) + "\n")


def test_without_a_tree_there_is_no_column_for_it(scene: MakeScene) -> None:
    there = ranks(scene)
    there.tell(processes=there.client.store.processes)
    assert "CPU" not in rendered([process_tree.head(view(there), 120, "pid")], 120)[0]
    assert arranged(view(there), "CPU")[0].started == 0


def test_keys_sort_and_unfold(scene: MakeScene, play: Callable[..., None]) -> None:
    there = ranks(scene)

    async def script(app: Any, pilot: Any) -> None:
        screen = app.screen
        assert isinstance(screen, OverviewScreen)
        screen._list("process-list").focus()
        await pilot.pause()
        await pilot.press("s")
        await pilot.pause()
        assert "memory▼" in screen._lines("process-head").text
        assert screen._list("process-list").chosen == ("GPU-0", 100), "the cursor stays on its process"
        await pilot.press("space")
        await pilot.pause()
        assert pids(screen._tree(screen.view())) == [200, 100, 101, 102, 103, 999]
        await pilot.press("down", "x")
        await pilot.pause()
        assert app.screen is screen, "a worker is not ended from here"
        await pilot.press("up", "space", *("s" * (len(SORTS) - 1)))
        await pilot.pause()
        assert pids(screen._tree(screen.view())) == [100, 200, 999]

    play(there.app(None), script, size=(120, 50))
