"""The dashboard shows a node of a newer hoptui: words that it does not know are shown as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from hoptui.domain.targets import Target, TargetState
from hoptui.protocol.messages import CommandRecord, Event, NodeState, Vital
from tests import factories
from tests.newer_words import NEW, enumerated, newer
from tests.tui.conftest import RUN, START, Scene
from tests.tui.tuned_run import tuned

Play = Callable[..., None]
ReadAll = Callable[[Any], str]
NAMES = sorted({name for kind in (NodeState, Vital, CommandRecord, Event) for name in enumerated(kind)})
SHOWN = {"state", "stage", "verb", "stand", "result"}
"""Those that a user must be able to read somewhere."""
KEYS = (
    "h",
    "enter",
    "escape",
    "escape",
    "t",
    "l",
    "escape",
    "escape",
    "g",
    "escape",
    "e",
    "escape",
    "k",
    "escape",
)


def test_every_enumeration_of_a_node_is_among_them() -> None:
    assert set(NAMES) >= {
        *SHOWN,
        "level",
        "kind",
        "effect",
        "cost",
        "scale",
        "direction",
        "objective",
    }


def strange(*names: str) -> Scene:
    """A tuned run with targets, commands and events, in which these enumerations have a new value."""
    there = tuned()
    target = Target(reading="busy", value=90.0)
    there.update(run={"targets": (TargetState(target=target, standing="missed", mean=50.0, t=START),)})
    there.tell(
        node=newer(there.node, *names),
        vitals={RUN: newer(there.vital, *names)},
        commands=tuple(
            newer(replace(record, id=f"{record.id}-newer"), *names)
            for record in there.client.store.commands.values()
        ),
        events=tuple(
            newer(factories.event(50 + i, "note", "noted", t=START, run=RUN, level=level), *names)
            for i, level in enumerate(("info", "warning"))
        ),
    )
    return there


@pytest.mark.guarantee("newer-words")
@pytest.mark.parametrize(
    "names",
    [NAMES, *(pytest.param([name], marks=pytest.mark.slow) for name in NAMES)],
    ids=lambda names: "-".join(names)[:40],
)
def test_a_node_with_words_of_a_newer_hoptui(play: Play, read_all: ReadAll, names: list[str]) -> None:
    there, seen = strange(*names), [""]

    async def script(app: Any, pilot: Any) -> None:
        for key in ("", *KEYS):
            if key:
                await pilot.press(key)
            await pilot.pause()
            app.tick()
            await pilot.pause()
            seen.append(read_all(app))
        assert "ppo-cartpole" in "".join(seen), "it is still there"

    for run in ("ppo-cartpole", None):
        play(there.app(run=run), script, (160, 50))
    if SHOWN & set(names):
        assert NEW in "".join(seen)
