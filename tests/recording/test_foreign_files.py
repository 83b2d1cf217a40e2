"""A recording without a line of this package: what the comments in its schema say is enough to read it."""

from __future__ import annotations

import json
import sqlite3
import struct
import zlib
from array import array
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hoptui.domain.columns import Columns, pack
from hoptui.recording import Recording, RecordingError
from tests import factories

SECOND = 1_000_000_000
MakeRows = Callable[..., Columns]
EVENTS = "SELECT utc, kind, step, text FROM event_log"
COMMANDS = """
SELECT utc, user, author, knob, before, wanted, effective, stage, step, gain, why FROM command_log
"""


def test_new_rows_events_and_commands(recording: Recording, path: Path, rows: MakeRows) -> None:
    """As the comments in the schema say, without a line of this package."""
    recording.append(rows(4))
    recording.event(
        factories.event(1, "checkpoint", "checkpoint written", t=SECOND, wall=1e6 + 1, run="r1", step=7)
    )
    recording.command(
        factories.change(
            "c1",
            "r1",
            epoch=2,
            effective=8.0,
            version=None,
            why="less memory",
            measured=factories.measured(0.061, 0.012, metric="loss", settled=False),
            seq=2,
        )
    )
    recording.close()
    db = sqlite3.connect(path)
    try:
        n, names, body = db.execute("SELECT rows, names, body FROM arrivals").fetchone()
        raw = array("q", zlib.decompress(body))
        assert list(raw[:n]) == [SECOND, 2 * SECOND, 3 * SECOND, 4 * SECOND]
        assert list(raw[n : 2 * n]) == [1, 2, 3, 4]
        assert json.loads(names) == ["x", "y"]
        assert list(array("d", raw[2 * n : 3 * n].tobytes())) == [1.0, 2.0, 3.0, 4.0]
        assert db.execute(EVENTS).fetchall() == [
            ("1970-01-12 13:46:41", "checkpoint", 7, "checkpoint written")
        ]
        assert db.execute(COMMANDS).fetchall() == [
            (
                "1970-01-12 13:46:40",
                "ana",
                "person",
                "grad_accum",
                4,
                8,
                8.0,
                "applied",
                1205,
                0.061,
                "less memory",
            )
        ]
    finally:
        db.close()


def test_a_block(recording: Recording, path: Path) -> None:
    """Byte by byte, as the comments on the table `blocks` say it."""
    given = [
        (
            i * SECOND + i * i % 7,
            i,
            {"watts": 600 + i % 13 / 100, "drift": float(1_000_000 * i), "loss": 1 / (i + 1), "fixed": 0.25}
            | ({"seldom": float(i % 5)} if i % 2 else {}),
        )
        for i in range(1, 601)
    ]
    recording.append(pack("gpu/GPU-1", given))
    recording.close()
    with closing(sqlite3.connect(path)) as db:
        names, entries, body = db.execute(
            "SELECT names, entries, body FROM blocks JOIN layouts ON layouts.id = layout"
        ).fetchone()
    raw = zlib.decompress(body)
    start = 4 + int.from_bytes(raw[:4], "little")
    directory = json.loads(raw[4:start])
    planes = iter(range(len(directory["order"])))

    def plane() -> bytes:
        place = start + entries * directory["order"].index(next(planes))
        return raw[place : place + entries]

    columns: list[list[float | int | None]] = []
    for number, column in enumerate(directory["columns"]):
        if column["is"] == "constant":
            columns.append([column["value"]] * entries)
            continue
        known = plane() if column.get("gaps") else b"\1" * entries
        taken = [plane() for _ in range(column["planes"])]
        cells = [bytes(p[i] for p in taken) for i in range(entries)]
        if column["is"] == "bits":
            code = ({4: "<f", 8: "<d"} if number >= 2 else {8: "<q"})[column["planes"]]
            columns.append([struct.unpack(code, cell)[0] for cell in cells])
            continue
        found: list[float | int | None] = []
        n = column["start"]
        for cell, there in zip(cells, known, strict=True):
            z = int.from_bytes(cell, "little")
            step = column.get("unit", 1) * (-(z + 1) // 2 if z % 2 else z // 2)
            n = n + column["slope"] + step if "slope" in column else column["start"] + step
            found.append((n / 10 ** column.get("digits", 0) if number >= 2 else n) if there else None)
        columns.append(found)
    assert {column["is"] for column in directory["columns"]} == {"constant", "whole", "bits"}
    t, step, *values = columns
    assert [
        (a, b, {name: v[i] for name, v in zip(json.loads(names), values, strict=True) if v[i] is not None})
        for i, (a, b) in enumerate(zip(t, step, strict=True))
    ] == given


@pytest.mark.parametrize("table", ["events", "commands"])
def test_a_record_nested_without_end_is_damage(tmp_path: Path, table: str) -> None:
    path = tmp_path / "r.hoptui"
    Recording.create(path).close()
    deep = '{"fields":' + '{"a":' * 100_000 + "1" + "}" * 100_001
    with sqlite3.connect(path) as db:
        first = "1, 1" if table == "events" else "'a', 1"
        db.execute(f"INSERT INTO {table} VALUES ({first}, ?)", (deep,))
    db.close()
    with Recording.open(path) as recording, pytest.raises(RecordingError, match="is damaged"):
        recording.events() if table == "events" else recording.commands()
