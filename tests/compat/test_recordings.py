"""What a release cannot read of another one's recording it refuses in one sentence."""

from __future__ import annotations

import math
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from hoptui.domain.stacks import StackFrame, pack
from hoptui.recording import Recording, stored_json
from hoptui.recording.database import SCHEMA
from hoptui.recording.library import RUN, KnownRun
from hoptui.recording.stack_minutes import encode
from tests import factories
from tests.compat import previous
from tests.compat.conftest import MixedNode, Release
from tests.factories import SECOND
from tests.model import recorded_run

RELEASES: tuple[Release, ...] = ("newest", "previous")
READERS = ("report", "export")


@pytest.mark.guarantee("other-release")
@pytest.mark.parametrize("release", RELEASES)
def test_a_recording_of_a_schema_to_come(mixed: MixedNode, tmp_path: Path, release: Release) -> None:
    path = recorded_run.write(tmp_path / "later.hoptui")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    for command in READERS:
        ended = mixed.hoptui(release, command, str(path))
        assert (ended.returncode, ended.stdout) == (1, ""), command
        assert ended.stderr.count("\n") == 1
        assert "newer hoptui" in ended.stderr


@pytest.mark.guarantee("other-release")
@pytest.mark.parametrize("release", RELEASES)
def test_a_recording_with_a_value_that_diverged(mixed: MixedNode, tmp_path: Path, release: Release) -> None:
    """Version 0.1 does not know how NaN is stored since."""
    path = tmp_path / "diverged.hoptui"
    state = factories.run(knobs=(factories.knob("lr", math.nan, default=0.1),), exit_reason="finished")
    with Recording.create(path) as recording:
        recording.remember(RUN, stored_json.encode(KnownRun(state=state, nonce="n", process_started=1)))
        recording.event(structs.replace(factories.event(1, text="noted"), run=state.run))
    ended = mixed.hoptui(release, "report", str(path))
    if release == "newest" or previous.version(previous.archive()) != "0.1.0":
        assert (ended.returncode, "noted" in ended.stdout) == (0, True)
    else:
        assert (ended.returncode, ended.stderr.count("\n"), "traceback" in ended.stderr) == (1, 1, False)


@pytest.mark.guarantee("other-release")
def test_recordings_without_a_new_verdict_are_read_by_the_previous_release(
    mixed: MixedNode, tmp_path: Path
) -> None:
    kept = Path(__file__).parents[1] / "recordings"
    for example in sorted(kept.glob("*.hoptui")):
        copy = Path(shutil.copy(example, tmp_path))
        newest, before = (mixed.done(release, "export", str(copy), "--since", "90%") for release in RELEASES)
        assert newest == before, example.name


def test_stack_samples_do_not_keep_the_previous_release_from_reading(
    mixed: MixedNode, tmp_path: Path
) -> None:
    path = recorded_run.write(tmp_path / "stacks.hoptui")
    plain = mixed.done("previous", "export", str(path))
    samples = pack({(StackFrame("/libs/a/b.py", "main", 1, package_at=6),): 7}, 0, SECOND)
    with Recording.create(path, boot=recorded_run.BOOT) as recording:
        recording.stacks(SECOND, encode({0: [samples]}, SECOND), 7)
    assert mixed.done("previous", "export", str(path)) == plain
    assert mixed.hoptui("newest", "where", str(path)).returncode == 0
