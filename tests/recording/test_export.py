"""Rows of all sources merged in time, for programs that have never heard of hoptui."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hoptui.domain.columns import Columns, pack
from hoptui.domain.stacks import StackFrame
from hoptui.domain.stacks import pack as pack_stacks
from hoptui.recording import Recording, RecordingError, export, stack_minutes, tables
from hoptui.recording.tables import ROWS
from tests import factories

SECOND = 1_000_000_000
MakeRows = Callable[..., Columns]


@pytest.fixture
def mixed(recording: Recording) -> Recording:
    """A GPU at 2 Hz, a run at 1 Hz, a host once; an event and a command."""
    recording.append(
        pack(
            "gpu/GPU-a",
            [(t * SECOND // 2, -1, {"power_w": 100.5 + t, "busy": math.nan}) for t in range(2, 8)],
        )
    )
    recording.append(pack("gpu/GPU-b", [(3 * SECOND, -1, {"power_w": 7.25, "sm_active": 0.1})]))
    recording.append(
        pack("run/r1", [(t * SECOND + 1, t, {"loss": 1 / t, 'phase/a, "b"': math.inf}) for t in range(1, 4)])
    )
    recording.append(pack("host", [(2 * SECOND, -1, {"step": 5.0})]))
    recording.flush()
    recording.event(factories.event(text="hier: ✓", t=2 * SECOND, run="r1", step=2))
    recording.command(factories.record("c", "r1", knob="lr", wanted=0.1, t=2 * SECOND + 5, seq=2))
    return recording


def as_csv(recording: Recording, **wanted: Any) -> list[list[str]]:
    file = io.StringIO(newline="")
    export.write_csv(recording, file, export.ExportRequest(**wanted))
    return list(csv.reader(io.StringIO(file.getvalue(), newline="")))


def as_json(recording: Recording, **wanted: Any) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    file = io.StringIO()
    export.write_jsonl(recording, file, export.ExportRequest(**wanted))
    return [json.loads(line, parse_constant=refuse) for line in file.getvalue().splitlines()]


def test_csv_has_one_header_and_the_rows_in_order(mixed: Recording) -> None:
    head, *lines = as_csv(mixed)
    assert head == [
        "t_s",
        "utc",
        "source",
        "step",
        "power_w",
        "busy",
        "sm_active",
        "step (metric)",
        "loss",
        'phase/a, "b"',
    ]
    assert lines[0] == ["0.000000", "1970-01-12T13:46:41.000Z", "gpu/GPU-a", "", "102.5", "", "", "", "", ""]
    assert lines[1] == ["0.000000", "1970-01-12T13:46:41.000Z", "run/r1", "1", "", "", "", "", "1.0", "inf"]
    assert [line[0] for line in lines] == sorted(line[0] for line in lines)
    assert len(lines) == 11
    assert [line[7] for line in lines if line[2] == "host"] == ["5.0"]
    assert "nan" not in {cell for line in lines for cell in line}


@pytest.mark.parametrize(
    ("wanted", "sources", "head"),
    [
        ({"sources": ("gpu",)}, {"gpu/GPU-a", "gpu/GPU-b"}, ["power_w", "busy", "sm_active"]),
        ({"sources": ("gpu/GPU-b", "host")}, {"gpu/GPU-b", "host"},
         ["power_w", "sm_active", "step (metric)"]),
        ({"sources": ("gp",)}, set(), []),
        ({"names": ("loss", "power_w", "nothing")}, {"gpu/GPU-a", "gpu/GPU-b", "run/r1"},
         ["loss", "power_w"]),
        ({"t0": 3 * SECOND, "t1": 3 * SECOND + 1}, {"gpu/GPU-a", "gpu/GPU-b", "run/r1"}, None),
        ({"t0": 3 * SECOND + 2}, {"gpu/GPU-a"}, None),
    ],
)  # fmt: skip
def test_what_is_asked_for_and_no_more(
    mixed: Recording, wanted: dict[str, Any], sources: set[str], head: list[str] | None
) -> None:
    header, *lines = as_csv(mixed, **wanted)
    assert {line[2] for line in lines} == sources
    if head is not None:
        assert header[4:] == head
    rows = [line for line in as_json(mixed, **wanted) if line["type"] == "row"]
    assert [row["source"] for row in rows] == [line[2] for line in lines]


def test_jsonl_has_rows_events_and_commands_in_order(mixed: Recording) -> None:
    lines = as_json(mixed)
    assert [line["type"] for line in lines].count("row") == 11
    assert [line["t_s"] for line in lines] == sorted(line["t_s"] for line in lines)
    assert lines[1] == {
        "type": "row",
        "t_s": 0.0,
        "utc": "1970-01-12T13:46:41.000Z",
        "source": "run/r1",
        "step": 1,
        "values": {"loss": 1.0, 'phase/a, "b"': None},
    }
    assert lines[0]["step"] is None
    assert lines[0]["values"] == {"power_w": 102.5}
    (event,) = (line for line in lines if line["type"] == "event")
    assert (event["text"], event["kind"], event["step"], event["t_s"]) == ("hier: ✓", "note", 2, 1.0)
    (command,) = (line for line in lines if line["type"] == "command")
    assert (command["knob"], command["wanted"]) == ("lr", 0.1)
    assert {line["type"] for line in as_json(mixed, t0=3 * SECOND)} == {"row"}


def test_parquet_has_nulls_and_types(
    mixed: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(export, "GROUP_ROWS", 4)
    path = tmp_path / "r.parquet"
    export.write_parquet(mixed, path)
    file = parquet.ParquetFile(path)
    assert file.num_row_groups == 3
    table = file.read().to_pylist()
    assert [row["source"] for row in table] == [line[2] for line in as_csv(mixed)[1:]]
    assert table[1] == {
        "t_s": 0.0,
        "utc": datetime(1970, 1, 12, 13, 46, 41, tzinfo=UTC),
        "source": "run/r1",
        "step": 1,
        "power_w": None,
        "busy": None,
        "sm_active": None,
        "step (metric)": None,
        "loss": 1.0,
        'phase/a, "b"': math.inf,
    }
    assert {str(field.type) for field in file.schema_arrow if "metric" in field.name} == {"double"}


def test_parquet_without_pyarrow_says_what_to_install(
    mixed: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RecordingError, match=r"Parquet needs pyarrow: pip install 'hoptui\[parquet\]'"):
        export.write_parquet(mixed, tmp_path / "r.parquet")
    assert not (tmp_path / "r.parquet").exists()


def test_an_empty_recording(recording: Recording, tmp_path: Path) -> None:
    assert as_csv(recording) == [["t_s", "utc", "source", "step"]]
    assert as_json(recording) == []
    pytest.importorskip("pyarrow")
    export.write_parquet(recording, tmp_path / "r.parquet")
    assert (tmp_path / "r.parquet").exists()


def test_blocks_are_read_when_it_is_their_turn(
    recording: Recording, long_rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in ("gpu/GPU-1", "gpu/GPU-2"):
        recording.append(long_rows(8 * ROWS, source=source))
    recording.flush()
    opened: list[str] = []

    decode = tables.decode

    def spied(source: str, *rest: Any) -> Columns:
        opened.append(source)
        return decode(source, *rest)

    monkeypatch.setattr(tables, "decode", spied)
    reading = export.rows(recording)
    seen = []
    for turn in range(1, 9):
        seen += list(itertools.islice(reading, 2 * ROWS))
        assert len(opened) <= 2 * turn + 1
    assert opened.count("gpu/GPU-1") == opened.count("gpu/GPU-2") == 8
    assert [row.t for row in seen] == sorted(2 * list(range(SECOND, (8 * ROWS + 1) * SECOND, SECOND)))
    assert list(reading) == []


def test_jsonl_has_the_stack_samples_of_each_minute(mixed: Recording) -> None:
    main, step = StackFrame("train.py", "main", 3), StackFrame("train.py", "step", 7, call="item")
    samples = pack_stacks({(main, step): 4}, 0, 2 * SECOND, left_out=1)
    mixed.stacks(2 * SECOND, stack_minutes.encode({0: [samples], 1: [samples]}, 2 * SECOND), 10)
    mixed.stacks(3 * SECOND, b"damaged", 1)
    found = [line for line in as_json(mixed) if line["type"] == "stacks"]
    assert [(line["t_s"], line["rank"]) for line in found] == [(1.0, 0), (1.0, 1)]
    assert (found[0]["seconds"], found[0]["left_out"]) == (2.0, 1)
    frames = [{"file": "train.py", "line": n, "function": f} for f, n in (("main", 3), ("step", 7))]
    assert found[0]["stacks"] == [{"count": 4, "frames": frames, "call": "item"}]
    for wanted in ({"sources": ("run",)}, {"names": ("loss",)}, {"t1": SECOND}, {"t0": 4 * SECOND}):
        assert "stacks" not in {line["type"] for line in as_json(mixed, **wanted)}
