"""Rows of the table of runs: from recordings, and with what the daemon knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hoptui.domain.columns import pack
from hoptui.domain.details import RunDetails
from hoptui.domain.learning_metrics import better_end, learning_names
from hoptui.model import run_table
from hoptui.model.run_table import LiveRun, MetricSummary, RecordedRuns, RunRow, with_live
from hoptui.protocol.messages import RunState, Vital
from tests import factories
from tests.model.recorded_run import FIRST, ID, SECOND, STATE, WALL, at, write

ENDED = structs.replace(
    STATE, exit_reason="finished", exited_wall=WALL + 120, tags=("baseline",), started_wall=WALL + 50
)


def rows_of(name: str, values: list[dict[str, float]], every_s: float = 1.0) -> Any:
    return pack(name, [(at(i * every_s), i, row) for i, row in enumerate(values)])


def one(folder: Path, **fields: Any) -> RunRow:
    write(folder / f"{ID}.hoptui", **({"state": ENDED, "events": (), "commands": (), "node": None} | fields))
    [row], problem = RecordedRuns(folder).rows()
    assert problem == ""
    return row


def test_a_row_has_the_last_and_the_best_values(tmp_path: Path) -> None:
    losses = [3.0, 1.0, 0.25, 0.5]
    rows = rows_of(f"run/{ID}", [{"env_steps_per_s": 100.0 * loss, "loss": loss} for loss in losses])
    row = one(tmp_path, rows=(rows,))
    assert row.rate == MetricSummary("env_steps_per_s", 50.0, 300.0, "greatest")
    assert row.learning == (MetricSummary("loss", 0.5, 0.25, "least"),)
    assert (row.name, row.state, row.tags) == (ENDED.name, "exited", ("baseline",))
    assert (row.began, row.ended, row.lasted_s) == (WALL, WALL + 120, 120.0)
    assert row.path == tmp_path / f"{ID}.hoptui"


def test_a_metric_that_is_logged_rarely_has_its_last_value(tmp_path: Path) -> None:
    """Its last row is far before the end: two hours, of which the first look covers a minute."""
    every = [{"loss": 1.0 + i} | ({"validation_loss": 7.0 - i} if i in (3, 5) else {}) for i in range(720)]
    row = one(tmp_path, rows=(rows_of(f"run/{ID}", every, every_s=10.0),))
    assert {metric.name: metric.last for metric in row.learning} == {"validation_loss": 2.0, "loss": 720.0}
    assert row.learning[0].best == 2.0


def test_a_run_without_rows_has_no_figures(tmp_path: Path) -> None:
    row = one(tmp_path, rows=(), state=structs.replace(ENDED, exit_reason="", exited_wall=0.0, knobs=()))
    assert (row.rate, row.learning, row.state, row.ended, row.lasted_s) == (None, (), None, None, None)
    assert (row.config, row.diagnosis) == ({}, None)


def test_a_row_has_the_configuration(tmp_path: Path) -> None:
    row = one(tmp_path, details=RunDetails(config={"optimizer.lr": 0.1}, tags=("old",)))
    assert row.config == {"optimizer.lr": 0.1}
    assert row.tags == ("baseline",)


def test_a_recording_that_cannot_be_read_is_a_row_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "broken.hoptui").write_bytes(b"not a database" * 200)
    [row], _ = RecordedRuns(tmp_path).rows()
    assert (row.run, row.name, row.state) == ("broken", None, None)
    assert row.problem


def test_only_changed_files_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = RecordedRuns(tmp_path)
    one(tmp_path)
    first = table.rows()
    read: list[Path] = []
    monkeypatch.setattr(run_table, "_row", lambda path: read.append(path))
    assert table.rows() == first
    assert read == []
    (tmp_path / "other.hoptui").write_bytes(b"x")
    table.rows()
    assert read == [tmp_path / "other.hoptui"]
    (tmp_path / "other.hoptui").unlink()
    assert table.rows() == first


LIVE: RunState = factories.run("abcd2345", "ppo")


def test_a_live_run_has_the_newest_values() -> None:
    recorded = RunRow(
        run=LIVE.run,
        name="ppo",
        began=1000.0,
        rate=MetricSummary("env_steps_per_s", 10.0, 90.0, "greatest"),
        learning=(MetricSummary("loss", 0.5, 0.4, "least"), MetricSummary("policy_loss", 0.1, None, None)),
    )
    newest = {"env_steps_per_s": 95.0, "loss": 0.45}
    known = LiveRun(LIVE, Vital(state="live", step=5), newest, RunDetails(config={"lr": 0.1}))
    [row] = with_live([recorded], [known], 1060.0)
    assert (row.state, row.ended, row.lasted_s, row.config) == ("live", None, 60.0, {"lr": 0.1})
    assert row.rate == MetricSummary("env_steps_per_s", 95.0, 95.0, "greatest")
    assert row.learning == (
        MetricSummary("loss", 0.45, 0.4, "least"),
        MetricSummary("policy_loss", 0.1, None, None),
    )


def test_the_best_value_of_a_run_without_a_recording_is_unknown() -> None:
    [row] = with_live([], [LiveRun(LIVE, Vital(state="live"), {"loss": 0.5})], LIVE.started_wall + 9.0)
    assert row.learning == (MetricSummary("loss", 0.5, None, "least"),)
    assert (row.began, row.lasted_s, row.rate) == (LIVE.started_wall, 9.0, None)


def test_live_runs_are_first_and_then_the_newest() -> None:
    recorded = [RunRow(run=name, state="exited", began=began) for name, began in (("a", 1.0), ("b", 3.0))]
    known = LiveRun(structs.replace(LIVE, started_wall=2.0), Vital(state="paused"), {})
    assert [row.run for row in with_live(recorded, [known], 9.0)] == [LIVE.run, "b", "a"]


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("loss", "least"), ("train/val_loss", "least"), ("perplexity", "least"), ("tokens_per_s", "greatest"),
        ("episode_return", "greatest"), ("eval-accuracy", "greatest"), ("policy_loss", None),
        ("value_loss", None), ("temperature", None), ("score_error", None),
    ],
)  # fmt: skip
def test_which_end_is_better(name: str, better: str | None) -> None:
    assert better_end(name) == better


def test_metrics_of_learning() -> None:
    names = ["phase/a", "tokens_per_s", "lr", "grad_norm", "loss", "tokens_total", "accuracy", "mfu"]
    assert learning_names(names, "mfu") == ["accuracy", "loss", "grad_norm"]


def test_first_stamp_is_the_start(tmp_path: Path) -> None:
    row = one(tmp_path, rows=(pack(f"run/{ID}", [(FIRST + 2 * SECOND, 0, {"loss": 1.0})]),))
    assert row.began == WALL + 2
