from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hoptui
from hoptui_trainer.common.tracer import Tracer
from tests.run_state import run_state

CPU = torch.device("cpu")


def notes(run: hoptui.Run) -> list[str]:
    return [note.text for note in run_state(run).notes]


def test_a_trace_covers_the_iterations_asked_for_and_is_told(tmp_path: Path) -> None:
    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path / "new", CPU, rank=1)
    assert "profile" in run_state(run).declarations.verbs()
    assert run_state(run).declarations.profile_handler == tracer.start
    tracer.end_iteration()  # nobody asked
    tracer.start(2)
    with pytest.raises(RuntimeError, match="2 iterations are left"):
        tracer.start(5)
    tracer.end_iteration()
    assert notes(run) == []
    tracer.end_iteration()
    path = tmp_path / "new" / "lm-trace-000000000-rank1.json.gz"
    assert path.stat().st_size > 0
    assert notes(run) == [f"trace written: {path}"]
    tracer.close()
    assert len(notes(run)) == 1


def test_a_run_that_ends_in_a_trace_writes_what_there_is(tmp_path: Path) -> None:
    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path, CPU, rank=0)
    tracer.start(100)
    tracer.end_iteration()
    tracer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["lm-trace-000000000-rank0.json.gz"]


def test_a_trace_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path / "file", CPU, rank=0)
    tracer.start(1)
    tracer.end_iteration()
    assert notes(run)[0].startswith("no trace written: ")


def test_a_profiler_that_cannot_begin_or_end_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = "another profiler is at work"

    def busy(_: object) -> None:
        raise RuntimeError(cause)

    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path, CPU, rank=0)
    with monkeypatch.context() as patched:
        patched.setattr("hoptui_trainer.common.tracer.profile.start", busy)
        with pytest.raises(RuntimeError, match=cause):
            tracer.start(1)
    tracer.end_iteration()
    assert notes(run) == []
    tracer.start(1)
    with monkeypatch.context() as patched:
        patched.setattr("hoptui_trainer.common.tracer.profile.stop", busy)
        tracer.end_iteration()
    assert notes(run) == [f"no trace written: {cause}"]
    tracer.start(1)
    tracer.end_iteration()
    assert notes(run)[1].startswith("trace written: ")
