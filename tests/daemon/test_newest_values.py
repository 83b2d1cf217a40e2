"""Which values of a run are current, without I/O."""

from __future__ import annotations

import math

from hoptui.daemon.state.newest_values import NewestValues
from hoptui.domain.columns import LOGGED_NAN, is_known, pack
from hoptui.domain.freshness import FORGET

S = 1_000_000_000


def fill(values: NewestValues, first: int, *rows: dict[str, float]) -> NewestValues:
    """Add rows one second apart, each in a message of its own."""
    for i, row in enumerate(rows, first):
        values.add(pack("run/r", [(i * S, i, row)]))
    return values


def test_a_metric_that_newer_rows_leave_out_is_outdated_after_its_usual_spacings() -> None:
    values = fill(NewestValues(), 0, *[{"loss": float(i), "lr": 1.0} for i in range(10)])
    fill(values, 10, *[{"loss": 0.5}] * FORGET)
    assert values.current() == {"loss": 0.5, "lr": 1.0}
    fill(values, 10 + FORGET, {"loss": 0.5})
    assert values.current() == {"loss": 0.5}
    assert values.known == {"loss": 0.5, "lr": 1.0}


def test_a_rare_metric_stays_current_between_its_rows() -> None:
    rows = [{"loss": 0.5} | ({"held_out": float(i)} if i % 20 == 0 else {}) for i in range(140)]
    values = fill(NewestValues(), 0, *rows)
    assert values.current() == {"loss": 0.5, "held_out": 120.0}


def test_many_rows_in_one_message_define_a_spacing() -> None:
    values = NewestValues()
    values.add(pack("run/r", [(i * S, i, {"loss": 1.0, "warmup": 2.0}) for i in range(10)]))
    values.add(pack("run/r", [(i * S, i, {"loss": 1.0}) for i in range(10, 20)]))
    assert values.current() == {"loss": 1.0}


def test_a_nan_that_was_logged_replaces_an_older_value() -> None:
    values = fill(NewestValues(), 0, {"loss": 2.5}, {"loss": LOGGED_NAN}, {"loss": math.nan})
    [loss] = values.current().values()
    assert is_known(loss)
    assert math.isnan(loss)


def test_phases_are_those_of_the_newest_iteration() -> None:
    whole = {"iteration_s": 1.0, "phase/update": 0.9}
    values = fill(NewestValues(), 0, whole | {"phase/evaluation": 0.5}, whole)
    assert values.current() == whole
    fill(values, 2, {"loss": 1.0})  # a row of its own: a value that arrived late from a GPU
    assert values.current() == whole | {"loss": 1.0}
    fill(values, 3, {"iteration_s": 2.0})
    assert values.current() == {"iteration_s": 2.0, "loss": 1.0}
