"""The GPUs screen: every reading with its meaning, the unknown ones with the reason, and the contrast that
matters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hoptui.domain.devices import GpuProcess
from hoptui.domain.facts import fact
from hoptui.presentation import sentences
from hoptui.presentation.gpu_readings import GPU
from hoptui.presentation.readings import DERIVED
from hoptui.protocol.messages import Event
from hoptui.tui.screens.gpu.screen import GpusScreen
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.widgets import Lines, Panel
from tests.golden import Golden, sheet

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
ReadAll = Callable[[Any], str]
OLD = fact("gpm.needs_hopper", architecture="Ampere")
NO_GPM = sentences.sentence(OLD)
ALL = (200, 60)


def lines_of(app: Any) -> dict[str, str]:
    """The list's line of each reading, without its group and its bar."""
    bars = dict.fromkeys([*map(ord, "━─╸"), *range(0x2800, 0x2900)])
    return {
        spans[2].text: " ".join("".join(span.text for span in spans[3:]).translate(bars).split())
        for spans in app.screen.query_one("#reading-list", Lines).lines
        if len(spans) > 2
    }


def line_of(app: Any, label: str) -> str:
    return lines_of(app)[label]


async def opened(app: Any, pilot: Any) -> None:
    await pilot.press("d")
    await pilot.pause()
    assert isinstance(app.screen, GpusScreen)


def test_every_reading_with_its_unit_and_meaning(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).change_gpu(
        0,
        memory_bandwidth_bytes_per_s=3.35e12,
        peak_flops={"bf16": 989e12},
        pcie_generation=5,
        pcie_width=16,
        nvlinks=18,
    )

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        shown.update(lines_of(app))
        assert "989 TFLOP/s bf16 · 3.35 TB/s" in str(app.screen.query_one("#readings").border_subtitle)

    play(there.live().app(run=None), script, ALL)
    golden(sheet(shown))


def test_unknown_readings_say_why_and_are_never_zero(scene: MakeScene, play: Play, read: Read) -> None:
    no_events = "events cannot be registered"
    there = scene(gpus=1).change_gpu(
        0,
        missing_because={
            "gpm": OLD,
            "xid": fact("recorded", text=no_events),
            "pcie_replays": fact("reading.failed", error="Unknown Error"),
        },
    )

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        for label in ("SM active", "tensor active", "DRAM bandwidth", "PCIe in", "idle power"):
            assert line_of(app, label) == f"– {NO_GPM}"
        assert line_of(app, "last Xid") == f"– {no_events}"
        assert line_of(app, "PCIe replays") == "– NVML: Unknown Error"
        assert line_of(app, "busy").startswith("92 %")
        await pilot.press("down")
        await pilot.pause()
        assert read(app, "meaning-lines").splitlines()[:2] == ["SM active  –", NO_GPM]

    play(there.live().app(run=None), script, ALL)


def test_limits_stand_beside_what_they_limit(scene: MakeScene, play: Play, read: Read) -> None:
    limits = {
        "power_default_w": 700.0,
        "power_min_w": 200.0,
        "power_max_w": 750.0,
        "temperature_slowdown_c": 87.0,
        "temperature_shutdown_c": 92.0,
        "memory_temperature_max_c": 95.0,
    }
    there = scene(gpus=1).change_gpu(0, power_limit_w=650.0, limits=limits)

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        assert line_of(app, "temperature").endswith("slows at 87, off at 92 °C")
        assert line_of(app, "HBM temperature").endswith("in operation up to 95 °C")
        assert line_of(app, "thermal margin").endswith(GPU["temperature_margin_c"].short), "no such limits"
        labels = list(lines_of(app))
        for _ in range(labels.index("power")):
            await pilot.press("down")
        await pilot.pause()
        said = "in force 650 W, default 700 W, minimum 200 W, maximum 750 W."
        assert said in " ".join(read(app, "meaning-lines").split())

    play(there.live().app(run=None), script, ALL)


