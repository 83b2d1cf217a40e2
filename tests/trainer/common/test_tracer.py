from __future__ import annotations

import gc
import gzip
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import hoptui
from hoptui.integrations import torch_trace as module
from hoptui_trainer.common.trace_plan import TracePlan
from hoptui_trainer.common.tracer import Tracer
from tests.run_state import run_state


def notes(run: hoptui.Run) -> list[str]:
    return [note.text for note in run_state(run).notes]


def traced(run: hoptui.Run, tracer: Tracer, iterations: range) -> None:
    """Iterations of the run, each with one product of matrices."""
    for iteration in iterations:
        run.boundary(iteration)
        torch.ones(iteration + 1, 3) @ torch.ones(3, 2)
        tracer.end_iteration()


def events(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])


def products(path: Path) -> list[Any]:
    """The sizes of the first inputs of the products in a trace."""
    found = (event for event in events(path) if event.get("name") == "aten::mm")
    return [event["args"].get("Input Dims", [None])[0] for event in found]


def test_a_trace_covers_the_iterations_asked_for(tmp_path: Path) -> None:
    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path / "new", rank=1)
    assert run_state(run).declarations.profile_handler == tracer.start
    assert set(run_state(run).declarations.verbs()) >= {
        "profile",
        "profile.wait",
        "profile.warmup",
        "profile.stacks",
        "profile.shapes",
        "profile.memory",
    }
    traced(run, tracer, range(2))  # nobody asked
    run.boundary(2)
    tracer.start(2, wait=1, warmup=1, shapes=True)
    with pytest.raises(RuntimeError, match="4 iterations are left"):
        tracer.start(5)
    traced(run, tracer, range(2, 8))
    tracer.close()
    path = tmp_path / "new" / "lm-rank1.000000004.pt.trace.json.gz"
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert products(path) == [[5, 3], [6, 3]]
    (note,) = notes(run)
    assert str(path) in note
    tracer.close()
    assert len(notes(run)) == 1


def test_a_trace_of_the_first_iterations(tmp_path: Path) -> None:
    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path, rank=0, planned=TracePlan(steps=1, wait=2))
    traced(run, tracer, range(6))
    tracer.close()
    assert products(tmp_path / "lm-rank0.000000003.pt.trace.json.gz") == [None]  # without shapes


def test_stacks_and_memory_are_recorded_if_asked_for(tmp_path: Path) -> None:
    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path, rank=0)
    tracer.start(1, warmup=0, stacks=True)
    traced(run, tracer, range(1))
    run.boundary(1)
    tracer.start(1, warmup=0, memory=True)
    traced(run, tracer, range(1, 2))
    tracer.close()
    found = events(tmp_path / "lm-rank0.000000001.pt.trace.json.gz")
    assert any(event.get("name") == "[memory]" for event in found)
    found = events(tmp_path / "lm-rank0.000000000.pt.trace.json.gz")
    assert any(event.get("cat") == "python_function" and "traced" in event["name"] for event in found)


@pytest.mark.parametrize(("limit", "value"), [("MEMORY_BYTES", -(1 << 40)), ("SECONDS", -1.0)])
def test_a_trace_that_grows_too_large_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    monkeypatch.setattr(module, limit, value)
    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path, rank=0)
    tracer.start(100, shapes=True)
    traced(run, tracer, range(5))
    tracer.close()
    assert products(tmp_path / "lm-rank0.000000001.pt.trace.json.gz") == [[2, 3]]
    (note,) = notes(run)
    assert "99 fewer" in note


def test_a_run_that_ends_in_a_trace_writes_what_there_is(tmp_path: Path) -> None:
    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path, rank=0)
    tracer.start(100)
    traced(run, tracer, range(2))
    tracer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["lm-rank0.000000001.pt.trace.json.gz"]


def test_a_run_that_ends_before_its_trace_begins_writes_none(tmp_path: Path) -> None:
    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path, rank=0, planned=TracePlan(steps=3, wait=9))
    traced(run, tracer, range(2))
    tracer.close()
    assert list(tmp_path.iterdir()) == []
    assert [note.level for note in run_state(run).notes] == ["warning"]


def test_a_trace_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path / "file", rank=0)
    tracer.start(1, warmup=0)
    traced(run, tracer, range(1))
    tracer.close()
    assert [note.level for note in run_state(run).notes] == ["warning"]


