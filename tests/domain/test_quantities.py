"""Per cent and counts in words."""

from __future__ import annotations

import math

import pytest

from hoptui.domain.quantities import counted, percent, percentage, plural


@pytest.mark.parametrize(
    ("ratio", "style", "shown"),
    [
        (0.061, {}, "6.1 %"),
        (0.0995, {}, "10 %"),
        (0.42, {}, "42 %"),
        (-0.061, {"signed": True}, "-6.1 %"),
        (0.061, {"signed": True}, "+6.1 %"),
        (-0.0001, {"signed": True}, "0.0 %"),
        (0.061, {"decimals": 0}, "6 %"),
        (0.02, {"digits": 2}, "2 %"),
        (0.0004, {"digits": 2}, "0.04 %"),
        (0.2, {"digits": 2}, "20 %"),
        (None, {}, "–"),
        (math.nan, {"digits": 2}, "–"),
    ],
)
def test_ratios(ratio: float | None, style: dict[str, int], shown: str) -> None:
    assert percent(ratio, **style) == shown  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("number", "shown"),
    [(92.4, "92 %"), (0.83, "0.8 %"), (0.0042, "0.004 %"), (0.0002, "<0.001 %"), (0.0, "0 %"), (None, "–")],
)
def test_percentages(number: float | None, shown: str) -> None:
    assert percentage(number) == shown


def test_counts() -> None:
    assert [counted(n, "iteration") for n in (0, 1, 1204)] == [
        "0 iterations",
        "1 iteration",
        "1 204 iterations",
    ]
    assert [plural(n, "GPU") for n in (1, 2)] == ["GPU", "GPUs"]
