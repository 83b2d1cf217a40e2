"""The animated picture: a replay around two changes of knobs, played fast by the keys named here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from screenshots.camera import Step, sitting

SIZE = (120, 40)
FROM = "+86s"
"""Four seconds before the run stands still to set minibatch_size from 4096 to 32768."""
BEAT_S = 0.25


class Act(NamedTuple):
    """Steps, then so many frames a beat apart, each shown for `ms`: longer than a beat only while the replay
    stands still."""

    steps: tuple[Step, ...] = ()
    frames: int = 1
    ms: int = round(1000 * BEAT_S)


ACTS = (
    Act(("down", "down"), ms=1000),  # to minibatch_size
    Act(("space", "right_square_bracket", "right_square_bracket"), frames=17),
    Act(("1",), frames=5),
    Act(("space",), ms=1500),
    Act(("escape", "slash"), ms=700),
    Act(("escape", "a"), ms=700),
    *(Act(("h",)) for _ in range(12)),
    Act(ms=1500),
    Act(("escape", "escape", "h"), ms=1200),
    Act(("enter",), ms=3500),
)


class Shown(NamedTuple):
    """What is on screen, as SVG, and for how long."""

    svg: str
    ms: int


async def play() -> list[Shown]:
    """All of the cast; what does not change is one frame."""
    shown: list[Shown] = []
    async with sitting(size=SIZE, moment=FROM) as camera:
        for act in ACTS:
            await camera.take(*act.steps, settle_s=0.0)
            for _ in range(act.frames):
                await camera.pass_time(BEAT_S)
                shown.append(Shown(camera.svg(), act.ms))
    return list(merged(shown))


def merged(shown: list[Shown]) -> Iterator[Shown]:
    """Frames that look the same, as one."""
    last = shown[0]
    for one in shown[1:]:
        if one.svg == last.svg:
            last = Shown(last.svg, last.ms + one.ms)
        else:
            yield last
            last = one
    yield last
