"""Declaration, checks and display of knobs. The run, the daemon and every viewer share these rules."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeVar, cast

import msgspec

from hoptui.domain.enumerations import ByValue

KnobValue = bool | int | float | str
Kind = Literal["int", "float", "bool", "str"]
Effect = Literal["speed", "learning"]
Cost = Literal["free", "shape", "rebuild", "restart"]
Scale = Literal["linear", "log", "pow2"]
V = TypeVar("V", bound=KnobValue)

_SIGNS = re.compile(r"\s*([×*/])\s*")
MOST_NAMED = 50
"""Maximum number of knobs that the answer to an unknown name lists."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}")


class KnobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A declared, typed, bounded value of a run that may change at a boundary.

    `effect` is `learning` if a change affects what is learned, else `speed`. `cost` is how a change is
    applied:

    - `free`: a value that is read inside the step
    - `shape`: a new compiled graph
    - `rebuild`: a new model, optimizer or set of readers
    - `restart`: a new process of the run

    `keeps` declares what holds for every value (see `relations`). "grad_accum × micro_batch" stays constant,
    "rollout = num_envs × rollout_len × ranks" follows. Separate several with a semicolon. Free text is
    allowed for users.
    """

    name: str
    kind: Kind
    default: KnobValue
    min: int | float | None = None
    max: int | float | None = None
    choices: tuple[KnobValue, ...] = ()
    scale: Scale = "linear"
    effect: Effect = "learning"
    cost: Cost = "free"
    keeps: str = ""
    unit: str = ""
    description: str = ""


class KnobState(msgspec.Struct, frozen=True, kw_only=True):
    """A knob and its value in effect: the value read back, never the requested one.

    `version` rises by one with each applied change. `in_effect` is false if the value read back differs from
    the value set. `by` is the author of the last change, `took_s` how long the run paused for it (None: there
    was none).
    """

    spec: KnobSpec
    value: KnobValue
    version: int = 0
    in_effect: bool = True
    by: str = ""
    took_s: float | None = None


def coefficient(spec: KnobSpec) -> bool:
    """Return whether a knob is a number that training uses, such as a learning rate.

    The run itself may change it in every iteration.
    """
    return spec.kind == "float" and spec.effect == "learning" and spec.cost == "free"


class Relation(NamedTuple):
    """A relation between knobs: `name` = product of the factors `over` / product of the factors `under`.

    Without a `name`, the run keeps the quotient constant. A factor is a knob, or `ranks`, the number of
    processes. `text` is the declaration.
    """

    name: str
    over: tuple[str, ...]
    under: tuple[str, ...]
    text: str


def relations(keeps: str) -> list[Relation]:
    """Return the relations that a knob's `keeps` declares. Free text is one factor that is not a knob."""
    found = []
    for text in filter(None, map(str.strip, keeps.split(";"))):
        name, _, formula = text.rpartition("=")
        first, *rest = _SIGNS.split(formula.strip())
        signed = list(zip(rest[::2], rest[1::2], strict=True))
        over = (first, *(factor for sign, factor in signed if sign != "/"))
        under = tuple(factor for sign, factor in signed if sign == "/")
        found.append(Relation(name.strip(), over, under, text))
    return found


class KnobError(ValueError):
    """An invalid declaration or value. Its text is one sentence that names the knob.

    `code` is the code of a command with an invalid value.
    """

    code = "bad_type"


class OutOfRangeError(KnobError):
    """A value outside a knob's bounds."""

    code = "out_of_range"


def kind_of(value: object) -> Kind:
    """Return the knob kind of a Python value. Numpy scalars are not accepted.

    Raises:
        KnobError: `value` is not a bool, int, float or str.
    """
    match value:
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case str():
            return "str"
    raise KnobError(f"a knob holds a bool, int, float or str, not {type(value).__name__}")


def plain(value: V) -> V:
    """Return the value in Python's own type.

    Messages cannot carry enumeration members, numpy's float64 and the like.
    """
    found: object = value
    match value:
        case bool():
            pass
        case int():
            found = int(value)
        case float():
            found = float(value)
        case str():
            found = str.__str__(value)
    return cast(V, found)


LONGEST_TEXT = 4096
"""Characters of a value. A run's first message has all of its values."""


