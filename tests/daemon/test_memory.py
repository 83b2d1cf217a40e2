"""Memory that will soon be full is reported, and memory that is flat or swings is not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from hoptui.daemon.memory import EVERY_S, FIRST_S, MemoryForecast
from hoptui.domain.columns import pack
from hoptui.node.cgroups import LimitedMemory
from hoptui.protocol.messages import RunHello
from tests.daemon.quiet_node import RUN, SECOND, QuietNode
from tests.factories import gpu

GIB = 1 << 30
TOTAL = 80 * GIB
NAMES = {"gpu/GPU-0": "GPU 0", "host": "the node", "job": "the job"}
Use = Callable[[float], float]
"""The used share of the memory by the minute."""


class Case:
    """A run on one GPU."""

    def __init__(self) -> None:
        self.quiet = QuietNode()
        self.quiet.node.gpus = (gpu(),)
        hello = RunHello(
            protocol=1, run=RUN, name="lm", epoch=1, nonce="n", pid=1, started=0, step=0, gpus=("GPU-0",)
        )
        self.quiet.runs.receive(b"0", None, hello)
        self.quiet.run.state = self.quiet.run.state.__class__(
            run=RUN, name="lm", epoch=1, pid=1, started_wall=0.0, gpus=("GPU-0",)
        )
        self.job: LimitedMemory | None = None
        self.forecast = MemoryForecast(self.quiet.node, lambda pid: self.job if pid == 1 else None)
        self.minute = 0.0

    def use(self, minutes: float, share: Use, *, noise: float = 0.0, source: str = "gpu/GPU-0") -> None:
        noises = random.Random(3)
        for _ in range(int(minutes * 60 / EVERY_S)):
            self.quiet.now += int(EVERY_S * SECOND)
            self.minute += EVERY_S / 60
            used = TOTAL * (share(self.minute) + noises.gauss(0.0, noise))
            if source == "job":
                self.job = LimitedMemory(int(used), TOTAL)
            else:
                total = {"memory_total_bytes": TOTAL} if source == "host" else {}
                row = {"memory_used_bytes": used, **total}
                self.quiet.node.rows((pack(source, [(self.quiet.now, 0, row)]),))
            self.forecast.tend()

    @property
    def told(self) -> list[str]:
        return [event.code for event in self.quiet.node.events if event.kind == "memory"]


@pytest.mark.parametrize("source", NAMES)
@pytest.mark.parametrize("noise", [0.0, 0.002])
def test_a_leak_of_a_percent_a_minute_is_reported_once(source: str, noise: float) -> None:
    case = Case()
    case.use(15, lambda minute: 0.5 + 0.01 * minute, noise=noise, source=source)
    assert case.told == ["memory.soon_full"]
    (event,) = [each for each in case.quiet.node.events if each.kind == "memory"]
    assert event.fields["of"] == NAMES[source]
    left = 50 - 100 * (event.fields["used_bytes"] / TOTAL - 0.5)
    assert abs(event.fields["minutes"] - left) < 5
    assert (event.level, event.source) == ("warning", source)


def test_its_end_is_reported() -> None:
    case = Case()
    case.use(10, lambda minute: 0.5 + 0.01 * minute)
    case.use(15, lambda _: 0.6)
    assert case.told == ["memory.soon_full", "memory.steady"]


FALSE: dict[str, Use] = {
    "flat": lambda _: 0.9,
    "fast saw": lambda minute: 0.5 + 0.4 * (minute % 0.5),
    "slow saw": lambda minute: 0.5 + 0.1 * (minute % 3.0),
    "step": lambda minute: 0.4 if minute < 8 else 0.7,
    "two steps": lambda minute: 0.4 + 0.2 * (minute > 6) + 0.2 * (minute > 9),
    "start": lambda minute: min(0.9, 0.45 * minute),
    "slow growth": lambda minute: 0.3 + 0.001 * minute,
    "levels off": lambda minute: 0.8 - 0.5 * 0.5**minute,
}


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.02])
@pytest.mark.parametrize("shape", FALSE)
def test_other_use_is_not_reported(shape: str, noise: float) -> None:
    case = Case()
    case.use(40, FALSE[shape], noise=noise)
    assert case.told == []


def test_a_long_swing_is_reported_once_at_most() -> None:
    """The first rise of ten minutes cannot be told from a leak. Later ones stay below the peak."""
    case = Case()
    case.use(90, lambda minute: 0.3 + 0.03 * (minute % 10.0))
    assert case.told in ([], ["memory.soon_full", "memory.steady"])


def test_the_first_minutes_are_not_looked_at() -> None:
    case = Case()
    case.use(FIRST_S / 60 + 3, lambda minute: 0.1 + 0.1 * minute)
    assert case.told == []