def test_the_time_held_by_power_is_shown_as_a_share_of_the_last_seconds(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()  # 0.34 s each second

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        assert line_of(app, "held by power") == "34 % of 10 s; 1 h 11 m so far"
        assert line_of(app, "held by heat").startswith("0 % of 10 s")
        there.client.ns += 1_000_000_000
        there.gpu(power_violation_s=1.0)  # the driver was loaded anew
        app.screen.draw(app.pace.due(1e9, 0))
        assert line_of(app, "held by power").startswith("– of 10 s")

    play(there.app(run=None), script, ALL)


def test_busy_beside_sm_is_made_obvious(scene: MakeScene, play: Play, read: Read, golden: Golden) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        assert read(app, "verdict") == ""
        there.gpu(busy=100.0, sm_active=26.0)
        app.screen.draw(app.pace.due(1e9, 0))
        shown["busy 100, SM 26"] = read(app, "verdict")

    play(there.app(run=None), script)
    golden(sheet(shown))


@pytest.mark.parametrize(
    "readings",
    [
        pytest.param({"sm_active": 99.7, "tensor_active": 0.0, "dram_active": 90.0}, id="waits for memory"),
        pytest.param(
            {"sm_active": 97.0, "tensor_active": 0.0, "dram_active": 7.0, "fp32_active": 90.0},
            id="without tensor cores",
        ),
        pytest.param({"sm_active": 96.0, "tensor_active": 94.0, "dram_active": 26.0}, id="at work"),
        pytest.param({"throttle": 64.0}, id="too hot"),
    ],
)
def test_what_the_readings_say_together(
    scene: MakeScene, play: Play, read: Read, readings: dict[str, float], golden: Golden
) -> None:
    there = scene(gpus=1).live().gpu(busy=100.0, **readings)
    shown: dict[str, str] = {}

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        shown[str(readings)] = read(app, "verdict")

    play(there.app(run=None), script)
    golden(sheet(shown))


def test_the_chosen_reading_is_explained_and_charted(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        await pilot.press("down")
        await pilot.pause()
        shown["the second"] = read(app, "meaning-lines")
        legend = re.sub(r"\[.*?\]", "", str(app.screen.query_one("#chart").border_subtitle))
        assert legend == "━ SM active %   ━ busy %"
        assert "100┤" in read(app, "reading-chart")
        await pilot.press("end")
        await pilot.pause()
        shown["the last"] = read(app, "meaning-lines")

    play(scene(gpus=1).live().app(run=None), script)
    golden(sheet(shown))


def test_keys_and_digits_go_from_gpu_to_gpu(scene: MakeScene, play: Play, read: Read) -> None:
    lost = "lost: fell off the bus"
    there = scene(gpus=4).change_gpu(3, problem=fact("recorded", text=lost)).live()

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        assert read(app, "tabs").split() == ["›0", "81", "%", "1", "80", "%", "2", "79", "%", "3", "✕"]
        for key, title in (
            ("right", "1"),
            ("2", "2"),
            ("left", "1"),
            ("left", "0"),
            ("left", "3"),
            ("7", "3"),
        ):
            await pilot.press(key)
            await pilot.pause()
            assert app.screen.query_one("#readings", Panel).title.startswith(
                f"GPU {title} · NVIDIA H100 80GB"
            )
        assert (read(app, "verdict").split()[0], read(app, "verdict").partition(": ")[2].strip()) == (
            "✕",
            lost,
        )
        assert line_of(app, "busy").startswith("–")
        await pilot.press("escape")

    play(there.app(run=None), script)


def test_a_gpu_that_goes_away_leaves_another_on_screen(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=2).live()
    gone = "the driver is gone"

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        await pilot.press("1")
        for gpus, title in ((there.gpus[:1], "GPU 0"), ((), "GPU 0")):
            there.tell(
                node=msgspec.structs.replace(there.node, gpus=gpus, gpu_problem=fact("recorded", text=gone))
            )
            app.client.on_change("node")
            await pilot.pause()
            await pilot.pause()
            assert app.screen.query_one("#readings", Panel).title.startswith(title)
        assert read(app, "reading-list") == gone

    play(there.app(run=None), script)


def test_an_unknown_process_list_is_no_empty_gpu(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = (
        scene(gpus=2)
        .change_gpu(0, missing_because={"processes": fact("recorded", text="the driver refuses it")})
        .live()
    )

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        shown["GPU 0, refused"] = read(app, "process-lines")
        there.gpu(1, memory_used_bytes=float(3 << 20))
        await pilot.press("1")
        await pilot.pause()
        shown["GPU 1, no process"] = read(app, "process-lines")

    play(there.app(run=None), script, ALL)
    golden(sheet(shown))


def test_a_silent_sampler_leaves_no_gpu_empty(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1)
    there.node = msgspec.structs.replace(
        there.node, sampler_problems=(fact("recorded", text="the GPU sampler ended (exit code 1)"),)
    )
    there.live(history=False)

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        shown["the GPU sampler ended (exit code 1)"] = read(app, "process-lines")

    play(there.app(run=None), script, ALL)
    golden(sheet(shown))


def test_processes_of_this_gpu_alone(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=2).live()
    there.tell(
        processes=(
            GpuProcess(gpu="GPU-0", pid=11, user="ana", run="3f2a9c10"),
            GpuProcess(gpu="GPU-1", pid=12, user="bob"),
        )
    )

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        assert read(app, "process-lines").split()[0] == "11"
        assert "ppo-cartpole" in read(app, "process-lines")
        await pilot.press("1")
        await pilot.pause()
        assert [line.split()[0] for line in read(app, "process-lines").splitlines()] == ["12"]
        assert "GPU 1 · bob" in read(app, "identity")

    play(there.app(run=None), script)


def test_from_a_run_only_its_own_gpus_and_what_they_say_together(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=3).live()
    there.update(run={"gpus": ("GPU-1", "GPU-2")})
    there.derived(mfu=41.2, energy_per_unit_j=1.19e-3)

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        assert [word for word in read(app, "tabs").split() if word.strip("›") in "012"] == ["›1", "2"]
        shown.update({label: line_of(app, label) for label in ("MFU", "energy per unit")})
        await pilot.press("d")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)

    play(there.app(), script, ALL)
    golden(sheet(shown))


def test_the_last_xid_is_told_in_words(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=2).live()
    for seq, uuid in ((1, "GPU-0"), (2, "GPU-1")):
        there.tell(
            events=(
                Event(
                    seq=seq,
                    t=seq,
                    wall=1.78e9,
                    kind="xid",
                    text=f"Xid 79 of {uuid}",
                    source=f"gpu/{uuid}",
                    level="alarm",
                ),
            )
        )

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        assert line_of(app, "last Xid").endswith("Xid 79 of GPU-0")

    play(there.app(run=None), script, ALL)


def test_readings_that_no_longer_come_have_the_samplers_reason(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=1).live()
    killed = "the GPU sampler was killed (signal 9)"
    there.node = msgspec.structs.replace(there.node, sampler_problems=(fact("recorded", text=killed),))
    there.tell(node=there.node)

    async def script(app: Any, pilot: Any) -> None:
        assert "signal 9" not in read(app, "gpu-list"), "what is read is shown"
        there.client.ns += 60_000_000_000
        there.tell()
        app.client.on_change("node")
        await pilot.pause()
        assert read(app, "gpu-list").endswith(f"✕ {killed}")
        await opened(app, pilot)
        assert (read(app, "verdict").split()[0], read(app, "verdict").partition(": ")[2].strip()) == (
            "✕",
            killed,
        )

    play(there.app(run=None), script)


def test_equal_readings_redraw_nothing(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=2).live()

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        app.tick()
        await pilot.pause()
        drawn: list[object] = []
        for widget in app.screen.query(Lines):
            widget.refresh = lambda *regions, **options: drawn.append(regions)
        there.client.ns += 125_000_000
        app.tick()
        there.client.ns += 125_000_000
        app.tick()
        assert drawn == []

    play(there.app(run=None), script)


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
def test_odd_numbers_are_drawn_somehow(
    scene: MakeScene, play: Play, read_all: ReadAll, size: tuple[int, int]
) -> None:
    there = scene(gpus=2).change_gpu(
        1,
        power_limit_w=0.0,
        memory_total_bytes=0,
        memory_bandwidth_bytes_per_s=1e308,
        pcie_generation=99,
        pcie_width=0,
    )
    there.live()
    there.update(run={"gpus": ("GPU-0", "GPU-1")})

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        await pilot.press("1")
        await pilot.pause()
        for odd in (0.0, -1.0, 1e-320, 1e308, -1e308, math.nan, math.inf, 1e15, 0.1 + 0.2):
            there.client.ns += 1_000_000_000
            there.gpu(1, **dict.fromkeys(GPU, odd)).derived(**dict.fromkeys(DERIVED, odd))
            app.tick()
            assert app.screen.query_one("#readings", Panel).title.startswith("GPU 1 "), "it is still there"
            assert not re.search(r"\b(nan|inf)\b", read_all(app)), "what is no number is unknown"
            await pilot.press("down", "minus")
        for key in ("end", "plus", "tab", "tab", "tab", "escape"):
            await pilot.press(key)
            app.tick()
        assert isinstance(app.screen, RunScreen), "every key has been taken"

    play(there.app(), script, size)


def test_the_palette_goes_to_a_gpu(scene: MakeScene, play: Play) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"show 2 nvidia")
        await pilot.app.workers.wait_for_complete()
        await pilot.press("enter")
        await pilot.pause()
        await pilot.pause()
        assert isinstance(app.screen, GpusScreen)
        assert app.screen.gpu_id == "GPU-2"

    play(scene(gpus=4).live().app(run=None), script)
