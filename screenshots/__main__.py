"""`make screenshots`: start a real PPO run, turn two of its knobs, and take the dashboard's picture in two sizes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hoptui.tui.app import HoptuiApp
from hoptui.viewer.client import Client
from hoptui.viewer.session import Session
from hoptui.wire.messages import NodeState, RunState
from screenshots.picture import NoFontError, png

HERE = Path(__file__).parent
SIZES = ((120, 40), (80, 24))
NAME = "ppo-cartpole"
BEGIN = (
    "--iterations",
    "100000",
    "--num-envs",
    "256",
    "--minibatch-size",
    "4096",
    "--epochs",
    "4",
    "--grad-accum",
    "4",
)
TURNS = (("grad_accum", 1), ("num_envs", 1024))
BETWEEN = 40
"""Iterations before and after each change, so that its effect is measured."""


@contextmanager
def training() -> Iterator[RunState]:
    """A real run on a node of its own, with its knobs turned; ended and forgotten afterwards."""
    with tempfile.TemporaryDirectory(prefix="hoptui-shots-") as base:
        os.environ |= {"HOPTUI_DIR": f"{base}/run", "HOPTUI_STATE_DIR": f"{base}/state"}
        command = [sys.executable, "-m", "trainer", "ppo", "--name", NAME, "--seed", "1", *BEGIN]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            with Session(client="screenshots", start_daemon=True) as session:
                run = _run(session)
                for knob, value in TURNS:
                    _pass(session, run, BETWEEN)
                    session.submit(run, "set", knob=knob, value=value)
                _pass(session, run, BETWEEN)
                yield run
        finally:
            child.terminate()
            child.wait(30)
            with Session(client="screenshots", start_daemon=True) as session:
                session.shutdown()


def _node(session: Session) -> NodeState:
    node = session.fetch(state=0).node
    assert node is not None
    return node


def _run(session: Session) -> RunState:
    while True:
        for run in _node(session).runs:
            if run.name == NAME:
                return run
        time.sleep(0.1)


def _pass(session: Session, run: RunState, iterations: int) -> None:
    """Let the run make so many iterations."""
    goal = session.fetch().vitals[run.run].step + iterations
    while session.fetch().vitals[run.run].step < goal:
        time.sleep(0.1)


async def shoot(run: str | None, size: tuple[int, int]) -> str:
    """The SVG of the dashboard after it has followed the run for a moment."""
    app = HoptuiApp(
        lambda on_change: Client(client="screenshots", on_change=on_change), run, theme="hoptui-dark"
    )
    async with app.run_test(size=size) as pilot:
        await asyncio.sleep(4.0)
        await pilot.pause()
        return app.export_screenshot(title="hoptui")


def main() -> int:
    """Take the pictures."""
    with training() as run:
        for name, shown in (("run", run.run), ("overview", None)):
            for columns, rows in SIZES:
                svg = asyncio.run(shoot(shown, (columns, rows)))
                path = HERE / f"{name}_{columns}x{rows}.svg"
                path.write_text(svg)
                print(path)
                try:
                    path.with_suffix(".png").write_bytes(png(svg))
                except NoFontError as error:
                    print(error, file=sys.stderr)
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
