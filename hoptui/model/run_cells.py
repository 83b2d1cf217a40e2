"""The cells of the table of runs as text, for the command line and the dashboard."""

from __future__ import annotations

from hoptui.model.run_selection import Cell
from hoptui.model.run_table import MetricSummary, RunRow
from hoptui.presentation import diagnosis, numbers, vocabulary
from hoptui.presentation.details import tag_text, value_text
from hoptui.presentation.metric_names import logged

MOST = 40
"""The most characters of a name or of a value of the configuration."""


def state_word(row: RunRow) -> vocabulary.Word:
    """Return the symbol and the word of a state."""
    return vocabulary.state_named(row.state)


def state(row: RunRow) -> str:
    """`● live`: the state of a run."""
    return " ".join(state_word(row))


def name(row: RunRow) -> str:
    """The name of a run, as far as its recording can be read."""
    return numbers.clean(row.name, MOST) if row.name is not None else numbers.UNKNOWN


def started(row: RunRow) -> str:
    """`2026-05-04 12:45:01`: when its first process began."""
    return numbers.day_clock(row.began)


def lasted(row: RunRow) -> str:
    """`2 h 14 m`."""
    return numbers.duration(row.lasted_s)


def throughput(row: RunRow) -> str:
    """`512 k env steps/s`: the last value of the throughput metric."""
    if row.rate is None or row.rate.last is None:
        return numbers.UNKNOWN
    return f"{logged(row.rate.name, row.rate.last)} {vocabulary.unit_of(row.rate.name, dict(row.units))}"


def metric(row: RunRow) -> str:
    """`loss 0.183, best 0.121`: the first metric of learning."""
    return summary(row.learning[0]) if row.learning else numbers.UNKNOWN


def summary(found: MetricSummary) -> str:
    """`loss 0.183, best 0.121`; without a best value, its last one alone."""
    best = f", best {numbers.logged(found.best)}" if found.best is not None else ""
    label = numbers.clean(found.name.replace("_", " "), MOST)
    return f"{label} {logged(found.name, found.last)}{best}"


def verdict(row: RunRow) -> str:
    """`launch-bound`: the last verdict on what limits the run."""
    return diagnosis.name(row.diagnosis) if row.diagnosis is not None else numbers.UNKNOWN


def tags(row: RunRow) -> str:
    """`#baseline #a100`."""
    return tag_text(row.tags)


def text(value: Cell) -> str:
    """A value of any other column."""
    if value is None:
        return numbers.UNKNOWN
    return numbers.clean(" ".join(value) if isinstance(value, tuple) else value_text(value), MOST)
