"""From one run of a node to the next with one key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hoptui.protocol.messages import State, Vital
from hoptui.tui.components import runs

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]


@pytest.mark.parametrize(
    ("listed", "here", "step", "other"),
    [
        ("abc", "a", 1, "b"),
        ("abc", "c", 1, "a"),
        ("abc", "a", -1, "c"),
        ("abc", None, 1, "a"),
        ("abc", None, -1, "c"),
        ("a", "a", 1, None),
        ("a", "x", 1, "a"),
        ("", None, 1, None),
    ],
)
def test_the_one_beside(listed: str, here: str | None, step: int, other: str | None) -> None:
    assert runs.beside([*listed], here, step) == other


def test_n_goes_through_the_runs_that_go_on(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1)
    runs_there: list[tuple[str, float, State]] = [
        ("lm", 100.0, "live"),
        ("gone", 50.0, "exited"),
        ("vision", 20.0, "paused"),
    ]
    for name, began, state in runs_there:
        started = there.run.started_wall + began
        other = msgspec.structs.replace(there.run, run=f"id-{name}", name=name, started_wall=started)
        there.node = msgspec.structs.replace(there.node, runs=(*there.node.runs, other))
        there.tell(vitals={other.run: Vital(state=state, step=7)})
    there.live()

    async def script(app: Any, pilot: Any) -> None:
        assert "next run" in read(app, "keys")
        seen = []
        for key in ("n", "n", "n", "N", "N"):
            await pilot.press(key)
            await pilot.pause()
            seen.append(read(app, "identity").split()[1])
        assert seen == ["lm", "vision", "ppo-cartpole", "vision", "lm"]
        assert there.client.watched[-1] == "id-lm"

    play(there.app(), script, (200, 40))


def test_a_lone_run_has_none_beside_it(scene: MakeScene, play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        assert "next run" not in read(app, "keys")
        await pilot.press("n")
        assert "ppo-cartpole" in read(app, "identity")

    play(scene(gpus=1).live().app(), script, (200, 40))
