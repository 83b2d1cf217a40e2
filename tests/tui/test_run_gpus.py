"""The GPUs of a run on its screen: its own alone, what holds them back, and what they say together with the
run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from hoptui.domain.columns import pack
from hoptui.domain.facts import fact
from hoptui.protocol.messages import Event
from hoptui.tui.charts.line_chart import LineChart
from hoptui.tui.screens.run import content
from tests.golden import Golden, sheet

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
COMPACT = (80, 24)
SECOND = 1_000_000_000


def test_a_run_shows_its_own_gpus_alone(scene: MakeScene, play: Play, read: Read, golden: Golden) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=4).live()

    async def script(app: Any, pilot: Any) -> None:
        for gpus, indices in (
            (("GPU-1", "GPU-3"), ["1", "3"]),
            (("GPU-0", "GPU-1", "GPU-2", "GPU-3"), ["0", "1", "2", "3"]),
        ):
            there.update(run={"gpus": gpus})
            app.client.on_change("node")
            await pilot.pause()
            await pilot.pause()
            app.tick()
            assert [line.split()[0] for line in read(app, "readings").splitlines()[1:]] == indices
        there.update(run={"gpus": ()})
        app.client.on_change("node")
        await pilot.pause()
        await pilot.pause()
        shown["its GPUs are not known"] = read(app, "readings").splitlines()[0]

    play(there.app(), script)
    golden(sheet(shown))


def test_what_gpus_and_run_say_together(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live()
    there.derived(
        mfu_estimated=34.9,
        energy_per_unit_j=1.263e-3,
        idle_power_w=120.3,
        memory_headroom_bytes=21.9 * (1 << 30),
    )

    async def script(app: Any, pilot: Any) -> None:
        readings = read(app, "readings")
        assert re.search(r"MFU est\. [━╸─]+ +≈ 35 %", readings)
        assert "headroom 21.9 GiB" in readings
        assert "idle 120 W" in readings
        assert "1.26 mJ/env step" in read(app, "speed")
        there.derived(mfu=41.2, mfu_estimated=34.9)
        app.screen.redraw()
        await pilot.pause()
        assert re.search(r"MFU +[━╸─]+ +41 %", read(app, "readings"))
        assert "est." not in read(app, "readings")

    play(there.app(), script)


def test_busy_beside_sm_and_an_alarm_are_told(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live().gpu(busy=100.0, sm_active=26.0, throttle=float(0x20 | 0x04))

    async def script(app: Any, pilot: Any) -> None:
        shown.update({name: read(app, name) for name in ("readings", "progress")})

    play(there.app(), script)
    golden(sheet(shown))


def test_a_gpu_without_gpm_shows_what_it_has(scene: MakeScene, play: Play, read: Read) -> None:
    there = (
        scene(gpus=1).change_gpu(0, missing_because={"gpm": fact("gpm.needs_hopper", architecture="")}).live()
    )

    async def script(app: Any, pilot: Any) -> None:
        readings = read(app, "readings")
        assert "busy" in readings
        assert "memory busy" in readings
        assert "SM" not in readings

    play(there.app(), script)


def test_the_compact_screen_tells_what_a_unit_costs(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live().derived(mfu=41.2, energy_per_unit_j=1.263e-3, idle_power_w=120.3)

    async def script(app: Any, pilot: Any) -> None:
        lines = read(app, "summary").splitlines()
        assert lines[6].startswith(
            "GPU 0 busy 92    SM 81    tensor 34    DRAM 31    633/700 W  58.1/80.0 GiB"
        )
        assert lines[7].split("   ")[:2] == ["MFU 41 %", "energy 1.26 mJ/env step"]

    play(there.app(), script, COMPACT)


def test_events_of_other_runs_gpus_stay_away(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=2).live()
    for seq, uuid in ((1, "GPU-0"), (2, "GPU-1")):
        event = Event(
            seq=seq, t=seq, wall=1.78e9, kind="xid", text=f"of {uuid}", source=f"gpu/{uuid}", level="alarm"
        )
        there.tell(events=(event,))

    async def script(app: Any, pilot: Any) -> None:
        assert "of GPU-0" in read(app, "event-lines")
        assert "of GPU-1" not in read(app, "event-lines")

    play(there.app(), script)


def test_more_gpus_than_inks_are_charted_together(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=8).live()
    there.update(run={"gpus": tuple(gpu.uuid for gpu in there.gpus)})

    async def script(app: Any, pilot: Any) -> None:
        chart = app.screen.query_one("#hardware-chart", LineChart)
        assert not chart.display, "a daemon that does not compute it"
        there.derived(sm_active=63.0, sm_active_least=26.0, power_w=3923.0)
        app.screen.redraw()
        await pilot.pause()
        assert [curve.label for curve in chart.curves] == ["SM % mean", "least", "power %"]
        assert chart.curves[-1].high[-1] == pytest.approx(100 * 3923 / 5600)

    play(there.app(), script, (160, 60))


SPARK = re.compile(r"[\u2800-\u28ff ]*[\u2800-\u28ff]")


def half_busy(there: Any) -> Any:
    """Eight GPUs over 300 s: GPU 0 is at work, GPU 1 has gone idle, GPU 2 was not read for a third of
    the time.
    """
    there.update(run={"gpus": tuple(gpu.uuid for gpu in there.gpus)})
    there.client.ns += 301 * SECOND
    known: dict[int, Callable[[int], float]] = {
        0: lambda k: 95.0,
        1: lambda k: 95.0 if k < 150 else 0.0,
        2: lambda k: 95.0,
    }
    for index, work in known.items():
        seconds = [k for k in range(300) if index != 2 or not 100 < k < 200]
        rows = [
            (there.client.ns - (299 - k) * SECOND, -1, {"sm_active": work(k), "power_w": 600.0})
            for k in seconds
        ]
        there.tell(columns=(pack(f"gpu/{there.gpus[index].uuid}", rows),))
    return there


@pytest.mark.parametrize("size", [(120, 40), (200, 50), (240, 60)])
def test_each_of_many_gpus_has_its_work_over_time(
    scene: MakeScene, play: Play, read: Read, size: tuple[int, int]
) -> None:
    there = half_busy(scene(gpus=8).live())

    async def script(app: Any, pilot: Any) -> None:
        head, *rows = read(app, "readings").splitlines()
        sparks = [SPARK.search(row) for row in rows[:3]]
        busy, idle, gap = ("" if found is None else found.group().strip() for found in sparks)
        assert "SM 5 min" in head
        assert len(busy) >= 7
        assert set(busy) == {"⣿"}
        middle = len(idle) // 2
        assert set(idle[: middle - 1]) == {"⣿"}
        assert set(idle[middle + 1 :]) == {"⣀"}, "nothing done is not the same as unknown"
        assert "  " in gap
        limits = "700 W, 80.0 GiB each" in str(app.screen.query_one("#hardware").border_title)
        assert limits == ("/700" not in read(app, "readings")), "shown once"

    play(there.app(), script, size)


def test_limits_that_differ_stay_in_the_table(scene: MakeScene, play: Play, read: Read) -> None:
    there = half_busy(scene(gpus=8).change_gpu(3, power_limit_w=500.0).live())

    async def script(app: Any, pilot: Any) -> None:
        assert "SM 5 min" not in read(app, "readings")
        assert "/500" in read(app, "readings")

    there.gpu(3, power_w=450.0)
    play(there.app(), script, (120, 40))


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
def test_each_of_many_gpus_of_a_node_has_its_work_over_time(
    scene: MakeScene, play: Play, read: Read, size: tuple[int, int]
) -> None:
    there = half_busy(scene(gpus=8).live())

    async def script(app: Any, pilot: Any) -> None:
        assert "SM 5 min" in read(app, "gpu-head")
        row = read(app, "gpu-list").splitlines()[1]
        assert re.search("⣿⣿.*⣀⣀", row)

    play(there.app(run=None), script, size)


@pytest.mark.parametrize(
    ("count", "few", "all_of_them"),
    [
        (1, ["SM %", "tensor %", "DRAM %"], ["SM %", "tensor %", "DRAM %", "power %"]),
        (4, ["SM % mean", "least", "power %"], ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]),
    ],
)
def test_curves_without_a_row_each_are_at_most_three(
    scene: MakeScene, count: int, few: list[str], all_of_them: list[str]
) -> None:
    there = scene(gpus=count).live()
    there.update(run={"gpus": tuple(gpu.uuid for gpu in there.gpus)})
    there.derived(sm_active=63.0, sm_active_least=26.0, power_w=1923.0)
    view = there.app().view(there.run.run)
    assert [curve.label for curve in content.hardware_curves(view, 3)] == few
    assert [curve.label for curve in content.hardware_curves(view, 4)] == all_of_them


def test_the_compact_screen_sums_up_more_gpus_than_it_has_room_for(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=8).live()
    there.update(run={"gpus": tuple(gpu.uuid for gpu in there.gpus)})
    there.gpu(6, busy=100.0, sm_active=26.0, power_w=655.0)

    async def script(app: Any, pilot: Any) -> None:
        lines = read(app, "summary").splitlines()
        assert re.search(r"^8 GPUs busy \d+…100 +SM 26…\d+ +tensor \d+ .* \d{4}/5600 W", lines[6])
        assert [line[:5] for line in lines[7:9]] == ["GPU 0", "GPU 1"]
        shown["last line"] = lines[9]
        await pilot.press("3")
        await pilot.pause()
        rows = [line.split() for line in read(app, "readings").splitlines()]
        assert [row[0] for row in rows[1:9]] == [str(index) for index in range(8)]

    play(there.app(), script, COMPACT)
    golden(sheet(shown))
