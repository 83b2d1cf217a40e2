"""A recording that is opened: what is there without rows, and what is refused or told."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hoptui.domain.columns import pack
from hoptui.domain.facts import fact
from hoptui.model.recorded.store import RecordedStore
from hoptui.recording import Recording, RecordingError
from tests.model.recorded_run import (
    EVENTS,
    FIRST,
    GPU,
    ID,
    LENGTH_S,
    NODE_STATE,
    STATE,
    at,
    event,
    gpu_rows,
    run_rows,
    write,
)

SOURCE = f"run/{ID}"


def test_a_gpu_was_there_as_long_as_it_gave_rows(tmp_path: Path) -> None:
    rows = (run_rows(), gpu_rows(200))
    with Recording.open(write(tmp_path / "r.hoptui", rows=rows)) as recording:
        store = RecordedStore(recording)
        problems = []
        for seconds in (100, 199, 300):
            store.seek(at(seconds))
            assert store.node is not None
            problems.append(store.node.gpus[0].problem)
    assert problems == [None, None, GPU.problem]


def test_without_a_remembered_node_the_sources_tell(tmp_path: Path) -> None:
    with Recording.open(write(tmp_path / "r.hoptui", node=None)) as recording:
        node = RecordedStore(recording).node
    assert node is not None
    assert [(g.uuid, g.index, g.name) for g in node.gpus] == [("GPU-0", 0, "model not recorded")]
    assert (node.host, node.gpu_problem) == ("", None)
    with Recording.open(write(tmp_path / "n.hoptui", node=None, rows=(run_rows(),))) as recording:
        node = RecordedStore(recording).node
    assert node is not None
    assert node.gpu_problem == fact("gpu.none_recorded")


def test_a_recording_without_a_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.hoptui"
    Recording.create(path).close()
    with Recording.open(path) as recording, pytest.raises(RecordingError, match="does not name its run"):
        RecordedStore(recording)


def test_an_empty_recording_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "r.hoptui", rows=(), events=(), commands=())
    with Recording.open(path) as recording, pytest.raises(RecordingError, match="nothing in it yet"):
        RecordedStore(recording)


@pytest.mark.parametrize("key", ["run", "node"])
def test_a_damaged_memory_is_told(tmp_path: Path, key: str) -> None:
    path = write(tmp_path / "r.hoptui")
    with Recording.create(path) as recording:
        recording.remember(key, b"{")
    with Recording.open(path) as recording, pytest.raises(RecordingError, match="is damaged"):
        RecordedStore(recording)


def test_the_span_holds_what_happened_without_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "r.hoptui", rows=(), commands=(), events=(EVENTS[0], event(7, "note", "x")))
    with Recording.open(path) as recording:
        store = RecordedStore(recording)
        store.seek(at(7))
        vital = store.vital(ID)
    assert store.span == (FIRST, at(7))
    assert vital is not None
    assert vital.step == 0


def test_a_run_that_goes_on_is_shown_up_to_the_opening(tmp_path: Path) -> None:
    path = tmp_path / "r.hoptui"
    state = msgspec.structs.replace(STATE, exit_reason="", exited_wall=0.0)
    write(path, state=state, rows=(run_rows(100),), events=EVENTS[:1], commands=(), node=NODE_STATE)
    with Recording.create(path) as writer, Recording.open(path) as recording:
        store = RecordedStore(recording)
        writer.append(pack(SOURCE, [(at(200), 200, {"iteration_s": 1.0})]))
        writer.flush()
        store.seek(at(LENGTH_S))
        vital = store.vital(ID)
    assert store.now() == at(99.5)
    assert vital is not None
    assert (vital.state, vital.step) == ("live", 100)
