"""The recording of a real run that the README shows: it opens, plays, and says the same however its moments
are reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hoptui.model.recorded.store import RecordedStore
from hoptui.recording import Recording
from hoptui.recording.export import ExportRequest, rows

EXAMPLE = Path(__file__).parents[1] / "recordings" / "ppo-h100.hoptui"
SECOND = 1_000_000_000


@pytest.fixture
def recording() -> Iterator[Recording]:
    with Recording.open(EXAMPLE, still=True) as recording:
        yield recording


def test_it_holds_a_run_a_gpu_and_a_knob_that_was_changed(recording: Recording) -> None:
    store = RecordedStore(recording)
    store.seek(store.span[1])
    assert store.span[1] - store.span[0] > 60 * SECOND
    assert EXAMPLE.stat().st_size <= 2_000_000
    assert store.node is not None
    assert [gpu.name for gpu in store.node.gpus] == ["NVIDIA H100 80GB HBM3"]
    applied = [c for c in store.commands.values() if c.verb == "set" and c.stage in ("applied", "kept")]
    assert {c.knob for c in applied} >= {"num_envs"}
    assert all(c.measured is not None for c in applied)
    assert store.problem == ""


def test_playing_up_to_a_moment_says_what_seeking_there_says(recording: Recording) -> None:
    """A measurement that goes on was once kept as it stood at its last iteration but one."""
    played = RecordedStore(recording)
    first, last = played.span
    for t in range(first, last, SECOND // 2):
        played.seek(t)
        in_passing = played.commands
        if (t - first) // SECOND % 5 == 0:
            sought = RecordedStore(recording)
            sought.seek(t)
            assert in_passing == sought.commands, f"{(t - first) / SECOND} s"


def test_its_numbers_can_be_exported(recording: Recording) -> None:
    run = RecordedStore(recording).run_id
    rates = [
        row.values["env_steps_per_s"]
        for row in rows(recording, ExportRequest((f"run/{run}",), ("env_steps_per_s",)))
    ]
    assert len(rates) > 100
    assert min(rates) > 0
