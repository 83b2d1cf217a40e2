"""A run on several nodes over its whole time, from the recordings of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from hoptui.domain.jobs import JobNode, JobState, NodeCondition
from hoptui.model.job_course import JobCourse
from hoptui.model.job_report import by_run, read_run
from hoptui.model.report import Report
from hoptui.protocol.messages import Event
from hoptui.protocol.recorded_jobs import encode_recorded
from hoptui.recording import Recording
from hoptui.recording.timed_states import JOB
from screenshots import made_up_job
from tests.model.node_recordings import FIRST, ID, STEP_S, STEPS, WATTS, boot, write_node
from tests.model.recorded_run import SECOND, WALL

STATE = made_up_job.state(2, 2, 0.0, run=ID, faults=False)
SPAN_S = STEP_S * STEPS


def report_of(*paths: Path) -> Report:
    opened = [Recording.open(path) for path in paths]
    try:
        return read_run(opened)
    finally:
        for recording in opened:
            recording.close()


def course_of(*paths: Path) -> JobCourse:
    found = report_of(*paths).job
    assert found is not None
    return found


def silent(state: JobState, node: int, age_s: float, condition: NodeCondition = "silent") -> JobState:
    nodes = list(state.nodes)
    nodes[node] = structs.replace(nodes[node], condition=condition, age_s=age_s)
    return structs.replace(state, nodes=tuple(nodes))


def test_the_rows_of_all_nodes_are_in_columns_by_one_clock(tmp_path: Path) -> None:
    job = course_of(*(write_node(tmp_path / f"{node}.hoptui", node) for node in (0, 1)))
    assert [node.host for node in job.state.nodes] == ["gpu00", "gpu01"]
    assert job.recorded == (0, 1)
    assert abs(job.times[-1] - FIRST[0] - round(SPAN_S * SECOND)) < 2 * SECOND, "by the clock of the base"
    for rank in range(4):
        known = [row[rank] for row in job.ranks["iteration_s"] if row[rank] == row[rank]]
        assert len(known) >= len(job.times) - 2, "hardly a column without an iteration"
        assert known == pytest.approx([STEP_S + 0.001 * rank] * len(known))
    middle = job.ranks["own_s"][len(job.times) // 2]
    assert middle[3] == pytest.approx(0.95 * (STEP_S + 0.003), rel=1e-6)
    assert middle[0] == pytest.approx(0.1 * STEP_S, rel=1e-6)
    assert not job.watched, "no state of the run is recorded"
    assert job.absences == ()


def test_the_rank_that_the_others_wait_for_is_named(tmp_path: Path) -> None:
    job = course_of(*(write_node(tmp_path / f"{node}.hoptui", node) for node in (0, 1)))
    assert job.by == "own_s"
    (one,) = job.differences
    assert one.rank == 3
    assert one.share > 0.9
    assert one.value == pytest.approx(0.478, rel=0.01)
    assert one.usual == pytest.approx(0.1 * (STEP_S + 0.001), rel=0.02)
    lines = {rank.rank: rank.line for _, rank in job.state.ranks()}
    assert lines[3] == "train.py:12 step"


def test_without_stack_samples_ranks_are_compared_by_their_iterations(tmp_path: Path) -> None:
    bare = structs.replace(STATE, nodes=tuple(_unsampled(node) for node in STATE.nodes))
    job = course_of(_write_states(tmp_path / "a.hoptui", [bare], sampled=False))
    assert job.by == "iteration_s"
    assert job.differences == ()


def test_the_power_of_all_gpus_is_summed_and_the_energy_too(tmp_path: Path) -> None:
    paths = [write_node(tmp_path / f"{node}.hoptui", node, gpus=True) for node in (0, 1)]
    report = report_of(*paths)
    job = report.job
    assert job is not None
    middle = len(job.times) // 2
    assert job.powered[middle] == 4
    assert job.power_w[middle] == pytest.approx(4 * WATTS + 0 + 1 + 2 + 3)
    assert job.mfu[middle] == pytest.approx((40.0 + 42.0) / 2)
    assert not job.mfu_estimated
    alone = [report_of(path).energy.joules for path in paths]
    assert report.energy.joules == pytest.approx(sum(filter(None, alone)))
    assert report.energy.watts == pytest.approx(4 * WATTS + 6)
    assert [gpu.uuid for gpu in report.all_gpus] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    (node,) = report.nodes
    assert (node.host, node.ranks) == ("gpu01", (2, 3))
    watts = {curve.source: curve for curve in node.curves if curve.metric == "power_w"}
    assert set(watts) == {"gpu/GPU-2", "gpu/GPU-3"}
    assert abs(watts["gpu/GPU-2"].t[-1] - FIRST[0] - round(SPAN_S * SECOND)) < 3 * SECOND, "moved"


def test_the_energy_of_all_is_unknown_if_that_of_one_node_is(tmp_path: Path) -> None:
    one = write_node(tmp_path / "a.hoptui", 0, gpus=True)
    other = write_node(tmp_path / "b.hoptui", 1)
    report = report_of(one, other)
    assert report.energy.joules is None
    assert report.job is not None
    assert set(report.job.powered[10:-10]) == {2}, "it is told of how many GPUs the power is"


def test_one_recording_has_what_is_known_of_other_nodes(tmp_path: Path) -> None:
    job = course_of(write_node(tmp_path / "a.hoptui", 0, state=STATE))
    assert job.recorded == (0,)
    assert job.watched
    row = job.ranks["iteration_s"][_column(job, 90)]
    assert row[0] == pytest.approx(STEP_S), "from its rows"
    assert row[3] == pytest.approx(made_up_job.STEP_S, rel=0.02), "from the state of a minute"
    assert job.ranks["iteration_s"][_column(job, 30)][3] != row[3], "nothing before the first state"
    assert job.powered[_column(job, 90)] == 2, "the GPUs of the other node"


def test_a_run_on_one_node_and_a_lone_part_without_states_have_no_job(tmp_path: Path) -> None:
    assert report_of(write_node(tmp_path / "a.hoptui", 0)).job is None


@pytest.mark.parametrize("by", ["states", "events"])
def test_a_silent_node_has_its_time(tmp_path: Path, by: str) -> None:
    path = _write_states(
        tmp_path / "a.hoptui", [STATE, silent(STATE, 1, 20.0), silent(STATE, 1, 80.0), STATE]
    )
    expected = 120 - 20, 240
    if by == "events":
        with Recording.create(path, boot=boot(0)) as recording:
            recording.event(_event(110, "job.silent_node", host="gpu01", node=1, age_s=6.0))
            recording.event(_event(215, "job.node_back", host="gpu01", after_s=105.0))
            recording.flush()
        expected = 110 - 6, 215
    (one,) = course_of(path).absences
    assert (one.host, one.condition) == ("gpu01", "silent")
    assert ((one.start - FIRST[0]) / SECOND, (one.end - FIRST[0]) / SECOND) == pytest.approx(expected)


def test_a_node_that_never_came_and_one_that_left(tmp_path: Path) -> None:
    never = structs.replace(STATE.nodes[1], summary=None, condition="missing", age_s=60.0)
    missing = structs.replace(STATE, nodes=(STATE.nodes[0], never))
    job = course_of(_write_states(tmp_path / "a.hoptui", [missing, missing, STATE]))
    (one,) = job.absences
    assert (one.host, one.condition) == ("", "missing")
    assert (one.end - FIRST[0]) / SECOND == pytest.approx(180)
    left = course_of(_write_states(tmp_path / "b.hoptui", [STATE, silent(STATE, 1, 0.0, "left")]))
    assert [one.condition for one in left.absences] == ["left"]


def test_recordings_of_one_run_are_together_and_copies_are_not(tmp_path: Path) -> None:
    paths = [
        write_node(tmp_path / "a.hoptui", 0),
        write_node(tmp_path / "x.hoptui", 0, run="job02"),
        write_node(tmp_path / "b.hoptui", 1),
        write_node(tmp_path / "copy.hoptui", 0),
    ]
    opened = [Recording.open(path) for path in paths]
    found = [[recording.path.stem for recording in group] for group in by_run(opened)]
    assert found == [["a", "b"], ["x"], ["copy"]]


def _unsampled(node: JobNode) -> JobNode:
    assert node.summary is not None
    ranks = tuple(structs.replace(rank, waiting=None) for rank in node.summary.ranks)
    return structs.replace(node, summary=structs.replace(node.summary, ranks=ranks))


def _write_states(path: Path, states: Sequence[JobState], *, sampled: bool = True) -> Path:
    """The recording of the first node with a state a minute."""
    write_node(path, 0, steps=range(round(60 * (len(states) + 0.5) / STEP_S)), sampled=sampled)
    with Recording.create(path, boot=boot(0)) as recording:
        for minute, state in enumerate(states, 1):
            recording.state(JOB, FIRST[0] + minute * 60 * SECOND, encode_recorded(state))
        recording.flush()
    return path


def _event(second: float, code: str, **fields: object) -> Event:
    return Event(
        seq=int(second), t=FIRST[0] + round(second * SECOND), wall=WALL + second, kind="job", code=code,
        fields=fields, run=ID, level="warning",
    )  # fmt: skip


def _column(job: JobCourse, second: float) -> int:
    t = FIRST[0] + round(second * SECOND)
    return next(at for at, end in enumerate(job.times) if end >= t)
