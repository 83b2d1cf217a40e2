"""A recording of a node without a run: what its store knows, and what refuses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoptui.client.replay import Replay
from hoptui.model import report
from hoptui.model.recorded.store import RecordedStore
from hoptui.model.reference_run import CannotCompare, Companion
from hoptui.model.series import risen_share
from hoptui.recording import Recording, RecordingError
from hoptui.recording.library import entries
from tests.model import recorded_node
from tests.model.recorded_run import at


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return recorded_node.write(tmp_path / "node.hoptui")


def test_the_node_is_there_and_no_run(path: Path) -> None:
    with Recording.open(path) as recording:
        store = RecordedStore(recording)
        assert (store.run_id, store.name) == ("", recorded_node.STATE.host)
        store.seek(at(90))
        assert store.node is not None
        assert ([gpu.uuid for gpu in store.node.gpus], store.node.runs) == (["GPU-0", "GPU-1"], ())
        assert (store.run(""), store.vital(""), store.vitals, store.commands) == (None, None, {}, {})
        assert [event.code for event in store.events] == ["gpu.throttle"]
        assert store.latest("gpu/GPU-1")["encoder_busy"] == 0.0
        assert risen_share(store.series("gpu/GPU-0", "power_violation_s"), 10) == pytest.approx(50)
        store.seek(at(30))
        assert not store.events


def test_a_file_without_run_and_node_is_still_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.hoptui"
    with Recording.create(path) as recording:
        recording.append(recorded_node.gpu_rows(0))
    with Recording.open(path) as recording, pytest.raises(RecordingError, match="does not name its run"):
        RecordedStore(recording)


def test_what_needs_a_run_says_that_there_is_none(path: Path) -> None:
    with Recording.open(path) as recording, pytest.raises(RecordingError, match="without a run"):
        report.read(recording)
    with pytest.raises(CannotCompare, match="without a run"):
        Companion(path, 0.0)
    [entry] = entries(path.parent)
    assert entry.state is None
    assert "without a run" in entry.problem


def test_a_replay_finds_times_and_no_iterations(path: Path) -> None:
    replay = Replay(path)
    try:
        assert replay.find("+1m") - replay.store.span[0] == 60_000_000_000
        with pytest.raises(ValueError, match="no run"):
            replay.find("#12")
    finally:
        replay.close()
