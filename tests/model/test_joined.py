"""Recordings of several nodes as one run, with clocks that are known to be apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hoptui.model.recorded.clock_offsets import clock_offset
from hoptui.model.recorded.joined import JoinedStore, JoinError
from hoptui.model.recorded.store import RecordedStore
from hoptui.protocol.messages import Event
from hoptui.recording import Recording
from screenshots import made_up_job
from tests.model.node_recordings import AHEAD_S, FIRST, ID, JITTER_S, STEP_S, STEPS, write_node
from tests.model.recorded_run import SECOND


@pytest.fixture
def joined(tmp_path: Path) -> JoinedStore:
    """Both nodes, the one without rank 0 named first."""
    paths = [write_node(tmp_path / f"node{node}.hoptui", node) for node in (1, 0)]
    return JoinedStore([Recording.open(path) for path in paths])


def test_clocks_are_aligned_by_common_iterations(joined: JoinedStore) -> None:
    ((path, found),) = joined.offsets.items()
    assert path.name == "node1.hoptui", "the file with rank 0 is the base"
    assert found.steps == STEPS
    assert abs(found.offset_ns - (FIRST[1] - FIRST[0])) < JITTER_S * SECOND / 4
    assert found.spread_ns is not None
    assert 0.1 * JITTER_S * SECOND < found.spread_ns < 2 * JITTER_S * SECOND
    (note,) = joined.clock_notes()
    assert note.startswith(f"the clock of gpu01 is {1000 * AHEAD_S:.0f} ms ahead of that of gpu00, ±")
    assert note.endswith("by 400 common iterations")


def test_a_run_has_the_ranks_of_all_files(joined: JoinedStore) -> None:
    run = joined.run(ID)
    assert run is not None
    assert [each.rank for each in run.ranks] == [1, 2, 3]
    joined.seek(FIRST[0] + 100 * SECOND)
    for rank in (1, 2, 3):
        source = f"rank/{ID}/{rank}"
        steps = joined.steps(source)
        assert steps is not None
        assert steps.last_step in (198, 199), "what comes later is not known yet"
        assert joined.latest(source)["iteration_s"] == pytest.approx(STEP_S + 0.001 * rank)
        series = joined.series(source, "iteration_s")
        assert series is not None
        end = joined.now()
        window = series.window(end - 10 * SECOND, end, 10)
        assert window.t, source
        assert all(end - 10 * SECOND <= t <= end for t in window.t), "by the clock of the base"
        assert 0 <= end - series.last_t < 2 * STEP_S * SECOND


def test_the_job_at_a_position_has_nodes_ranks_and_history(joined: JoinedStore) -> None:
    joined.seek(FIRST[0] + 100 * SECOND)
    job = joined.job(ID)
    assert job is not None
    state = job.state
    assert state is not None
    assert [(node.host, node.condition) for node in state.nodes] == [("gpu00", "live"), ("gpu01", "live")]
    ranks = {rank.rank: rank for _, rank in state.ranks()}
    assert list(ranks) == [0, 1, 2, 3]
    assert ranks[0].waiting == pytest.approx(0.9)
    assert ranks[3].waiting == pytest.approx(0.05)
    assert ranks[3].line == "train.py:12 step"
    assert all(rank.progress_age_s is not None and rank.progress_age_s < 1.0 for rank in ranks.values())
    assert all(rank.gpu is None for rank in ranks.values()), "which rank has which GPU is not recorded"
    newest = job.moments[-1]
    assert newest.of_rank("own_s", 3) == pytest.approx(0.95 * (STEP_S + 0.003), rel=1e-3)
    assert newest.of_rank("own_s", 0) == pytest.approx(0.1 * STEP_S, rel=1e-3)
    assert 30 < len(job.moments) < 40, "100 s of history, a moment every three seconds"


def test_a_node_whose_recording_has_ended_has_left(tmp_path: Path) -> None:
    paths = [
        write_node(tmp_path / "a.hoptui", 0),
        write_node(tmp_path / "b.hoptui", 1, steps=range(100)),
    ]
    store = JoinedStore([Recording.open(path) for path in paths])
    store.seek(FIRST[0] + 195 * SECOND)
    job = store.job(ID)
    assert job is not None
    assert job.state is not None
    assert [node.condition for node in job.state.nodes] == ["live", "left"]


def test_recordings_without_common_iterations_are_placed_by_wall_clock(tmp_path: Path) -> None:
    paths = [
        write_node(tmp_path / "a.hoptui", 0, steps=range(100)),
        write_node(tmp_path / "b.hoptui", 1, steps=range(200, 300)),
    ]
    store = JoinedStore([Recording.open(path) for path in paths])
    (found,) = store.offsets.values()
    assert (found.steps, found.spread_ns) == (0, None)
    assert store.clock_notes() == [
        "gpu01 has no iterations in common with gpu00: it is placed by its wall clock"
    ]
    by_wall = FIRST[1] - FIRST[0] - round(AHEAD_S * SECOND)
    assert abs(found.offset_ns - by_wall) < 1000


def test_recordings_of_other_runs_or_of_one_node_are_not_joined(tmp_path: Path) -> None:
    one = write_node(tmp_path / "a.hoptui", 0)
    other = write_node(tmp_path / "b.hoptui", 1, run="job02")
    same = write_node(tmp_path / "c.hoptui", 0)
    with pytest.raises(JoinError, match=r"a\.hoptui is of run job01 and .*b\.hoptui of run job02"):
        JoinedStore([Recording.open(one), Recording.open(other)])
    with pytest.raises(JoinError, match="both have rank 0"):
        JoinedStore([Recording.open(one), Recording.open(same)])
    with pytest.raises(JoinError, match=r"a\.hoptui is named twice"):
        JoinedStore([Recording.open(one), Recording.open(one)])


def test_the_slow_rank_of_a_replay_is_the_one_that_was_reported(tmp_path: Path) -> None:
    def event(seq: int, seconds: float, code: str) -> Event:
        t = FIRST[0] + round(seconds * SECOND)
        return Event(seq=seq, t=t, wall=0.0, kind="job", code=code, fields={"rank": 3}, run=ID)

    told = [event(1, 50, "job.slow_rank"), event(2, 120, "job.even")]
    paths = [
        write_node(tmp_path / "a.hoptui", 0, events=told),
        write_node(tmp_path / "b.hoptui", 1),
    ]
    store = JoinedStore([Recording.open(path) for path in paths])
    held = []
    for seconds in (40, 100, 150):
        store.seek(FIRST[0] + seconds * SECOND)
        job = store.job(ID)
        assert job is not None
        assert job.state is not None
        slow = job.state.slow
        held.append(slow.fields["rank"] if slow is not None else None)
    assert held == [None, 3, None]


def test_the_report_of_a_slow_node_stands_for_its_ranks_in_a_replay(tmp_path: Path) -> None:
    def event(seq: int, seconds: float, code: str, **fields: Any) -> Event:
        t = FIRST[0] + round(seconds * SECOND)
        return Event(seq=seq, t=t, wall=0.0, kind="job", code=code, fields=fields, run=ID)

    told = [
        event(1, 50, "job.slow_rank", rank=3, ranks=[]),
        event(2, 70, "job.slow_rank", rank=2, ranks=[2, 3]),
        event(3, 120, "job.even", rank=2, ranks=[2, 3]),
    ]
    paths = [write_node(tmp_path / "a.hoptui", 0, events=told), write_node(tmp_path / "b.hoptui", 1)]
    store = JoinedStore([Recording.open(path) for path in paths])
    held = []
    for seconds in (60, 100, 150):
        store.seek(FIRST[0] + seconds * SECOND)
        job = store.job(ID)
        assert job is not None
        assert job.state is not None
        slow = job.state.slow
        held.append((slow.fields["rank"], slow.fields["ranks"]) if slow is not None else None)
    assert held == [(3, []), (2, [2, 3]), None]


def test_iterations_that_one_node_repeats_do_not_move_the_clocks() -> None:
    base = {step: 1_000 * step for step in range(100)}
    other = {step: 1_000 * step + 50 for step in range(100)} | dict.fromkeys(range(10), 99000)
    found = clock_offset(base, other, 0)
    assert (found.offset_ns, found.spread_ns, found.steps) == (50, 0, 100)


def test_the_gpus_of_ranks_are_known_from_a_recorded_state_of_the_run(tmp_path: Path) -> None:
    one = write_node(tmp_path / "a.hoptui", 0, state=made_up_job.state(2, 2, 0.0, run=ID, faults=False))
    other = write_node(tmp_path / "b.hoptui", 1)
    store = JoinedStore([Recording.open(one), Recording.open(other)])
    store.seek(FIRST[0] + 100 * SECOND)
    job = store.job(ID)
    assert job is not None
    assert job.state is not None
    gpus = {rank.rank: rank.gpu.uuid for _, rank in job.state.ranks() if rank.gpu is not None}
    assert gpus == {0: "GPU-0", 1: "GPU-1"}, "the other file does not say"


def test_one_recording_has_the_states_of_all_nodes_minute_by_minute(tmp_path: Path) -> None:
    path = write_node(tmp_path / "a.hoptui", 0, state=made_up_job.state(2, 2, 0.0, run=ID, faults=False))
    with Recording.open(path) as recording:
        store = RecordedStore(recording)
        store.seek(FIRST[0] + 150 * SECOND)
        job = store.job(ID)
        assert job is not None
        assert job.state is not None
        assert [rank.rank for _, rank in job.state.ranks()] == [0, 1, 2, 3]
        assert job.state.age_s == pytest.approx(30.0)
        assert [round(one.t - FIRST[0] / SECOND) for one in job.moments] == [60, 120]
        assert store.job(ID) is job, "it is worked out once for a position"
        store.seek(FIRST[0] + 10 * SECOND)
        assert store.job(ID) is None, "what comes later is not known yet"
