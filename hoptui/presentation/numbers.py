"""Formatting of numbers, times and foreign text, for the command line and the dashboard. Pure functions.

Unknown (None or NaN) is always `UNKNOWN`, never 0. A plain space separates groups of three digits.
"""

from __future__ import annotations

import math
import time

from hoptui.domain.knobs import KnobSpec, KnobValue

UNKNOWN = "–"


def percent(
    ratio: float | None, *, signed: bool = False, decimals: int | None = None, digits: int | None = None
) -> str:
    """Format a ratio as per cent: 0.061 is `6.1 %`, `+6.1 %` if `signed`. From 10 % on without decimals.

    `decimals` sets the number of decimals at any size. `digits` sets the significant digits below 10 %: `0.04
    %`.
    """
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    number = ratio * 100
    if digits is not None and abs(number) < 9.95:
        return f"{number:.{digits}g} %"
    if decimals is None:
        decimals = 1 if 0 < abs(number) < 9.95 else 0
    text = f"{number:{'+' if signed else ''}.{decimals}f}"
    if not text.strip("+-0."):
        text = text.lstrip("+-")
    return f"{text} %"


def percentage(number: float | None) -> str:
    """Format a number that is already in per cent: `92 %`, `0.8 %`, `0.004 %`.

    Very small values are `<0.001 %`, never 0.
    """
    if number is None or not math.isfinite(number):
        return UNKNOWN
    size = abs(number)
    if not size or size >= 9.95:
        return f"{number:.0f} %"
    if size >= 0.05:
        return f"{number:.1f} %"
    return f"{number:.1g} %" if size >= 0.001 else "<0.001 %"


def grouped(number: float | None) -> str:
    """Format a count with its digits in groups of three: 1204 is `1 204`."""
    if number is None or not math.isfinite(number):
        return UNKNOWN
    return f"{round(number):,}".replace(",", " ")


def counted(number: int, noun: str) -> str:
    """`1 iteration`, `1 204 iterations`."""
    return f"{grouped(number)} {plural(number, noun)}"


def plural(number: int, noun: str) -> str:
    """Return the noun for a count: `run`, `runs`."""
    return noun if number == 1 else f"{noun}s"


_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_ASCII = str.maketrans(
    {
        "–": "-", "−": "-", "·": "-", "→": "->", "±": "+-", "×": "x", "…": "...", "µ": "u", "▸": ">",
        "●": "*", "◐": "%", "‖": "=", "◌": "?", "✕": "x", "↻": "@", "◷": "~", "✓": "+", "»": ">", "↶": "<",
        "⚠": "!", "▲": "^", "▼": "v", "█": "#", "▓": "%", "▒": "+", "░": ".",
        "°": " ", "≥": ">=", "≤": "<=",
    }
)  # fmt: skip


def known(number: float | None) -> bool:
    """Return whether a number is known and finite."""
    return number is not None and math.isfinite(number)


def si(number: float | None, digits: int = 3) -> str:
    """Format a quantity with `digits` significant digits and its SI prefix: 512 345.0 is `512 k`, 836 is
    `836`.

    Below 1 there is no prefix: `0.183`, `1.2e-5`.
    """
    if number is None or not math.isfinite(number):
        return UNKNOWN
    if isinstance(number, int) and abs(number) < 1000:
        return str(number)
    if number == 0:
        return "0"
    size = abs(number)
    if size < 1e-3 or size >= 1e21:
        return scientific(number, digits)
    if size < 1:
        return f"{number:.{digits - 1 - math.floor(math.log10(size))}f}"
    thousands = 0
    while thousands < len(_PREFIXES) - 1 and float(f"{size:.{digits - 1}e}") >= 1000:
        size /= 1000
        thousands += 1
    before_point = len(str(int(float(f"{size:.{digits - 1}e}"))))
    text = f"{math.copysign(size, number):.{max(0, digits - before_point)}f}"
    return f"{text} {_PREFIXES[thousands]}".rstrip()


def logged(number: float | None, digits: int = 3) -> str:
    """Format a value that a script logged: `0.183`, `NaN`, `inf`, `-inf`. Only None is unknown."""
    if number is None or math.isfinite(number):
        return si(number, digits)
    return "NaN" if math.isnan(number) else str(number)


def scientific(number: float, digits: int = 6) -> str:
    """Format `3.0e-4`: at most `digits` significant digits, at least one decimal, no padded exponent."""
    mantissa, exponent = f"{number:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0")
    return f"{mantissa}{'0' if mantissa.endswith('.') else ''}e{int(exponent)}"


