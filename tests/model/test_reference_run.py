"""A recording to compare with: which there are, what is known of it, and how one that is written goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from hoptui.domain.columns import pack
from hoptui.model.reference_run import AGAIN_S, CannotCompare, Companion, comparable
from hoptui.recording import Recording
from hoptui.recording.library import RUN, KnownRun
from tests.model.recorded_run import BOOT, FIRST, ID, LENGTH_S, SECOND, STATE, write


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The state directory of this user, and another directory."""
    state, other = tmp_path / "state", tmp_path / "other"
    for directory in (state, other, tmp_path / "run"):
        directory.mkdir(mode=0o700)
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOPTUI_STATE_DIR", str(state))
    return state, other


def test_all_of_a_recording_is_known_to_its_end(tmp_path: Path) -> None:
    companion = Companion(write(tmp_path / "a.hoptui"), 0.0)
    try:
        assert companion.run.name == "ppo-recorded"
        steps = companion.store.steps(f"run/{ID}")
        assert steps is not None
        assert steps.last_t > FIRST + (LENGTH_S - 10) * SECOND
        assert not companion.renew(1e9)  # the run is over
    finally:
        companion.close()


def test_recordings_of_this_user_and_beside_a_file_but_not_of_the_run_itself(
    places: tuple[Path, Path],
) -> None:
    state, other = places
    write(state / f"{ID}.hoptui")
    (state / "damaged.hoptui").write_bytes(b"no recording")
    copied = other / "copy.hoptui"
    shutil.copy(state / f"{ID}.hoptui", copied)
    assert [(one.path.parent, one.name) for one in comparable("another")] == [(state, "ppo-recorded")]
    assert {one.path.parent for one in comparable("another", beside=copied)} == {state, other}
    assert comparable(ID) == []
    [found] = comparable("another")
    assert found.about.endswith("· finished")
    assert "10 m 0 s" in found.about or "9 m 5" in found.about


def test_what_cannot_be_compared_with_says_why(tmp_path: Path) -> None:
    empty = tmp_path / "empty.hoptui"
    empty.write_bytes(b"")
    for path in (tmp_path / "missing.hoptui", empty):
        with pytest.raises(CannotCompare, match=path.name):
            Companion(path, 0.0)


def test_a_run_that_goes_on_is_read_again_now_and_then(tmp_path: Path) -> None:
    path = tmp_path / "live.hoptui"
    living = msgspec.structs.replace(STATE, exit_reason="", exited_wall=0.0)
    with Recording.create(path, boot=BOOT) as recording:
        recording.remember(RUN, msgspec.json.encode(KnownRun(state=living, nonce="n", process_started=1)))
        recording.append(pack(f"run/{ID}", [(FIRST, 0, {"loss": 1.0})]))
        recording.flush()
        companion = Companion(path, 100.0)
        recording.append(pack(f"run/{ID}", [(FIRST + SECOND, 1, {"loss": 0.5})]))
        recording.flush()
        assert not companion.renew(100.0 + AGAIN_S / 2)
        before = companion.store
        assert companion.renew(100.0 + AGAIN_S)
        assert companion.store is not before
        series = companion.store.series(f"run/{ID}", "loss")
        assert series is not None
        assert series.last == 0.5
        companion.close()