def test_a_trace_that_cannot_be_compressed_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hoptui.integrations.torch_trace.gzip.open", full)
    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path, rank=0)
    tracer.start(1, warmup=0)
    traced(run, tracer, range(1))
    tracer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["lm-rank0.000000000.pt.trace.json"]
    assert [note.level for note in run_state(run).notes] == ["warning"]


def test_a_profiler_that_cannot_begin_or_end_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = "another profiler is at work"

    def busy(_: object) -> None:
        raise RuntimeError(cause)

    run = hoptui.connect("traced")
    with monkeypatch.context() as patched:
        patched.setattr("hoptui.integrations.torch_trace.profile.start", busy)
        tracer = Tracer(run, "lm", tmp_path, rank=0, planned=TracePlan(steps=1))
        with pytest.raises(RuntimeError, match=cause):
            tracer.start(1)
    traced(run, tracer, range(1))
    assert [note.level for note in run_state(run).notes] == ["warning"]
    tracer.start(1, warmup=0)
    with monkeypatch.context() as patched:
        patched.setattr("hoptui.integrations.torch_trace.profile.stop", busy)
        traced(run, tracer, range(1, 2))
    assert cause in notes(run)[1]
    assert traces_again(run, tracer, tmp_path)


def traces_again(run: hoptui.Run, tracer: Tracer, folder: Path) -> bool:
    """Return whether a trace of the next iteration, its third, is written."""
    tracer.start(1, warmup=0)
    traced(run, tracer, range(2, 3))
    tracer.close()
    return len(products(folder / "lm-rank0.000000001.pt.trace.json.gz")) == 1


def test_a_profiler_that_fails_amid_a_trace_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no more buffers")

    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path, rank=0)
    tracer.start(3)
    with monkeypatch.context() as patched:
        patched.setattr("hoptui.integrations.torch_trace.profile.step", fail)
        traced(run, tracer, range(2))
    assert notes(run) == ["no trace written: no more buffers"]
    assert traces_again(run, tracer, tmp_path)


def test_a_trace_that_torch_cannot_write_is_reported_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave_part(_: object, path: str) -> None:
        Path(f"{path}.tmp").write_text("{")  # what torch does on a full disk, beside a line on stderr

    monkeypatch.setattr("hoptui.integrations.torch_trace.profile.export_chrome_trace", leave_part)
    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path, rank=0)
    tracer.start(1, warmup=0)
    traced(run, tracer, range(1))
    tracer.close()
    assert list(tmp_path.iterdir()) == []
    (note,) = run_state(run).notes
    assert (note.level, note.text.split(":")[0]) == ("warning", "no trace written")


def test_a_trace_ends_before_an_iteration_that_would_exceed_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grows = iter(range(1000 << 20, 2000 << 20, 100 << 20))
    monkeypatch.setattr(module, "_resident", lambda: next(grows))
    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path, rank=0)
    tracer.start(5, shapes=True)
    traced(run, tracer, range(6))
    tracer.close()
    assert products(tmp_path / "lm-rank0.000000001.pt.trace.json.gz") == [[2, 3], [3, 3]]
    (note,) = notes(run)
    assert "3 fewer than asked for: one more would take more than 256 MB" in note


def test_what_is_recorded_is_freed_at_once_where_nobody_looks_for_cycles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[weakref.ref[Any]] = []
    export = torch.profiler.profile.export_chrome_trace

    def noted(self: Any, path: str) -> None:
        recorded.append(weakref.ref(self.profiler))
        export(self, path)

    monkeypatch.setattr("hoptui.integrations.torch_trace.profile.export_chrome_trace", noted)
    run = hoptui.connect("traced")
    tracer = Tracer(run, "lm", tmp_path, rank=0)
    gc.disable()
    try:
        tracer.start(1)
        traced(run, tracer, range(2))
        (found,) = recorded
        assert found() is None
    finally:
        gc.enable()
    tracer.close()


def test_a_torch_that_always_keeps_objects_for_python_traces_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    def old(**settings: Any) -> None:
        made.append(settings)
        raise TypeError("incompatible constructor arguments")

    monkeypatch.setattr("torch._C._profiler._ExperimentalConfig", old)
    assert module._no_python_events() is None
    assert made == [{"trace_only": True}]


def test_ranks_other_than_the_first_can_be_left_out(tmp_path: Path) -> None:
    run = hoptui.connect("traced")
    trace = module.TorchTrace(run, folder=tmp_path, rank=1, others=False)
    trace.start(1, warmup=0)
    run.boundary(0)
    trace.end_iteration()
    trace.close()
    assert list(tmp_path.iterdir()) == []
    assert notes(run) == []
