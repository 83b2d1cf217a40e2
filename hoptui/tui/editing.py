"""A knob value while a person edits it: what is typed, whether it can be, and the next step up or down. Pure."""

from __future__ import annotations

import math

from hoptui.viewer import format as text
from hoptui.wire.knobs import KnobError, KnobSpec, KnobState, KnobValue, check_value, parse_value


class Draft:
    """A value on its way to being sent.

    `typed` is the text as typed; `value` what it says and `error` why it is none, in one sentence. `seen` is the version
    that was on screen when the person decided: a command that expects it is refused if somebody was faster.
    """

    def __init__(self, knob: KnobState) -> None:
        self.spec = knob.spec
        self.seen = knob.version
        self.typed = ""
        self.value: KnobValue | None = None
        self.error = ""
        self.type(plain_text(knob.value))

    def type(self, typed: str) -> None:
        """Take what is typed; bad text keeps the draft and sets `error`."""
        self.typed = typed
        try:
            self.value, self.error = parse_value(self.spec, typed), ""
        except KnobError as error:
            self.value, self.error = None, text.clean(str(error))

    def step(self, direction: int, current: KnobValue) -> None:
        """Go to the next value of the scale, up (1) or down (-1), from the draft or, if that is none, from `current`."""
        self.type(plain_text(stepped(self.spec, current if self.value is None else self.value, direction)))


def stepped(spec: KnobSpec, value: KnobValue, direction: int) -> KnobValue:
    """The next value: the neighbour among the choices, double or half on log and pow2 scales, else a round step.

    Never leaves the bounds; a value that has no neighbour (a text, an end of the choices) stays.
    """
    if spec.choices:
        at = spec.choices.index(value) if value in spec.choices else 0
        return spec.choices[max(0, min(len(spec.choices) - 1, at + direction))]
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return spec.default
    if spec.scale in ("log", "pow2"):
        moved = _doubled(value, direction, spec)
    else:
        step = linear_step(spec, value)
        moved = (
            math.floor(value / step + 1e-9) + 1 if direction > 0 else math.ceil(value / step - 1e-9) - 1
        ) * step
    return _within(spec, moved, value)


def linear_step(spec: KnobSpec, value: float) -> float:
    """A tenth of the value's power of ten; of the range's where the value is 0; at least 1 for whole numbers."""
    size = abs(value)
    if not size and spec.min is not None and spec.max is not None:
        size = float(spec.max - spec.min) / 10
    step = 10.0 ** (math.floor(math.log10(size)) - 1) if size else 0.1
    return max(1.0, step) if spec.kind == "int" else step


def plain_text(value: KnobValue) -> str:
    """A value as a person would type it: `true`, `2048`, `0.0003`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value)


def _doubled(value: float, direction: int, spec: KnobSpec) -> float:
    if value <= 0:
        return spec.min if spec.min is not None and spec.min > value else value
    return value * 2 if direction > 0 else value / 2


def _within(spec: KnobSpec, moved: float, value: KnobValue) -> KnobValue:
    low = -math.inf if spec.min is None else spec.min
    high = math.inf if spec.max is None else spec.max
    moved = min(max(moved, low), high)
    found: KnobValue = round(moved) if spec.kind == "int" else float(f"{moved:.12g}")
    try:
        return check_value(spec, found)
    except KnobError:
        return value
