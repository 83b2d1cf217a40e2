"""How true a chart is: the value read off its picture, against the median of the data.

Each of twenty series is drawn. The cells in the ink of its curve and the labels of its axis give a value for
each column: the middle of what is drawn there. `error` compares the median of these values with that of the
medians of the samples in the same columns, `column_error` is the median of the differences of the columns.
Both are shares of the data's value; the error should be at most `LIMIT`.

The rules of the axis were made with the first lot, so its figure is no test. `UNSEEN` was written afterwards.
"""

from __future__ import annotations

import math
import random
import statistics
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import report
from hoptui.model.recorded.store import RecordedStore
from hoptui.model.series import Series
from hoptui.recording import Recording
from hoptui.tui.charts.line_chart import Drawn, Pen, whole_dots
from hoptui.tui.charts.plot import AXIS_WIDTH, LOG, Paper, plot
from hoptui.tui.charts.raster import ACROSS, DOWN
from hoptui.tui.styled_text import Line

SECOND = 1_000_000_000
WIDTH, HEIGHT = 116, 34
DOTS = ACROSS * (WIDTH - AXIS_WIDTH)
LIMIT = 0.05
INK = "1"
RECORDINGS = Path(__file__).parent.parent / "tests" / "recordings"
RECORDED = {
    "ppo-h100": ("env_steps_per_s", "iteration_s", "episode_return", "entropy", "value_loss"),
    "ppo-cpu-tuned": ("env_steps_per_s", "iteration_s", "entropy"),
}
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class Samples(NamedTuple):
    """A series to draw, with the samples that it was made of."""

    name: str
    series: Drawn
    t: Sequence[int]
    values: Sequence[float]