def check_transport(name: str, value: KnobValue) -> None:
    """Check that messages and recordings can carry a value. They carry NaN and infinity.

    Raises:
        KnobError: an integer of more than 64 bits, or a text that is too long or no Unicode text.
    """
    if isinstance(value, int) and not _fits(value):
        raise KnobError(f"{name} must fit in 64 bits")
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise KnobError(f"{name} is a text of {len(value)} characters: the most is {LONGEST_TEXT}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise KnobError(f"{name} is no Unicode text: {value[:40]!a}") from None


def same(value: object, other: object) -> bool:
    """Return whether two values are equal. NaN equals NaN here: it is the same thing to read."""
    if isinstance(value, float) and isinstance(other, float) and math.isnan(value) and math.isnan(other):
        return True
    return value == other


def check_spec(spec: KnobSpec) -> None:
    """Check a declaration against itself.

    Raises:
        KnobError: an invalid name, contradictory bounds, or an invalid default or choice.
    """
    if not NAME.fullmatch(spec.name):
        raise KnobError(
            f"{spec.name!r} is no knob name: letters, digits, '_', '-', '.', at most 64, no digit first"
        )
    if spec.kind in ("bool", "str") and (spec.min is not None or spec.max is not None):
        raise KnobError(f"{spec.name} is a {spec.kind}: it takes choices, not bounds")
    for bound in (spec.min, spec.max):
        if isinstance(bound, float) and math.isnan(bound):
            raise KnobError(f"{spec.name} has NaN as a bound")
        if isinstance(bound, int) and not _fits(bound):
            raise KnobError(f"{spec.name} has a bound of more than 64 bits")
    if spec.min is not None and spec.max is not None and spec.min > spec.max:
        raise KnobError(f"{spec.name} has min {spec.min:g} above max {spec.max:g}")
    for value in (*spec.choices, spec.default):
        check_value(spec, value)
        if isinstance(value, int) and not _fits(value):  # the value of a float knob, written without a point
            raise KnobError(f"{spec.name} has a value of more than 64 bits")


def check_value(spec: KnobSpec, value: object) -> KnobValue:
    """Return the value in the knob's type. An int is accepted for a float knob, never the reverse.

    Raises:
        KnobError: wrong type, NaN or infinite, out of bounds, not among the choices, or not a power of
            two on a `pow2` scale.
    """
    checked: KnobValue
    match spec.kind, value:
        case "bool", bool():
            checked = value
        case "str", str():
            checked = plain(value)
        case ("int", int()) if not isinstance(value, bool):
            checked = plain(value)
        case ("float", int() | float()) if not isinstance(value, bool):
            try:
                checked = float(value)
            except OverflowError:
                raise KnobError(f"{spec.name} must be a finite number") from None
        case _:
            raise KnobError(f"{spec.name} takes {_ARTICLE[spec.kind]}, not {shown(value)}")
    check_transport(spec.name, checked)
    if isinstance(checked, float) and not math.isfinite(checked):
        raise KnobError(f"{spec.name} must be a finite number, not {checked}")
    if spec.choices and checked not in spec.choices:
        raise KnobError(
            f"{spec.name} must be one of {', '.join(map(shown, spec.choices))}, not {shown(checked)}"
        )
    if isinstance(checked, int | float) and not isinstance(checked, bool):
        if spec.min is not None and checked < spec.min:
            raise OutOfRangeError(
                f"{spec.name} = {shown(checked)} is out of bounds: the least is {shown(spec.min)}"
            )
        if spec.max is not None and checked > spec.max:
            raise OutOfRangeError(
                f"{spec.name} = {shown(checked)} is out of bounds: the most is {shown(spec.max)}"
            )
        if spec.scale == "pow2" and (
            checked < 1 or checked != int(checked) or int(checked) & (int(checked) - 1)
        ):
            raise KnobError(f"{spec.name} must be a power of two, not {shown(checked)}")
    return checked


def parse_value(spec: KnobSpec, text: str) -> KnobValue:
    """Parse and check a value that a user typed. Accepts `4096`, `4_096`, `4 096`, `3e-4`, `true`, `off`.

    Raises:
        KnobError: the text is not a value of the knob's type, or the value does not pass `check_value`.
    """
    text = text.strip()
    compact = text.replace("_", "").replace(" ", "").replace("\u202f", "").replace("\u2009", "")
    if spec.kind == "str":
        return check_value(spec, text)
    if spec.kind == "bool":
        if compact.lower() in _BOOLS:
            return check_value(spec, _BOOLS[compact.lower()])
        raise KnobError(f"{spec.name} takes on or off, not {shown(text)}")
    try:
        number = float(compact)
        if spec.kind == "int":
            whole = int(compact) if compact.lstrip("+-").isdigit() else int(number)
            if whole != number and not compact.lstrip("+-").isdigit():
                raise KnobError(f"{spec.name} takes a whole number, not {shown(text)}")
            return check_value(spec, whole)
    except (ValueError, OverflowError) as error:
        if isinstance(error, KnobError):
            raise
        raise KnobError(f"{spec.name} takes {_ARTICLE[spec.kind]}, not {shown(text)}") from None
    return check_value(spec, number)


def shown(value: object) -> str:
    """Return a value for a sentence: `1 024`, shortest float text, quoted strings, long ones shortened."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        # Python refuses to format very long integers.
        return f"{value:,}".replace(",", " ") if _fits(value) else "a huge number"
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


def missing(run: str, name: str, known: Iterable[str]) -> str:
    """Return one sentence for an unknown knob: similar names, or all names of the run."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(names) or 'none so far'}"
    return f"{run} has no knob {name!r}; {hint}"


def _fits(value: int) -> bool:
    """Return whether every message can carry a number: SQLite and C have signed 64 bits."""
    return -(1 << 63) <= value < 1 << 63


_ARTICLE = ByValue(
    {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"},
    lambda _: "a value that this version of hoptui does not know",
)
_BOOLS = {
    "true": True,
    "on": True,
    "yes": True,
    "1": True,
    "false": False,
    "off": False,
    "no": False,
    "0": False,
}
