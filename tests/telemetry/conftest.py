"""A clock that stands still, an NVML that can be told what to answer, and what was reported."""

from __future__ import annotations

import pytest

from tests.telemetry.fake_nvml import FakeNvml

SECOND = 1_000_000_000


class FakeClock:
    """Monotonic ns that only the test moves."""

    def __init__(self) -> None:
        self.now = 1_000 * SECOND

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml()


@pytest.fixture
def reports() -> list[str]:
    """What was reported, line by line: pass its `append`."""
    return []
