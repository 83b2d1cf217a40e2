"""What a meaning consists of, and how a value of each unit is written."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from hoptui.presentation import numbers
from hoptui.presentation.numbers import UNKNOWN

Unit = Literal["%", "W", "J", "B", "B/s", "MHz", "°C", "s", "count", "bit mask"]
Group = Literal["Compute", "Memory", "Power", "Clocks", "Links", "Health", "Sampler", "Host"]
GROUPS: tuple[Group, ...] = ("Compute", "Memory", "Power", "Clocks", "Links", "Health", "Sampler", "Host")
"""In the order in which screens and texts show them."""


class Meaning(NamedTuple):
    """A reading in words.

    `label` is its name for people, `short` a few words beside the value, `long` what it is and what it is
    not, `good` how to judge it (empty: there is nothing to judge), `source` where the number comes from.
    `needs` are the keys of `GpuInfo.missing` that explain why a GPU has not got it.
    """

    label: str
    unit: Unit
    group: Group
    short: str
    long: str
    source: str
    good: str = ""
    needs: tuple[str, ...] = ()


def value_text(unit: Unit, value: float | None) -> str:
    """A value with its unit for people: `94 %`, `0.8 %`, `612 W`, `58.1 GiB`, `29.1 GB/s`; unknown is `–`.

    A bit mask is written in hexadecimal: `reasons` puts those of a GPU's clocks in words.
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    match unit:
        case "%":
            return numbers.percentage(value)
        case "W":
            return f"{value:.0f} W"
        case "J" | "B/s":
            return small(value, unit)
        case "B":
            return f"{numbers.gib(value)} GiB"
        case "MHz":
            return f"{numbers.grouped(value)} MHz"
        case "°C":
            return f"{value:.0f} °C"
        case "s":
            return numbers.seconds(value)
        case "count":
            return numbers.grouped(value)
        case "bit mask":
            return f"0x{int(value):x}"


def small(value: float, unit: str) -> str:
    """A quantity with the prefix of its size, below one as well: `1.19 mJ`, `836 J`, `29.1 GB/s`."""
    for prefix, scale in (("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9)):
        scaled = float(f"{value / scale:.2e}")
        if abs(scaled) >= 1:
            head, _, thousands = numbers.si(scaled).partition(" ")
            return f"{head} {thousands or prefix}{unit}"
    return f"{numbers.si(value)} {unit}"
