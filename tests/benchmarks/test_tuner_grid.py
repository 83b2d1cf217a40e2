"""The grid beside the tuner: which combinations, in which order, and what counts as memory that ran out."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.live import SHORT, Live, Point
from benchmarks.tuner_grid import CASES, QUICK, Case, against, found_after, met, snake
from hoptui.domain.tuning import Result, Trial, TunerState
from hoptui_trainer.__main__ import app


@pytest.mark.parametrize("case", [*CASES.values(), *QUICK.values()], ids=lambda case: case.name)
def test_every_combination_that_is_one_of_its_own_is_set_once_a_knob_at_a_time(case: Case) -> None:
    every = [dict(zip(case.grid, values, strict=True)) for values in itertools.product(*case.grid.values())]
    points = case.points()
    assert sorted(map(str, points)) == sorted(str(point) for point in every if case.possible(point))
    for before, after in itertools.pairwise(snake(tuple(case.grid.values()))):
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


class AfterItsGrid(Live):
    """A run that has the values of the last point of a grid. Its rate is its `size`."""

    def __init__(self) -> None:
        self.point: Point = {"size": 1}

    def set(self, point: Point) -> bool:
        self.point = point
        return True

    def rate(self, best: float = 0.0, *, after_s: float = 0.0) -> float:
        return float(self.point["size"])

    def out_of_memory(self, since: int) -> list[str]:
        return []


@pytest.mark.parametrize(("mine", "best", "ratio"), [(8, 8, 1.0), (4, 8, 0.5)])
def test_rates_are_those_of_the_points_whatever_the_grid_ended_with(
    mine: int, best: int, ratio: float
) -> None:
    found = against(AfterItsGrid(), CASES["ppo"], {"size": mine}, {"size": best})
    assert (found["rate"]["median"], found["grid"]["median"], found["ratio"]) == (mine, best, ratio)


def test_a_minibatch_is_no_larger_than_what_is_played() -> None:
    sizes = [(p["num_envs"], p["minibatch_size"]) for p in CASES["ppo"].points()]
    assert (4_096, 524_288) not in sizes
    assert (16_384, 524_288) in sizes


@pytest.mark.parametrize("case", [*CASES.values(), *QUICK.values()], ids=lambda case: case.name)
def test_the_trainer_takes_what_it_starts_from(case: Case) -> None:
    slow = [word for name, value in case.slow.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    function, _, _ = app.parse_args([*case.arguments, *slow], exit_on_error=False, print_error=False)
    assert function.__name__ == case.arguments[0]


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("out of memory with micro-batches of 64: the same batch is computed again in pieces of 32", True),
        ("num_envs 65536 → 16384: memory ran out", True),
        ("micro_batch could not be set to 512: MemoryError: 512 sequences do not fit into the memory at once",
         True),
        ("minibatch_size could not be set to 7: ValueError: it does not divide the batch", False),
        ("it breaks minibatch_size = 7", False),
        ("a person set micro_batch: the tuner leaves it alone until it is released", False),
    ],
)  # fmt: skip
def test_only_memory_counts_as_memory(text: str, short: bool) -> None:
    assert bool(SHORT.search(text)) == short


def test_a_value_is_found_with_the_last_trial_that_was_kept() -> None:
    results: tuple[Result, ...] = ("kept", "reverted", "kept", "reverted", "interrupted")
    tried = tuple(Trial(changes=(), result=result) for result in results)
    assert found_after(TunerState(tried=tried)) == 3
    assert found_after(TunerState(tried=tried[3:])) == 0, "it stayed where it was"


def test_what_was_to_be_reached() -> None:
    good = {"ratio": 0.96, "found_after": 20, "out_of_memory": [], "end": "stopped", "failed": 3}
    assert list(met("x", [good]).values()) == [True, True, True]
    short = good | {"out_of_memory": ["memory ran out"]}
    slow = good | {"ratio": 0.94, "found_after": 21}
    assert list(met("x", [good, short]).values()) == [True, True, False]
    assert list(met("x", [slow, good]).values()) == [False, False, True]
    lost = {"seed": 1, "end": "the run ended: the run: exit status -9"}
    assert list(met("x", [good, lost]).values()) == [False, False, False]
