"""`hoptui import` without the libraries: rows, recordings, the log of wandb, and what is refused."""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptui.cli.foreign_runs import tensorboard_events, wandb_logs
from hoptui.cli.foreign_runs.foreign_run import ForeignRun, merged, record
from hoptui.cli.foreign_runs.wandb_logs import BLOCK, CHUNK, HEADER, IDENT, DamagedLogError, records
from hoptui.cli.main import main
from hoptui.domain.columns import is_known
from hoptui.recording import Recording, library

WALL = 1_780_000_000.0


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Directories of its own."""
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOPTUI_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def logged(place: Path, **fields: object) -> ForeignRun:
    rows = merged((WALL + i, i, name, i / 10) for i in range(100) for name in ("loss", "phase/eval"))
    return ForeignRun(place=place, name="mine", rows=rows, **fields)  # type: ignore[arg-type]


def test_neighbours_of_one_step_are_a_row() -> None:
    values = [(2.0, 1, "loss", 0.5), (1.0, 0, "loss", 0.7), (1.1, 0, "lr", 1e-3), (2.5, 1, "loss", 0.4)]
    assert merged(values) == [
        (1.0, 0, {"loss": 0.7, "lr": 1e-3}),
        (2.0, 1, {"loss": 0.5}),
        (2.5, 1, {"loss": 0.4}),
    ]


def test_a_nan_that_was_logged_is_known_and_a_wrong_time_is_left_out() -> None:
    ((_, _, values),) = merged([(1.0, 0, "loss", math.nan), (math.nan, 1, "loss", 1.0), (1e300, 2, "a", 1.0)])
    assert is_known(values["loss"])


@given(
    st.lists(
        st.tuples(st.floats(0, 1e9), st.integers(0, 3), st.sampled_from("ab"), st.just(1.0)), max_size=30
    )
)
def test_no_value_is_lost(values: list[tuple[float, int, str, float]]) -> None:
    rows = merged(values)
    assert sum(len(row) for _, _, row in rows) == len(values)
    assert [wall for wall, _, _ in rows] == sorted(wall for wall, _, _ in rows)


def test_a_recording_has_the_wall_times_and_what_is_known(tmp_path: Path) -> None:
    run = logged(
        tmp_path, config={"a": {"lr": 0.1}, "api_key": "0123456789abcdef"}, summary={"best": 1}, tags=["t"]
    )
    record(run, path := tmp_path / "mine.hoptui")
    with Recording.open(path) as recording:
        known = library.known_run(recording)
        assert known is not None
        rows = [row for part in recording.rows(f"run/{run.id}") for row in part.rows()]
        first = rows[0][0] + recording.wall_offset_ns
        assert recording.sources().keys() == {f"run/{run.id}"}
    assert first / 1e9 == pytest.approx(WALL, abs=1e-6)
    assert (len(rows), rows[-1][1]) == (100, 99)
    assert rows[50][2] == {"loss": 5.0, "logged/phase/eval": 5.0}, "it is no phase of an iteration"
    assert (known.state.exit_reason, known.state.exited_wall) == ("imported", WALL + 99)
    assert known.details is not None
    assert known.details.config["a.lr"] == 0.1
    assert "0123456789abcdef" not in json.dumps(known.details.config)
    assert known.details.summary == {"best": 1}


def test_a_place_has_one_id(tmp_path: Path) -> None:
    assert logged(tmp_path / "a").id == logged(tmp_path / "a").id != logged(tmp_path / "b").id
    assert len(logged(tmp_path).id) == 8


# the log of wandb -------------------------------------------------------------------------------------------


def written(path: Path, bodies: list[bytes]) -> Path:
    """A log as wandb writes it."""
    out = bytearray(HEADER.pack(IDENT, 0xBEE1, 0))
    for body in bodies:
        rest, kind = body, 1
        while True:
            left = BLOCK - len(out) % BLOCK
            if left < CHUNK.size:
                out += bytes(left)
                continue
            part, rest = rest[: left - CHUNK.size], rest[left - CHUNK.size :]
            begun = kind in (2, 3)
            kind = (3 if begun else 2) if rest else (4 if begun else 1)
            out += CHUNK.pack(zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
            if not rest:
                break
    path.write_bytes(out)
    return path


@given(st.lists(st.integers(0, 3 * BLOCK), max_size=6))
def test_records_of_any_size_are_read(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    bodies = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    path = written(tmp_path_factory.mktemp("log") / "run-a.wandb", bodies)
    assert list(records(path)) == bodies


@pytest.mark.parametrize("harm", [lambda raw: raw[:-3], lambda raw: raw[:-1] + b"?", lambda raw: b"no log"])
def test_a_damaged_log_ends_with_an_error(tmp_path: Path, harm: object) -> None:
    path = written(tmp_path / "run-a.wandb", [b"one", b"two"])
    path.write_bytes(harm(path.read_bytes()))  # type: ignore[operator]
    found: list[bytes] = []
    with pytest.raises(DamagedLogError):
        found.extend(records(path))
    assert HEADER.size == struct.calcsize("<4sHB") == 7


# the command ------------------------------------------------------------------------------------------------


def test_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events.out.tfevents.1.host").touch()
    for module in (
        "tensorboard.backend.event_processing.event_file_loader",
        "tensorboard",
        "wandb",
        "wandb.proto",
    ):
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["import", str(tmp_path)]) == 3
    assert "pip install 'hoptui[tensorboard]'" in capsys.readouterr().err
    (tmp_path / "events.out.tfevents.1.host").unlink()
    written(tmp_path / "run-a.wandb", [])
    assert main(["import", str(tmp_path)]) == 3
    assert "pip install 'hoptui[wandb]'" in capsys.readouterr().err


def test_runs_are_listed_once_they_are_imported(
    tmp_path: Path, places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = ForeignRun(place=tmp_path / "empty", name="empty")
    monkeypatch.setattr(tensorboard_events, "runs", lambda root: iter([logged(tmp_path / "a"), empty]))
    monkeypatch.setattr(wandb_logs, "runs", lambda root: iter([]))
    assert main(["import", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert Path(report["recording"]) == places / f"{report['run']}.hoptui"
    assert (report["rows"], report["metrics"]) == (100, ["loss", "phase/eval"])
    assert "empty has no scalars" in err
    assert main(["import", str(tmp_path)]) == 1
    assert "is imported already" in capsys.readouterr().err
    assert main(["import", str(tmp_path), "--force"]) == 0
    capsys.readouterr()
    assert main(["runs", "--json"]) == 0
    assert report["run"] in capsys.readouterr().out


def test_one_file_is_for_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [logged(tmp_path / "a"), logged(tmp_path / "b")]
    monkeypatch.setattr(tensorboard_events, "runs", lambda root: iter(both))
    assert main(["import", str(tmp_path), "-o", str(tmp_path / "x.hoptui")]) == 2
    monkeypatch.setattr(tensorboard_events, "runs", lambda root: iter(both[:1]))
    assert main(["import", str(tmp_path), "-o", str(tmp_path / "x.hoptui")]) == 0
    assert (tmp_path / "x.hoptui").exists()
    capsys.readouterr()


def test_a_directory_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(tmp_path)]) == 3
    assert "has neither event files of TensorBoard nor .wandb files" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "none")]) == 3
    capsys.readouterr()
