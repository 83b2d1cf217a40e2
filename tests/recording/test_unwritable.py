"""What no file can hold is left out and counted; everything else is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from hoptui.domain.columns import Columns
from hoptui.recording import Recording
from hoptui.recording.ingest import Boot
from hoptui.recording.tables import Tables
from tests import factories

MakeRows = Callable[..., Columns]


@pytest.mark.guarantee("unwritable")
def test_a_poison_record_is_put_aside_and_the_rest_is_written(
    recording: Recording, path: Path, rows: MakeRows
) -> None:
    recording.append(rows(3000))
    recording.event(factories.event(1, text="sound"))
    recording.event(factories.event(2, t=1 << 64))
    recording.command(factories.record("c1", seq=1))
    recording.command(factories.record("c2", seq=1 << 63))
    recording.command(factories.record("c3", seq=3, fields={"odd": object()}))
    recording.remember("sound", "value")
    recording.remember("odd", object())  # type: ignore[arg-type]
    recording.flush()
    assert recording.refused == 4
    assert recording.refused_because
    recording.append(rows(10, first=3001))
    recording.flush()
    assert recording.refused == 4
    with Recording.open(path) as reader:
        assert [s for part in reader.rows("host") for s in part.steps()] == list(range(1, 3011))
        assert [event.text for event in reader.events()] == ["sound"]
        assert [record.id for record in reader.commands()] == ["c1"]
        assert reader.recall("sound") == "value"


@pytest.mark.guarantee("unwritable")
def test_a_poison_row_is_put_aside(
    recording: Recording, rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Tables.add

    def add(tables: Tables, source: str, columns: Columns) -> None:
        if 7 in columns.steps():
            raise OverflowError("too large")
        plain(tables, source, columns)

    monkeypatch.setattr(Tables, "add", add)
    recording.append(rows(20))
    recording.flush()
    assert recording.refused == 1
    assert recording.refused_because == "OverflowError: too large"
    assert [s for part in recording.rows("host") for s in part.steps()] == [
        *range(1, 7),
        *range(8, 21),
    ]


@pytest.mark.parametrize("table", ["arrivals", "blocks"])
@pytest.mark.guarantee("damaged-rows")
def test_damage_in_old_rows_does_not_stop_new_ones(
    table: str, path: Path, boot: Boot, rows: MakeRows
) -> None:
    with Recording.create(path, boot=boot) as recording:
        recording.append(rows(20 * 600))
        recording.flush()
        recording.append(rows(100, first=12_001))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE {table} SET body = x'00'")
    with Recording.create(path, boot=boot) as recording:
        for i in range(20):
            recording.append(rows(1000, first=12_101 + 1000 * i))
            recording.flush()
        assert recording.refused == recording.dropped == 0
        first = 12_101 * 1_000_000_000
        found = [s for part in recording.rows("host", first) for s in part.steps()]
        assert found == list(range(12_101, 32_101))


def test_a_record_of_any_size_in_range_survives(recording: Recording, path: Path) -> None:
    sound = structs.replace(factories.event(1), t=(1 << 62) - 1, step=1 << 53, fields={"n": -(1 << 63)})
    recording.event(sound)
    recording.flush()
    assert recording.refused == 0
    with Recording.open(path) as reader:
        assert [(e.step, e.fields) for e in reader.events()] == [(1 << 53, {"n": -(1 << 63)})]