def often(hz: float) -> str:
    """Return `once a second`, `10 times a second`."""
    return "once a second" if hz == 1 else f"{hz:g} times a second"


def duration(seconds: float | None) -> str:
    """Format seconds in their two greatest units: `45 s`, `1 m 35 s`, `2 h 14 m`, `3 d 4 h`."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    whole = max(0, int(seconds))
    minutes, s = divmod(whole, 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days} d {h} h"
    if hours:
        return f"{hours} h {m} m"
    if minutes:
        return f"{minutes} m {s} s"
    return f"{s} s"


def seconds(number: float | None) -> str:
    """Format measured seconds with three digits: `1.82 ms`, `1.82 s`; a duration from ten minutes on."""
    if number is None or not math.isfinite(number):
        return UNKNOWN
    size = abs(number)
    if size == 0:
        return "0 s"
    if size >= 600:
        return duration(number)
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if float(f"{size / scale:.2e}") >= 1 or unit == "µs":
            break
    return f"{si(number / scale)} {unit}"


def gib(size: float | None) -> str:
    """Format bytes in GiB: `58.1`, no decimals from 100 GiB on, `0.06` for little memory, because 0.0
    means none."""
    if size is None or not math.isfinite(size):
        return UNKNOWN
    amount = size / (1 << 30)
    if 0.005 <= abs(amount) < 0.095:
        return f"{amount:.2f}"
    return f"{amount:.1f}" if abs(amount) < 99.95 else f"{amount:.0f}"


def value(knob_value: KnobValue | None, spec: KnobSpec | None = None) -> str:
    """Format a knob's value: `2 048`, `3.0e-4`, `0.2`, `on`. On a log scale small numbers are scientific."""
    match knob_value:
        case None:
            return UNKNOWN
        case bool():
            return "on" if knob_value else "off"
        case int():
            return grouped(knob_value)
        case float() if not math.isfinite(knob_value):
            return _DIVERGED[str(knob_value)]
        case float():
            return _float(knob_value, spec is not None and spec.scale == "log")
    return clean(knob_value)


def alike(*values: KnobValue | None) -> list[str]:
    """Format values of one knob alike: `3.0e-4` and `1.0e-3` if one of them must be scientific."""
    tiny = any(isinstance(v, float) and 0 < abs(v) < 0.001 for v in values)
    return [_float(v, tiny) if isinstance(v, float) and math.isfinite(v) else value(v) for v in values]


_DIVERGED = {"nan": "NaN", "inf": "∞", "-inf": "−∞"}
"""A knob that reads back one of these has it: it is not unknown."""


def _float(number: float, logarithmic: bool) -> str:
    if not math.isfinite(number):
        return UNKNOWN
    size = abs(number)
    if number == 0:
        return "0"
    if size < (0.01 if logarithmic else 0.001) or size >= 1e9:
        return scientific(number)
    if number == int(number):
        return grouped(number)
    return f"{number:.6g}" if size < 1e5 else f"{number:,.1f}".replace(",", " ")


def clock(wall: float | None) -> str:
    """Format seconds since 1970 as local time of day: `10:41:02`."""
    if not wall or not math.isfinite(wall):
        return UNKNOWN
    return time.strftime("%H:%M:%S", time.localtime(wall))


def day_clock(wall: float | None) -> str:
    """Format seconds since 1970 as local date and time: `2026-05-04 10:41:02`."""
    if not wall or not math.isfinite(wall):
        return UNKNOWN
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall))


def zoned_clock(wall: float | None) -> str:
    """The same with its distance from UTC, for readers elsewhere: `2026-05-04 10:41:02 +02:00`."""
    at = day_clock(wall)
    if wall is None or at == UNKNOWN:
        return at
    zone = time.strftime("%z", time.localtime(wall))
    return f"{at} {zone[:3]}:{zone[3:]}"


def clean(text: str, most: int = 200) -> str:
    """Make foreign text safe for a terminal: one line of at most `most` characters.

    Control, bidi and invisible characters are removed.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def escaped(json: str) -> str:
    """Escape control, bidi and invisible characters of JSON text, which a terminal would obey."""
    if json.isprintable():
        return json
    return "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in json)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex("-", 2).split("-")
    return "".join(f"\\u{unit}" for unit in units)


def plain(text: str) -> str:
    """Replace control, bidi and invisible characters other than line ends, for data on a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def ascii_only(text: str) -> str:
    """Convert text for a terminal without UTF-8: known symbols are replaced, others become a question
    mark."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
