"""A page in GitHub-flavoured Markdown, readable as plain text too. The chart is drawn in block characters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from hoptui.cli.report import heat_map
from hoptui.cli.report.document import (
    Block,
    ChartCurve,
    ChartGrid,
    Document,
    Facts,
    FigureRow,
    HeatMap,
    Paragraph,
    ReportChart,
    ShareBar,
    Strip,
    Table,
    cut,
)
from hoptui.presentation import numbers
from hoptui.presentation.scales import (
    BELOW,
    FLAT,
    MOST,
    log_scale,
    powers_of_ten,
    typical_range,
    value_scale,
)
from hoptui.presentation.time_ticks import elapsed

COLUMNS, LINES = 72, 8
SPARK = 24
BAR = 20
LONGEST = 4000
LOG = "log"
UP, DOWNWARD = "▴", "▾"
GAP = "·"  # an unknown value of a curve in a table, where spaces would be joined
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_SPECIAL = re.compile(r"([\\`*\[\]<>|&~])|(?<![^\W_])(_)|(_)(?![^\W_])")


def write(document: Document) -> str:
    """The page as text that ends with a line end."""
    parts = [f"# {escape(document.title)}", *map(_block, document.lead)]
    for section in document.sections:
        parts += [f"## {escape(section.title)}", *map(_block, section.blocks)]
    parts += ["---", escape(document.foot)]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(plain: str) -> str:
    """Escape untrusted text: no markup, no HTML, no table separator. An underscore within a word is safe."""
    return _SPECIAL.sub(lambda found: f"\\{found.group()}", " ".join(numbers.clean(plain, LONGEST).split()))


def _block(block: Block) -> str:
    match block:
        case Paragraph(said):
            return escape(said)
        case FigureRow(figures):
            return "\n".join(
                f"- **{escape(one.value)}** {escape(one.label)}{f' ({escape(one.note)})' if one.note else ''}"
                for one in figures
            )
        case Facts(rows):
            return "\n".join(f"- **{escape(name)}** {escape(said)}" for name, said in rows)
        case Table(head, rows, right):
            return _table(head, rows, right)
        case ShareBar(rows):
            return _table(
                ("", "share", "", "time", ""),
                [
                    (one.label, numbers.percent(one.share, decimals=0), bar(one.share), one.amount, one.note)
                    for one in rows
                ],
                (1, 3),
            )
        case ReportChart(curves=curves) if len(curves) > 1:
            return _sparks([block])
        case ReportChart():
            return "```text\n" + "\n".join(drawn(block)) + "\n```"
        case ChartGrid(charts):
            return _sparks(charts)
        case HeatMap():
            return "```text\n" + "\n".join(numbers.clean(line) for line in heat_map.lines(block)) + "\n```"
        case Strip():
            return _strip(block)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    """Padded to columns, for those who read it as it is."""
    cells = [[escape(cell) for cell in row] for row in (head, *rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = [f"{'-' * (width - 1)}:" if i in right else "-" * width for i, width in enumerate(widths)]
    return "\n".join([line(cells[0]), line(rule), *map(line, cells[1:])])


def bar(share: float) -> str:
    """A share of a whole as a bar, to an eighth of a character."""
    return _filled(min(max(share, 0.0), 1.0) * BAR, "▏▎▍▌▋▊▉█")


def _filled(cells: float, partial: str) -> str:
    eighths = round(cells * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (partial[rest - 1] if rest else "")


def drawn(chart: ReportChart) -> Iterator[str]:
    """Draw a chart as lines: its first curve, an axis, change numbers and the time.

    The axis begins at zero, or is logarithmic. A column beyond it has a mark at its top.
    """
    curve = chart.curves[0] if chart.curves else ChartCurve("", (), (), (), ())
    means = columns(_on_axis(curve, log=chart.log), chart.span, COLUMNS)
    ends = typical_range(means, means, means)
    found = log_scale([10.0**v for v in ends], 3) if chart.log else None
    scale = found or value_scale([0.0, *ends], 3)
    label = max((len(one) for one in scale.labels), default=0)
    beyond = any(v > scale.top for v in means)
    notes = [LOG] if scale.log else []
    if beyond:
        notes.append(f"{UP} up to {numbers.si(max(v for v in curve.high if math.isfinite(v)))}")
    yield " · ".join([f"{chart.title}, {numbers.clean(chart.unit)}", *notes])
    marks = dict(
        zip(
            ((scale.top - tick) / (scale.top - scale.bottom) for tick in scale.ticks),
            scale.labels,
            strict=True,
        )
    )
    rows = {
        min(LINES - 1, round(place * LINES)): tick_label for place, tick_label in marks.items() if place < 1
    }
    for row in range(LINES):
        bottom = (LINES - 1 - row) / LINES
        line = "".join(_cell((value - scale.bottom) / (scale.top - scale.bottom), bottom) for value in means)
        if beyond and not row:
            line = "".join(UP if v > scale.top else cell for v, cell in zip(means, line, strict=True))
        yield (
            f"{rows.get(row, ''):>{label}} ┤{line.rstrip()}"
            if row in rows
            else f"{'':>{label}} │{line.rstrip()}"
        )
    zero = scale.labels[0] if scale.labels else ""
    yield f"{zero:>{label}} └{'─' * COLUMNS}"
    if any(mark.number for mark in chart.marks):
        yield f"{'':>{label}}  {_numbers(chart)}".rstrip()
    whole = numbers.duration((chart.span[1] - chart.span[0]) / 1e9)
    yield f"{'':>{label}}  0{whole:>{COLUMNS - 1}}"


def columns(
    curve: ChartCurve,
    span: tuple[int, int],
    count: int,
    of: Callable[[Sequence[float]], float] = fmean,
) -> list[float]:
    """The mean of a curve in each of `count` equal parts of the time; NaN where nothing is known.

    `of` takes another figure than the mean.

    A bucket reaches from the one before it to its own stamp, and counts in the parts that it lies in.
    """
    t0, t1 = span
    found: list[list[float]] = [[] for _ in range(count)]
    before: int | None = None
    for t, mean in zip(curve.t, curve.middle, strict=True):
        if not math.isfinite(mean):
            before = None
            continue
        last = _column(t - 1, t0, t1, count)
        first = last if before is None else min(before + 1, last)
        for column in range(first, last + 1):
            found[column].append(mean)
        before = last
    return [of(values) if values else math.nan for values in found]


def _cell(height: float, bottom: float) -> str:
    if height != height:
        return " "
    eighths = round((height - bottom) * LINES * 8)
    return _EIGHTHS[min(8, max(0, eighths))]


def _numbers(chart: ReportChart) -> str:
    """The numbers of the changes where there is room for them, in the order of time."""
    line = ""
    for mark in chart.marks:
        if not mark.number:
            continue
        number, at = str(mark.number), _column(mark.t, *chart.span, COLUMNS)
        if at >= len(line) + (1 if line else 0):
            line = f"{line:<{at}}{number}"
    return line


def _sparks(charts: Sequence[ReportChart]) -> str:
    rows = [_spark_row(chart, curve) for chart in charts for curve in chart.curves]
    return _table(("curve", "", "from least to greatest", "typical"), rows, (2,))


def _spark_row(chart: ReportChart, curve: ChartCurve) -> tuple[str, ...]:
    """`loss | ▇▅▃▂ | 0.11…2.31 | 0.18 s`: a curve as one row, with the median of its buckets."""
    name = f"{chart.title}, {curve.label}" if curve.label else chart.title
    known = sorted(v for v in curve.middle if v == v)
    if not known:
        return name, "", numbers.UNKNOWN, numbers.UNKNOWN
    least = min(v for v in curve.low if v == v)
    greatest = max(v for v in curve.high if v == v)
    unit = f" {chart.unit}" if chart.unit else ""
    typical = f"{numbers.si(known[len(known) // 2])}{unit}"
    kind = f" · {LOG}" if chart.log else ""
    picture = sparkline(_on_axis(curve, log=chart.log), chart.span)
    return f"{name}{kind}", picture, f"{numbers.si(least)} … {numbers.si(greatest)}", typical


def _on_axis(curve: ChartCurve, *, log: bool) -> ChartCurve:
    """A curve with the typical values that its axis has: powers of ten on a logarithmic one."""
    if log:
        return curve._replace(middle=[v if v > BELOW else math.nan for v in powers_of_ten(curve.middle)])
    return curve._replace(middle=[min(max(v, -MOST), MOST) if v == v else v for v in curve.middle])


def sparkline(curve: ChartCurve, span: tuple[int, int]) -> str:
    """A curve in `SPARK` characters, from the least to the greatest of its columns.

    Values beyond the typical ones count as the nearest of these. A column of such values alone is a mark.
    """
    ends = typical_range(curve.middle, curve.middle, curve.middle)
    if not ends:
        return ""

    def level(values: Sequence[float]) -> float:
        least, greatest = min(values), max(values)
        if least > ends[1] or greatest < ends[0]:
            return math.inf if least > ends[1] else -math.inf
        return fmean(min(max(v, ends[0]), ends[1]) for v in values)

    found = columns(curve, span, SPARK, level)
    known = [v for v in found if math.isfinite(v)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return "".join(_character(v, low, high) for v in found)


def _character(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return GAP if value != value else UP if value > 0 else DOWNWARD
    room = high - low if high - low > FLAT * max(abs(low), abs(high)) else math.inf
    return _EIGHTHS[1 + round(7 * (value - low) / room)]


def _strip(strip: Strip) -> str:
    zero = strip.span[0]
    shown, more = cut(strip.parts)
    rows = [(elapsed((p.t0 - zero) / 1e9), numbers.duration((p.t1 - p.t0) / 1e9), p.text) for p in shown]
    table = _table(("after", "for", strip.title), rows, (0, 1))
    return "\n\n".join([table, *(escape(one.text) for one in more)])


def _column(t: int, t0: int, t1: int, count: int) -> int:
    return min(count - 1, max(0, (t - t0) * count // max(1, t1 - t0)))
