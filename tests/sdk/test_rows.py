"""Rows of iterations: paired phases, and metrics that come after their iteration."""

from __future__ import annotations

import pytest

from hoptui.sdk.run import Run
from tests.run_state import queued_rows, run_state
from tests.sdk.unit_run import rows

pytestmark = pytest.mark.usefixtures("off")


def phases(run: Run) -> list[set[str]]:
    return [{name.removeprefix("phase/") for name in row if name.startswith("phase/")} for row in rows(run)]


def test_phases_in_pairs(run: Run) -> None:
    run.boundary(0)
    run.enter("rollout")
    run.enter("env")
    assert run_state(run).phases.current == "rollout/env"
    run.leave()
    run.leave()
    run.enter("update")
    run.leave("update")
    run.boundary(1)
    assert phases(run) == [{"rollout", "rollout/env", "update"}]
    assert run_state(run).phases.current == ""


def test_the_calls_around_the_first_iteration_are_known_once(run: Run) -> None:
    def fit(times: int) -> None:
        for _ in range(times):
            run.log(loss=1.0)

    assert run_state(run).training.loop is None
    fit(1)
    loop = run_state(run).training.loop
    assert loop is not None
    assert [each.function.rpartition(".")[2] for each in loop[-2:]] == [
        "test_the_calls_around_the_first_iteration_are_known_once",
        "fit",
    ]
    assert loop[-1].file == __file__
    fit(1)
    assert run_state(run).training.loop is loop


def test_the_loop_is_known_where_iterations_are_declared(run: Run) -> None:
    run.boundary(0)
    run.boundary(1)
    loop = run_state(run).training.loop
    assert loop is not None
    assert loop[-1].function == "test_the_loop_is_known_where_iterations_are_declared"


def test_each_boundary_reads_attributes_of_the_state_the_fast_way(run: Run) -> None:
    run.boundary(0)
    assert len(vars(run_state(run))) < 30, "Python looks up more attributes than these by their hash"


def test_leave_closes_up_to_the_name(run: Run) -> None:
    run.boundary(0)
    for name in ("a", "b", "c"):
        run.enter(name)
    run.leave("b")
    assert run_state(run).phases.current == "a"
    run.leave("other")
    assert run_state(run).phases.current == "a"
    run.leave("a")
    run.leave()
    run.leave("a")
    assert run_state(run).phases.current == ""
    run.boundary(1)
    assert phases(run) == [{"a", "a/b", "a/b/c"}]


def test_open_phases_end_at_the_boundary_of_their_iteration(run: Run) -> None:
    for step in range(3):
        run.boundary(step)
        if step == 0:
            run.enter("rollout")
            run.enter("env")
    assert phases(run) == [{"rollout", "rollout/env"}, set()]
    run.enter("update")
    run.close()
    assert phases(run)[2] == {"update"}


def test_pairs_and_blocks_do_not_mix(run: Run) -> None:
    run.boundary(0)
    run.enter("a")
    with run.phase("block"):
        run.leave("a")  # it began outside of the block
        run.enter("b")
        assert run_state(run).phases.current == "a/block/b"
    assert run_state(run).phases.current == "a"
    run.leave()
    run.boundary(1)
    assert phases(run) == [{"a", "a/block", "a/block/b"}]


def test_metrics_of_an_iteration_that_has_finished(run: Run) -> None:
    for step in range(3):
        run.boundary(step)
    run.log(loss=0.5, samples=64, step=1)
    run.log({"other": 1}, step=0)
    run.log(loss=2.0, step=2)  # the one in progress
    run.boundary(3)
    found = [(step, row) for _, step, row in queued_rows(run_state(run)) if set(row) - {"iteration_s"}]
    (one, late), (zero, other), (two, now) = found
    assert (one, zero, two) == (1, 0, 2)
    assert (late["loss"], late["samples"]) == (0.5, 64)
    seconds = [row["iteration_s"] for _, step, row in queued_rows(run_state(run)) if "iteration_s" in row]
    assert late["samples_per_s"] == pytest.approx(64 / seconds[1], rel=0.5), "seconds are rounded"
    assert other == {"other": 1.0}
    assert (now["loss"], "iteration_s" in now) == (2.0, True)
    stamps = [t for t, _, _ in queued_rows(run_state(run))]
    assert stamps == sorted(set(stamps))


def test_rows_of_a_loop_without_boundaries_have_the_step_that_is_given(run: Run) -> None:
    for step in (5, 10):
        run.log(loss=1.0, step=step)
    assert [step for _, step, _ in queued_rows(run_state(run))] == [5, 10]


@pytest.mark.parametrize("step", ["x", None, object(), float("nan")])
def test_a_step_that_is_no_number_means_the_iteration_in_progress(run: Run, step: object) -> None:
    run.boundary(4)
    run.log(loss=1.0, step=step)  # type: ignore[arg-type]
    run.boundary(5)
    assert [step for _, step, row in queued_rows(run_state(run)) if "loss" in row] == [4]


def test_the_number_of_planned_iterations_can_change(run: Run) -> None:
    before = run_state(run).declarations.revision
    run.plan(500)
    assert run_state(run).total == 500
    assert run_state(run).declarations.revision > before
    run.plan(None)
    assert run_state(run).total is None
