"""The animated picture: a replay of a slow start, the advised change and the tuner, driven by keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from screenshots.camera import Step, sitting

SIZE = (120, 40)
FROM = "+15s"
"""Three seconds before the run stands still to set compile from off to default."""
BEAT_S = 0.25


class Act(NamedTuple):
    """Steps, then so many frames a beat apart, each shown for `ms`: longer than a beat only while the replay
    stands still."""

    steps: tuple[Step, ...] = ()
    frames: int = 1
    ms: int = round(1000 * BEAT_S)


ACTS = (
    Act(ms=2500),
    Act(("down",) * 14, ms=1000),  # to compile
    Act(("space", "right_square_bracket", "right_square_bracket"), frames=30),
    Act(("space",), ms=1500),
    Act(("1",), ms=2500),
    Act(("escape", "t"), ms=2500),
    Act(("escape", "h"), ms=2500),
    Act((*("down",) * 9, "enter"), ms=3500),
)


class Shown(NamedTuple):
    """What is on screen, as SVG, and for how long."""

    svg: str
    ms: int


async def play() -> list[Shown]:
    """All of the cast; what does not change is one frame."""
    shown: list[Shown] = []
    async with sitting("slow start", size=SIZE, moment=FROM) as camera:
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
