"""A knob value while a person edits it: what is typed, whether it can be, and the next step up or down. Pure."""

from __future__ import annotations

import math

from hoptui.domain.knobs import KnobError, KnobSpec, KnobState, KnobValue, check_value, parse_value
from hoptui.model.command_history import as_typed
from hoptui.presentation import numbers
from hoptui.tui.staged_changes import Seen

ROUND = (1, 2, 3, 5)
"""What people try of each power of ten on a log scale: 1e-4, 2e-4, 3e-4, 5e-4, 1e-3."""
MOST_POWER = 308  # of ten that a float holds
LEAP = 8
"""Sizes go three doublings at once, which is about the power of ten of a real number."""


class KnobDraft:
    """A value on its way to being sent.

    `typed` is the text as typed; `value` what it says and `error` why it is none, in one sentence. `seen` is what was on
    screen when the person decided: a command that expects its version is refused if somebody was faster.
    """

    def __init__(self, knob: KnobState, epoch: int) -> None:
        self.spec = knob.spec
        self.seen = Seen.of(knob, epoch)
        self.typed = ""
        self.value: KnobValue | None = None
        self.error = ""
        self.type(as_typed(knob.value))

    def type(self, typed: str) -> None:
        """Take what is typed; bad text keeps the draft and sets `error`."""
        self.typed = typed
        try:
            self.value, self.error = parse_value(self.spec, typed), ""
        except KnobError as error:
            said = numbers.clean(str(error)) if typed.strip() else f"{self.spec.name} needs a value"
            self.value, self.error = None, said

    def step(self, direction: int, current: KnobValue, *, leap: bool = False) -> None:
        """Go to the next value of the scale, up (1) or down (-1), from the draft or, if that is none, from `current`."""
        start = current if self.value is None else self.value
        self.type(as_typed(stepped(self.spec, start, direction, leap=leap)))


def stepped(spec: KnobSpec, value: KnobValue, direction: int, *, leap: bool = False) -> KnobValue:
    """The next value of the knob's scale; a `leap` is about ten times as far.

    The neighbour among the choices; double or half of whole numbers on log and pow2 scales; the next of `ROUND` of real
    numbers on a log scale, the same in the next power of ten as a leap; else a round step. It never leaves the bounds; a
    value that has no neighbour (a text, an end of the choices) stays.
    """
    if spec.choices:
        last = len(spec.choices) - 1
        at = spec.choices.index(value) if value in spec.choices else 0
        return spec.choices[max(0, min(last, at + direction * (last if leap else 1)))]
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return spec.default
    if spec.scale == "pow2" or (spec.scale == "log" and spec.kind == "int"):
        moved = _doubled(value, LEAP if leap else 2, direction, spec)
    elif spec.scale == "log":
        moved = _rounded(value, direction, spec, leap=leap)
    else:
        step = linear_step(spec, value) * (10 if leap else 1)
        moved = (
            math.floor(value / step + 1e-9) + 1 if direction > 0 else math.ceil(value / step - 1e-9) - 1
        ) * step
    return _within(spec, moved, value)


def linear_step(spec: KnobSpec, value: float) -> float:
    """A tenth of the value's power of ten; of the range's where the value is 0; at least 1 for whole numbers."""
    size = abs(value)
    if not size and spec.min is not None and spec.max is not None and math.isfinite(spec.max - spec.min):
        size = float(spec.max - spec.min) / 10
    step = 10.0 ** max(math.floor(math.log10(size)) - 1, -MOST_POWER) if size else 0.1
    return max(1.0, step) if spec.kind == "int" else step


def _doubled(value: float, factor: int, direction: int, spec: KnobSpec) -> float:
    if value <= 0:
        return value if direction < 0 else max(1.0, float(spec.min or 0))
    moved = value * factor if direction > 0 else value / factor
    if spec.scale == "pow2":  # a bound need not be one itself
        bound = math.inf if spec.max is None else spec.max
        most = 2.0 ** math.floor(math.log2(bound)) if math.isfinite(bound) else bound
        least = 2.0 ** math.ceil(math.log2(max(1.0, float(spec.min or 1))))
        moved = min(max(moved, least), most)
    return moved


def _rounded(value: float, direction: int, spec: KnobSpec, *, leap: bool) -> float:
    if value <= 0:  # a log scale does not say what comes after nothing
        floor = spec.min if spec.min is not None and spec.min > 0 else spec.default
        return float(floor) if direction > 0 and isinstance(floor, int | float) else value
    if leap:
        return value * 10.0**direction
    power = math.floor(math.log10(value))
    grid = [digit * 10.0**p for p in (power - 1, power, min(power + 1, MOST_POWER)) for digit in ROUND]
    if direction > 0:
        return min((g for g in grid if g > value * (1 + 1e-9)), default=value)
    return max((g for g in grid if g < value * (1 - 1e-9)), default=value)


def _within(spec: KnobSpec, moved: float, value: KnobValue) -> KnobValue:
    low = -math.inf if spec.min is None else spec.min
    high = math.inf if spec.max is None else spec.max
    moved = min(max(moved, low), high)
    found: KnobValue = round(moved) if spec.kind == "int" else float(f"{moved:.12g}")
    try:
        return check_value(spec, found)
    except KnobError:
        return value
