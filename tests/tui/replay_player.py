"""The dashboard on a recording, with a clock that tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from hoptui.client.replay import Replay
from hoptui.settings import Config
from hoptui.tui.replay_app import ReplayApp
from tests.model.recorded_run import FIRST, SECOND, at

Script = Callable[[ReplayApp, Pilot[None]], Awaitable[None]]
FULL, COMPACT, TINY = (120, 40), (80, 24), (58, 14)


class Player:
    """A replay on a clock that stands still unless `wait` moves it."""

    def __init__(self, path: Path) -> None:
        self.s = 100.0
        self.replay = Replay(path, clock=lambda: self.s)

    def play(
        self, script: Script, size: tuple[int, int] = FULL, *, playing: bool = False, **options: Any
    ) -> None:
        """Open the dashboard at a size, paused unless `playing`, and follow a script."""
        self.app = ReplayApp(
            self.replay, clock=lambda: self.s, frames=False, **{"config": Config.of(theme="dark"), **options}
        )

        async def main() -> None:
            async with self.app.run_test(size=size, notifications=True) as pilot:
                await pilot.pause()
                if not playing:
                    self.replay.pause()
                await script(self.app, pilot)

        asyncio.run(main())

    async def wait(self, pilot: Pilot[None], seconds: float) -> None:
        """Let time pass and draw a frame."""
        self.s += seconds
        self.app.tick()
        await pilot.pause()

    async def go(self, pilot: Pilot[None], seconds: float) -> None:
        """Go to so many seconds after the start, and draw."""
        self.replay.seek(at(seconds))
        await self.wait(pilot, 2.0)

    @property
    def seconds(self) -> float:
        return (self.replay.position - FIRST) / SECOND
