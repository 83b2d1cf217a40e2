"""A run may say anything: odd numbers and names are drawn somehow, and never end the dashboard."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from hoptui.domain.columns import pack
from hoptui.domain.tuning import Measured
from tests import factories

MakeScene = Callable[..., Any]
Play = Callable[..., None]
ReadAll = Callable[[Any], str]
SECOND = 1_000_000_000
ODD = (0.0, -1.0, 1e-320, 1e308, -1e308, math.nan, math.inf, -math.inf, 1e15, 0.1 + 0.2)
NAMES = (
    "episode_return",
    "loss",
    "iteration_s",
    "env_steps_per_s",
    "phase/rollout",
    "phase/rollout/env",
    "phase/\x1b[2J",
    "phase/訓練",
    "x" * 300,
    "",
    "[bold]m[/]",
    "busy",
    "power_w",
    "memory_used_bytes",
    "memory_total_bytes",
    "throttle",
    "sm_clock_mhz",
    "cpu_percent",
    "load_1m",
    "temperature_c",
    "sm_active",
)


@pytest.mark.parametrize(
    ("run", "size"), [("ppo-cartpole", (120, 40)), ("ppo-cartpole", (80, 24)), (None, (120, 40))]
)
def test_odd_numbers_and_names(
    scene: MakeScene, play: Play, read_all: ReadAll, size: tuple[int, int], run: str | None
) -> None:
    chance = random.Random(repr(size))
    there = scene(gpus=2).live(history=False)
    there.update(
        vital={"iteration_s": chance.choice(ODD), "progress_age_s": chance.choice(ODD), "step": -5},
        run={
            "total": 0,
            "started_wall": 1e12,
            "knobs": (
                factories.knob("a", math.inf, default=0.0, by="\x1b[2J" * 50),
                factories.knob("b", "訓練\n" * 100, default=""),
                factories.knob("c", 10**30, default=0, min=-(10**30)),
            ),
        },
    )
    measured = Measured(gain=math.inf, interval=math.nan, detectable=True, settled=True)
    there.record(id="m", knob="a", before=math.nan, wanted=1e308, effective=-0.0, step=-1, measured=measured)

    async def script(app: Any, pilot: Any) -> None:
        for second in range(3):
            there.client.ns += SECOND
            t = there.client.ns - SECOND // 2
            for source in ("run/3f2a9c10", "process/3f2a9c10", "host", "gpu/GPU-0", "gpu/GPU-1"):
                values = {name: chance.choice(ODD) for name in NAMES}
                there.tell(columns=(pack(source, [(t, second, values)]),))
            app.tick()
            await pilot.pause()
            shown = read_all(app)
            assert "訓練" in shown or "ppo-cartpole" in shown, "it is still there"
            assert "\x1b" not in shown, "and nothing of it reaches the terminal"
            assert not re.search(r"\bnan\b", shown), "what is no number is unknown"
            await pilot.press("m", "down", "minus")
        editing = ("e", "up", "down", "pageup", "escape", "end", "enter", "up", "a", "a", "escape", "u", "n")
        for key in (*editing, "h", "enter", "y", "escape", "b", "s", "escape"):
            await pilot.press(key)
            assert "\x1b" not in read_all(app), key
        await pilot.pause()
        app.tick()
        assert "ppo-cartpole" in read_all(app), "every key has been taken"

    play(there.app(run=run), script, size)
