"""What a change did to the throughput, as a figure."""

from __future__ import annotations

import msgspec


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a change did to the throughput: relative `gain` ± `interval` (0.061 is +6.1 %), None while unknown.

    `before` and `after` are `metric` as `pace.level` has it, `iterations` how many were measured after the change. `detectable`
    is False where the interval includes zero. `note` says why there is no figure.
    """

    metric: str = ""
    before: float | None = None
    after: float | None = None
    gain: float | None = None
    interval: float | None = None
    detectable: bool = False
    iterations: int = 0
    settled: bool = False
    note: str = ""