def synthetic() -> Iterator[Samples]:
    """Live series of shapes that are hard to draw, some longer than the raw samples that are held."""
    shapes: dict[str, tuple[int, Callable[[random.Random, int], float]]] = {
        "bursts": (3000, lambda r, i: 100 + r.random() + (300 if i % 10 == 0 else 0)),
        "old bursts": (40_000, lambda r, i: 100 + r.random() + (300 if i % 10 == 0 else 0)),
        "dips": (40_000, lambda r, i: (100 + r.random()) / (5 if i % 7 == 0 else 1)),
        "steps": (3000, lambda r, i: 10 * 2.0 ** (i // 1000) + r.random()),
        "ramp": (3000, lambda r, i: 5 + i / 100 + r.random()),
        "heavy tail": (3000, lambda r, i: r.paretovariate(1.5)),
        "old heavy tail": (60_000, lambda r, i: r.paretovariate(1.5)),
        "skewed": (300_000, lambda r, i: 1 + r.expovariate(1)),
        "rare spikes": (3000, lambda r, i: 30 + r.random() + (3000 if r.random() < 0.003 else 0)),
        "negative": (3000, lambda r, i: -50 - 5 * r.random() - (100 if i % 20 == 0 else 0)),
        "gaps": (3000, lambda r, i: math.nan if i // 300 % 3 == 1 else 20 + r.random() * 4),
        "wave": (3000, lambda r, i: 50 + 30 * math.sin(i / 300) + r.random()),
    }
    return live(shapes)


def live(shapes: Mapping[str, tuple[int, Callable[[random.Random, int], float]]]) -> Iterator[Samples]:
    """Live series of some shapes, ten samples a second."""
    for name, (count, shape) in shapes.items():
        noise = random.Random(name)
        t = [SECOND + i * SECOND // 10 for i in range(count)]
        values = [shape(noise, i) for i in range(count)]
        series = Series()
        for a in range(0, count, 20):
            end = min(a + 20, count)
            series.extend(array("q", t[a:end]), range(a, end), array("d", values[a:end]))
        yield Samples(name, series, t, values)


UNSEEN: dict[str, tuple[int, Callable[[random.Random, int], float]]] = {
    "log normal": (5000, lambda r, i: r.lognormvariate(3, 0.8)),
    "two levels": (4000, lambda r, i: (60 if r.random() < 0.35 else 40) + r.gauss(0, 1)),
    "saw": (6000, lambda r, i: 200 + i % 40 + r.random()),
    "slow saw": (6000, lambda r, i: 200 + 150 * (i % 1500) / 1500),
    "falling loss": (8000, lambda r, i: 0.4 + 3 * math.exp(-i / 900) + r.gauss(0, 0.05)),
    "small integers": (5000, lambda r, i: r.randrange(3, 9)),
    "pauses": (5000, lambda r, i: 0.0 if i // 250 % 5 == 4 else 80 + r.gauss(0, 3)),
    "clusters of spikes": (
        9000,
        lambda r, i: 12 + r.random() + (500 if i // 60 % 11 == 0 and i % 3 == 0 else 0),
    ),
    "warm up": (3000, lambda r, i: 1e6 * (1 - math.exp(-i / 200)) * (1 + r.gauss(0, 0.02))),
    "spikes both ways": (5000, lambda r, i: 50 + r.gauss(0, 1) + 400 * (i % 97 == 0) - 300 * (i % 89 == 0)),
    "walk": (5000, lambda r, i: 1000 + 200 * math.sin(i / 700) + 80 * math.sin(i / 97) + r.gauss(0, 15)),
    "two thirds slow": (20_000, lambda r, i: (30 if i % 3 else 100) + r.random()),
}
"""The number of samples, and the value of each, of series that no rule was made with."""


def unseen() -> Iterator[Samples]:
    """The live series of `UNSEEN`."""
    return live(UNSEEN)


def recorded() -> Iterator[Samples]:
    """Series of two recordings of the tests, at their end. Each can be drawn until the next is taken."""
    for file, metrics in RECORDED.items():
        with Recording.open(RECORDINGS / f"{file}.hoptui") as recording:
            store = RecordedStore(recording)
            store.seek(store.span[1])
            source = f"run/{store.run_id}"
            for metric in metrics:
                series = store.series(source, metric)
                assert series is not None
                found: list[tuple[int, float]] = []
                for rows in recording.rows(source, *store.span):
                    if metric in rows.names:
                        values = array("d", rows.values[rows.names.index(metric)])
                        found += ((t, v) for t, v in zip(rows.times(), values, strict=True) if v == v)
                found.sort()
                yield Samples(f"{file} {metric}", series, [t for t, _ in found], [v for _, v in found])


def read(lines: Sequence[Line]) -> list[float]:
    """The value of each dot column of a picture by its axis. NaN where the curve is not."""
    rows = lines[:-1]
    log = lines[-1][0].text.strip() == LOG
    ticks = [(row, number(line[0].text)) for row, line in enumerate(rows) if line[0].text]
    if log:
        ticks = [(row, math.log10(value)) for row, value in ticks]
    (top_row, top), (bottom_row, bottom) = ticks[0], ticks[-1]
    dots_per_row = (DOWN * len(rows) - 1) / (len(rows) - 1)  # a label is as far down its rows as its value
    step = (bottom - top) / ((bottom_row - top_row) * dots_per_row)
    found: list[list[int]] = []
    for row, line in enumerate(rows):
        cells = [(character, span.ink) for span in line[2:] for character in span.text]
        found += [[] for _ in range(ACROSS * len(cells) - len(found))]
        for column, (character, ink) in enumerate(cells):
            if ink == INK:
                for x, y in dots(ord(character) - 0x2800):
                    found[ACROSS * column + x].append(DOWN * row + y)
    middles = [
        top + ((min(drawn) + max(drawn)) / 2 - top_row * dots_per_row) * step if drawn else math.nan
        for drawn in found
    ]
    return [10.0**middle for middle in middles] if log else middles


def number(label: str) -> float:
    """The value of a label: `1.5 M`."""
    digits, _, prefix = label.partition(" ")
    return float(digits.replace("−", "-")) * PREFIXES[prefix]


def dots(bits: int) -> Iterator[tuple[int, int]]:
    """Column and row of the dots of a braille cell."""
    order = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
    yield from (place for i, place in enumerate(order) if bits >> i & 1)


def measured(one: Samples) -> dict[str, float]:
    """The errors of one series."""
    x0, x1 = whole_dots(one.t[-1] - one.t[0], one.t[-1], DOTS)
    curve = Pen(one.series, one.name, INK).curve(x0, x1, DOTS)
    shown = read(plot([curve], Paper(x0, x1), WIDTH, HEIGHT))
    edges = [bisect_left(one.t, x0 + (x1 - x0) * i // len(shown)) for i in range(len(shown) + 1)]
    known = [[v for v in one.values[a:b] if math.isfinite(v)] for a, b in pairwise(edges)]
    pairs = [(seen, statistics.median(v)) for seen, v in zip(shown, known, strict=True) if v and seen == seen]
    seen, true = (statistics.median(side) for side in zip(*pairs, strict=True))
    columns = [abs(a - b) / max(abs(b), 1e-12) for a, b in pairs]
    return {
        "error": round(abs(seen - true) / abs(true), 4),
        "column_error": round(statistics.median(columns), 4),
        "columns": len(pairs),
    }


def main() -> None:
    """Measure and report."""
    lots = {"development": chain(recorded(), synthetic()), "test": unseen()}
    report("chart_truth", {"limit": LIMIT, "lots": {lot: _summary(series) for lot, series in lots.items()}})


def _summary(series: Iterable[Samples]) -> dict[str, Any]:
    """The errors of the series of a lot, the worst of them, and how many are within the limit."""
    found = {one.name: measured(one) for one in series}
    errors = [one["error"] for one in found.values()]
    within = sum(error <= LIMIT for error in errors)
    return {"series": found, "count": len(found), "worst": max(errors), "within": within}


if __name__ == "__main__":
    main()
