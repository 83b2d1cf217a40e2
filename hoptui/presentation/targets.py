"""Targets as text: how users write them (`busy=90`, `power>=600W`, `temp<80`), and how they read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hoptui.domain.enumerations import ByValue
from hoptui.domain.targets import Side, Target, TargetState
from hoptui.presentation import numbers
from hoptui.presentation.gpu_readings import GPU
from hoptui.presentation.numbers import UNKNOWN
from hoptui.presentation.readings import Meaning, value_text

ALIASES: Mapping[str, str] = {
    "sm": "sm_active",
    "tensor": "tensor_active",
    "dram": "dram_active",
    "mfu": "mfu_estimated",
    "power": "power_w",
    "memory": "memory_used_bytes",
    "temp": "temperature_c",
    "temperature": "temperature_c",
    "hbm": "memory_temperature_c",
    "clock": "sm_clock_mhz",
}
"""Short names of readings."""
_NOT_IN_ROWS = ("memory_headroom_bytes", "memory_total_bytes", "idle_power_w")
READINGS: Mapping[str, Meaning] = {
    name: meaning
    for name, meaning in GPU.items()
    if meaning.unit in ("%", "W", "B", "B/s", "MHz", "°C") and name not in _NOT_IN_ROWS
}
"""The readings that a target can be set for: those of each GPU that are a level, not a count."""
SHARED = ("memory_used_bytes", "power_w", "power_average_w", "sm_clock_mhz")
"""The readings of which a GPU has a most: in per cent, a target is a share of that."""
_SHORT = {name: alias for alias, name in reversed(list(ALIASES.items()))}
_BYTES = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2.0**10, "MiB": 2.0**20,
          "GiB": 2.0**30, "TiB": 2.0**40}  # fmt: skip
_UNITS: Mapping[str, Mapping[str, float]] = {
    "%": {"%": 1.0, "": 1.0},
    "W": {"W": 1.0, "kW": 1e3, "": 1.0},
    "B": _BYTES,
    "B/s": {f"{unit}/s": factor for unit, factor in _BYTES.items()},
    "MHz": {"MHz": 1.0, "GHz": 1e3, "": 1.0},
    "°C": {"°C": 1.0, "C": 1.0, "": 1.0},
}
_WRITTEN = re.compile(r"\s*([A-Za-z_0-9]+)\s*(<=|>=|=|<|>|≤|≥)\s*(.*?)\s*")
_VALUE = re.compile(r"([0-9][0-9_]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)\s*([^0-9\s].*)?")
_SIDES: Mapping[str, Side] = {"=": "least", ">": "least", ">=": "least", "≥": "least"}
_SIGNS = ByValue({"least": "≥", "most": "≤"}, lambda _: "?")
OFF = "off"


class Removal(NamedTuple):
    """A request to remove the targets of a reading: `busy=off`."""

    reading: str


def parse(written: str) -> Target | Removal:
    """Return what a user wrote: `busy=90`, `memory>=100GB`, `temp<80`, `busy=off`.

    Raises:
        ValueError: it is no target. The text is one sentence.
    """
    found = _WRITTEN.fullmatch(written)
    if found is None:
        raise ValueError(f"a target is NAME=VALUE such as busy=90, 'temp<80' or busy=off, not {written!r}")
    name, sign, value = found.groups()
    reading = _reading(name)
    if value == OFF:
        return Removal(reading)
    meaning = READINGS[reading]
    number, unit = _number(name, value)
    if sign == "=" and meaning.unit == "°C":
        raise ValueError(f"{name} needs a side: '{name}<{value}' keeps it below")
    side: Side = _SIDES.get(sign, "most")
    if unit == "%" and reading in SHARED:
        if not 0 < number <= 100:
            raise ValueError(f"{name} in per cent is more than 0 and at most 100, not {value}")
        return Target(reading=reading, value=number / 100, side=side, share=True)
    factors = _UNITS[meaning.unit]
    if unit not in factors:
        raise ValueError(f"{name} takes {_examples(reading)}, not {value!r}")
    scaled = number * factors[unit]
    if meaning.unit == "%" and scaled > 100:
        raise ValueError(f"{name} is in per cent and at most 100, not {value}")
    return Target(reading=reading, value=scaled, side=side)


def _reading(name: str) -> str:
    reading = ALIASES.get(name.lower(), name.lower())
    if reading not in READINGS:
        short = ", ".join(["busy", *_SHORT.values()])
        raise ValueError(
            f"there is no reading {name!r} of a GPU to set a target for; there are {short} and the other "
            "levels that hoptui gpus --json lists"
        )
    return reading


def _number(name: str, value: str) -> tuple[float, str]:
    found = _VALUE.fullmatch(value)
    if found is None:
        raise ValueError(f"{name} takes {_examples(_reading(name))}, or off, not {value!r}")
    return float(found[1]), (found[2] or "").strip()


def _examples(reading: str) -> str:
    such: str = {"%": "90 or 90%", "W": "600 or 600W", "B": "100GB or 90GiB", "B/s": "20GB/s", "MHz": "1500",
            "°C": "80"}[READINGS[reading].unit]  # fmt: skip
    return f"{such.replace(' or ', ', ')} or 85%" if reading in SHARED else such


def name_of(target: Target) -> str:
    """Return the short name of its reading: `busy`, `power`."""
    return _SHORT.get(target.reading, numbers.clean(target.reading, 40))


def value_of(target: Target, value: float | None) -> str:
    """Format a value in the unit of a target: `90 %`, `600 W`, `93.1 GiB`."""
    if value is None:
        return UNKNOWN
    if target.share:
        return numbers.percent(value)
    meaning = READINGS.get(target.reading) or GPU.get(target.reading)
    return value_text(meaning.unit, value) if meaning is not None else f"{value:g}"


def bound(target: Target) -> str:
    """Return `≥ 90 %`, `≤ 80 °C`."""
    return f"{_SIGNS[target.side]} {value_of(target, target.value)}"


def goal(target: Target) -> str:
    """Return `busy ≥ 90 %`, `temp ≤ 80 °C`, `memory ≥ 93.1 GiB`."""
    return f"{name_of(target)} {bound(target)}"


def standing(state: TargetState, gpu: int | None = None) -> str:
    """Return `busy ≥ 90 %: 71 % on GPU 3`. `gpu` is the index of the worst of several."""
    where = f" on GPU {gpu}" if gpu is not None and state.mean is not None else ""
    found = value_of(state.target, state.mean)
    return f"{goal(state.target)}: {'unknown' if found == UNKNOWN else found}{where}"


def index_of(state: TargetState, gpus: Iterable[tuple[str, int]]) -> int | None:
    """Return the index of the worst GPU, None if the run has only one. `gpus` are UUIDs and indices."""
    known = dict(gpus)
    return known.get(state.gpu) if len(known) > 1 else None


def in_words(state: TargetState, gpus: Iterable[tuple[str, int]]) -> dict[str, object]:
    """Return a target as `--json` shows it. `gpus` are UUIDs and indices of the run's GPUs."""
    target = state.target
    return {
        "reading": target.reading,
        "side": target.side,
        "value": target.value,
        "share": target.share,
        "standing": state.standing,
        "mean": state.mean,
        "gpu": dict(gpus).get(state.gpu),
        "seconds": state.seconds or None,
        "text": goal(target),
    }
