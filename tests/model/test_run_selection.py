"""Filter, order and groups of the table of runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pytest

from hoptui.model.run_selection import (
    FIXED,
    MOST_NAMED,
    Selection,
    WrongSelection,
    cell,
    conditions,
    differing,
    named_columns,
    ordered_by,
    unknown_columns,
)
from hoptui.model.run_table import MetricSummary, RunRow


def row(name: str, **fields: object) -> RunRow:
    given: dict[str, object] = {"run": f"id-{name}", "name": name, "state": "exited"} | fields
    return RunRow(**given)  # type: ignore[arg-type]


LOSS = MetricSummary("loss", 0.5, 0.25, "least")
RUNS = (
    row("ppo-a", tags=("baseline", "a100"), config={"optimizer.lr": 0.001, "batch": 64}, lasted_s=90.0),
    row("ppo-b", tags=("sweep",), config={"optimizer.lr": 0.0001, "name": "resnet"}, lasted_s=7200.0),
    row("lm", state="live", knobs={"lr": 0.01}, learning=(LOSS,), began=1_780_000_000.0),
)


def selected(typed: str, rows: Sequence[RunRow] = RUNS) -> str:
    found = Selection(conditions(typed)).of(rows)
    return " ".join(str(one.name) for _, group in found for one in group)


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("", "ppo-a ppo-b lm"),
        ("tag=baseline", "ppo-a"),
        ("tags~A1", "ppo-a"),
        ("tag!=baseline", "ppo-b lm"),
        ("lr<0.001", "ppo-b"),
        ("lr<=1e-3", "ppo-a ppo-b"),
        ("lr>0.001", "lm"),
        ("optimizer.lr=0.001", "ppo-a"),
        ("config.lr>=0", "ppo-a ppo-b"),
        ("name~PPO", "ppo-a ppo-b"),
        ("ppo", "ppo-a ppo-b"),
        ("id=id-lm", "lm"),
        ("state=live", "lm"),
        ("loss<1", "lm"),
        ("best.loss=0.25", "lm"),
        ("last.loss=0.25", ""),
        ("metric>0.4", "lm"),
        ("config.name=resnet", "ppo-b"),
        ("duration>=2h", "ppo-b"),
        ("duration<1.5m", ""),
        ("duration=90s", "ppo-a"),
        ("batch!=64", "ppo-b lm"),
        ("batch<many", ""),
        ("nothing<1", ""),
        ("name~ppo lr<0.001", "ppo-b"),
        ("'name=ppo-a'", "ppo-a"),
    ],
)
def test_filters(typed: str, names: str) -> None:
    assert selected(typed) == names


def test_a_time_is_a_date() -> None:
    day = datetime.fromtimestamp(1_780_000_000.0).date().isoformat()
    assert selected(f"started>={day}") == "lm"
    assert selected("started<2001-01-01") == ""


@pytest.mark.parametrize("typed", ["'open", "=3", "lr<", "~ppo"])
def test_what_cannot_be_read(typed: str) -> None:
    with pytest.raises(WrongSelection):
        conditions(typed)


def test_order_has_unknown_values_last() -> None:
    def names(sort: str) -> list[str | None]:
        column, falling = ordered_by(sort)
        [(_, found)] = Selection((), column, falling).of(RUNS)
        return [one.name for one in found]

    assert names("lr") == ["ppo-b", "ppo-a", "lm"]
    assert names("-lr") == ["lm", "ppo-a", "ppo-b"]
    assert names("batch") == names("-batch") == ["ppo-a", "ppo-b", "lm"]
    assert names("name") == ["lm", "ppo-a", "ppo-b"]


def test_groups() -> None:
    found = Selection(group="tag").of(RUNS)
    assert [(value, len(rows)) for value, rows in found] == [("baseline a100", 1), ("sweep", 1), ("", 1)]


def test_a_short_name_that_is_not_unique_is_unknown() -> None:
    assert cell(row("x", config={"a.lr": 1, "b.lr": 2}), "lr") is None


def test_a_column_that_no_run_has_is_told_with_those_there_are() -> None:
    (near,) = unknown_columns(RUNS, ["name", "batches"])
    assert near == "no run has a value of batches (did you mean batch?)"
    (far,) = unknown_columns(RUNS, ["zzz"])
    assert far.startswith("no run has a value of zzz; columns: name, run, state,")
    assert far.endswith("optimizer.lr, batch, lr, loss"), "not best.loss"
    many = row("wide", config={f"setting{n}": n for n in range(40)})
    (cut,) = unknown_columns((many,), ["zzz"])
    assert cut.endswith(f"setting{MOST_NAMED - len(FIXED) - 1} and {40 + len(FIXED) - MOST_NAMED} more")


def test_columns() -> None:
    assert [name for name in named_columns(RUNS) if "." in name or name in ("lr", "loss")] == [
        "optimizer.lr", "lr", "loss", "best.loss",
    ]  # fmt: skip
    assert differing(RUNS[:2]) == ["optimizer.lr", "batch", "name"]
    assert differing([RUNS[0], RUNS[0]]) == []
