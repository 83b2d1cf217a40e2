"""The run screen in every state and size, read as a person reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hoptui.client.client import Link
from hoptui.domain.columns import pack
from hoptui.domain.facts import fact
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.widgets import Lines
from tests.golden import Golden, sheet
from tests.tui.conftest import NO_DRIVER

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
ReadAll = Callable[[Any], str]
FULL, COMPACT, TINY, WIDE = (120, 40), (80, 24), (58, 14), (200, 50)
SECOND = 1_000_000_000


def test_what_a_person_sees_in_one_second(scene: MakeScene, play: Play, read: Read, golden: Golden) -> None:
    shown: dict[str, str] = {}

    async def script(app: Any, pilot: Any) -> None:
        for widget in (
            "identity",
            "progress",
            "speed",
            "score",
            "phase-lines",
            "knob-list",
            "knob-detail",
            "event-lines",
            "keys",
        ):
            shown[widget] = read(app, widget)
        assert "550 k┤" in read(app, "speed-chart")
        assert "┆" in read(app, "speed-chart")

    play(scene(gpus=1).live().history().app(), script)
    golden(sheet(shown))


def test_a_gpu_is_shown_with_what_holds_it_back(scene: MakeScene, play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        readings = read(app, "readings")
        assert "busy   ━" in readings
        assert "92 %" in readings
        assert "SM     ━" in readings
        assert "81 %" in readings
        assert "633/700 W" in readings
        assert "58.1/80.0 GiB" in readings
        assert "1 980 MHz" in readings
        assert "HBM 71 °C" in readings
        assert "power cap" in readings
        assert "⚠" not in readings
        assert "host CPU 42 %" in read(app, "host")

    play(scene(gpus=1).live().app(), script)


def test_without_a_gpu_the_reason_and_the_host(scene: MakeScene, play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        readings = read(app, "readings")
        assert readings.startswith(f"{NO_DRIVER}\nCPU")
        assert "run CPU" in readings

    play(scene(gpus=0).live().app(), script)


def test_metrics_that_stopped_coming_are_dimmed_with_their_age(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=1).live()
    there.client.ns += 20 * SECOND
    there.update(vital={"state": "paused", "paused_left_s": 40.0})

    async def script(app: Any, pilot: Any) -> None:
        assert app.screen.query_one("#speed", Lines).faded
        assert not app.screen.query_one("#knob-list", Lines).faded
        assert "values are 20 s old" in str(app.screen.query_one("#throughput").border_subtitle)

    play(there.app(), script)


def test_a_phase_that_is_not_in_every_iteration_is_shared_out(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=0).live(history=False)
    now = there.client.ns
    rows = [
        (
            now - (10 - i) * SECOND,
            i,
            {"iteration_s": 1.0, "phase/update": 0.8} | ({"phase/evaluation": 2.0} if i == 5 else {}),
        )
        for i in range(10)
    ]
    there.tell(columns=(pack("run/3f2a9c10", rows),))

    async def script(app: Any, pilot: Any) -> None:
        shares = {line.split()[0]: line.split()[-4:-2] for line in read(app, "phase-lines").splitlines()}
        assert shares["update"] == ["80", "%"]
        assert shares["evaluation"] == ["20", "%"]

    play(there.app(), script)


def test_a_lost_gpu_keeps_its_line_with_the_reason(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=2)
    reason = "lost: fell off the bus"
    lost = msgspec.structs.replace(there.gpus[1], problem=fact("recorded", text=reason))
    there.run = msgspec.structs.replace(there.run, gpus=("GPU-0", "GPU-1"))
    there.node = msgspec.structs.replace(there.node, gpus=(there.gpus[0], lost), runs=(there.run,))

    async def script(app: Any, pilot: Any) -> None:
        lines = read(app, "readings").splitlines()
        assert lines[1].split()[:5] == ["0", "92", "81", "34", "31"]
        assert lines[2].split(maxsplit=1) == ["1", f"✕ {reason}"]
        shown["progress"] = read(app, "progress")

    play(there.live().app(), script)
    golden(sheet(shown))


def test_old_readings_are_unknown_and_never_the_last_value(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live()
    there.client.ns += 30 * SECOND
    there.update(vital={"step": 1210})

    async def script(app: Any, pilot: Any) -> None:
        assert "92 %" not in read(app, "readings")
        assert "–" in read(app, "readings")

    play(there.app(), script)


def lost(there: Any) -> None:
    there.client.link = Link("lost", 88.0, "the daemon (pid 77) does not answer")


def failed(there: Any) -> None:
    there.client.link = Link("failed", 88.0, "/tmp/hoptui-0 is a symlink: it must be a directory")


STATES: list[tuple[str, Callable[[Any], None], str, bool]] = [
    ("lost", lost, "◌ link lost", True),
    ("failed", failed, "✕ no daemon", True),
    (
        "busy",
        lambda s: s.update(
            vital={"state": "busy", "phase": "checkpoint", "phase_age_s": 140.0, "progress_age_s": 141.0}
        ),
        "◐ busy",
        False,
    ),
    ("paused", lambda s: s.update(vital={"state": "paused", "paused_left_s": 43.0}), "‖ paused", False),
    (
        "not answering",
        lambda s: s.update(vital={"state": "unresponsive", "pulse_age_s": 12.0}),
        "◌ not answering",
        True,
    ),
    (
        "exited",
        lambda s: s.update(
            vital={"state": "exited"}, run={"exit_reason": "exception", "exit_detail": "CUDA out of memory"}
        ),
        "✕ exited",
        True,
    ),
    (
        "restarted",
        lambda s: s.update(run={"epoch": 2, "started_wall": s.run.started_wall + 228}),
        "● live",
        False,
    ),
]


@pytest.mark.parametrize(("name", "change", "state", "old"), STATES, ids=[s[0] for s in STATES])
def test_every_state_has_its_own_look_and_keeps_the_last_values(
    scene: MakeScene,
    play: Play,
    read: Read,
    name: str,
    change: Callable[[Any], None],
    state: str,
    old: bool,
    golden: Golden,
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live().history()
    change(there)

    async def script(app: Any, pilot: Any) -> None:
        assert state in read(app, "identity")
        shown["banner"] = read(app, "progress")
        assert read(app, "speed").startswith("502 k env steps/s")
        assert app.screen.query_one("#speed", Lines).faded == old
        may_steer = "e edit knob" in read(app, "keys")
        assert may_steer == (state not in ("✕ exited", "◌ link lost", "✕ no daemon"))

    play(there.app(), script)
    golden(sheet(shown))


def test_connecting_is_a_full_frame_at_once(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1)

    async def script(app: Any, pilot: Any) -> None:
        assert "◌ connecting" in read(app, "identity")
        assert "ppo-cartpole" in read(app, "identity")
        assert there.client.watched == []
        there.live()
        app.client.on_change("link")
        app.client.on_change("node")
        await pilot.pause()
        assert "● live" in read(app, "identity")
        assert read(app, "speed").startswith("502 k")
        assert there.client.watched == ["3f2a9c10"]

    play(there.app(), script)


@pytest.mark.parametrize("gpus", [0, 8])
@pytest.mark.parametrize("size", [FULL, COMPACT, TINY, WIDE, (100, 32), (60, 16), (300, 20), (20, 5)])
def test_every_size_mounts_and_shows_the_key_numbers(
    scene: MakeScene, play: Play, read_all: ReadAll, size: tuple[int, int], gpus: int
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        assert "ppo-cartpole" in read_all(app)
        if size[0] > 50:
            assert "502 k" in read_all(app)
            assert "1 204 / 5 000" in read_all(app)

    play(scene(gpus=gpus).live().history().app(), script, size)


def test_the_compact_screen_has_knobs_and_events_behind_a_key(
    scene: MakeScene, play: Play, read: Read, read_all: ReadAll
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        summary = read(app, "summary").splitlines()
        assert summary[0].startswith("502 k env steps/s")
        assert summary[1].startswith("▲ +6.1 % ± 1.2 since num_envs 1 024 → 2 048")
        assert summary[4].startswith("iteration 128 ms ━")
        assert summary[6].startswith("GPU 0")
        assert "num_envs" in read(app, "knob-list")
        assert "checkpoint written" not in read_all(app)
        await pilot.press("tab")
        await pilot.pause()
        assert "checkpoint written" in read_all(app)

    play(scene(gpus=1).live().history().app(), script, COMPACT)


def test_a_resize_while_running_changes_the_layout(scene: MakeScene, play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        for size, mode in ((COMPACT, "compact"), (TINY, "tiny"), (FULL, "full")):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert isinstance(app.screen, RunScreen)
            assert app.screen.mode == mode
        assert "550 k┤" in read(app, "speed-chart")

    play(scene(gpus=1).live().history().app(), script)


def test_pending_and_refused_changes_stand_beside_the_value_in_effect(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=1).live()
    there.record(id="p", ago_s=1.0, knob="grad_accum", before=4, wanted=8, stage="scheduled", step=1205)
    there.record(
        id="q", ago_s=2.0, knob="clip_range", before=0.2, wanted=3.0, stage="rejected", code="out_of_range"
    )

    async def script(app: Any, pilot: Any) -> None:
        lines = read(app, "knob-list").splitlines()
        assert lines[2].split("  ")[-2:] == ["→ 8", "◷ scheduled for 1 205"]
        assert lines[2].split()[:2] == ["grad_accum", "4"]
        assert lines[4].split()[:2] == ["clip_range", "0.2"]
        assert lines[4].endswith("✕ rejected: out_of_range")

    play(there.app(), script)


def test_a_value_that_is_not_in_effect_says_so(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live()
    odd = msgspec.structs.replace(there.run.knobs[2], in_effect=False)
    there.update(run={"knobs": (*there.run.knobs[:2], odd)})

    async def script(app: Any, pilot: Any) -> None:
        assert "⚠ not in effect" in read(app, "knob-list")

    play(there.app(), script)


def test_a_hostile_name_reaches_the_terminal_without_control_characters(
    scene: MakeScene, play: Play, read_all: ReadAll
) -> None:
    there = scene(gpus=1).live()
    there.update(run={"name": "evil\x1b[2J[red]\x07\n", "headline": "a\x1b[31mb_per_s"})

    async def script(app: Any, pilot: Any) -> None:
        assert "evil" in read_all(app)
        assert "[red]" in read_all(app)
        assert not any(ord(c) < 32 and c != "\n" for c in read_all(app))

    play(there.app(run="3f2a9c10"), script)


def test_a_chart_is_drawn_again_only_for_a_new_dot_column(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        chart = app.screen.query_one("#speed-chart", Lines)
        shown = []
        chart.show = lambda lines, **options: shown.append(lines)
        for _ in range(8):
            app.tick()
            there.client.ns += SECOND // 8
        assert shown == []
        there.client.ns += 4 * SECOND
        app.tick()
        assert len(shown) == 1

    play(there.app(), script)
