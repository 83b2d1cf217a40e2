"""Fixed and fresh seeds of a run on several nodes. A failure names its seed, and how to replay it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.simulation.commands import printed
from tests.simulation.job_actions import OPTIONAL
from tests.simulation.job_scenario import plan_of

SEEDS = (5, 28, 67)
"""Those of `make test`."""
MORE_SEEDS = (*range(200, 280), 915338139899, 20105, 20114, 30162, 61142, 61171)
"""Those of `make test-slow`. In 915338139899, what the head reads first after a failure of the store is old.
In 20105, a node connects to the store again. In 20114, the head leaves behind a slow store. In 30162, ranks
cannot say that they leave. In 61142, a daemon is killed after it has passed a command on to the head. In
61171, a rank leaves while its connection to the daemon stalls."""
FRESH_S = 15
"""For so many seconds `make test-slow` draws fresh seeds."""
AT_ONCE = 8
"""Seeds of a process."""
LIMIT_S = 150.0


@pytest.mark.timeout(LIMIT_S + 10)
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(SEEDS, id="few"),
        *(
            pytest.param(MORE_SEEDS[at : at + AT_ONCE], marks=pytest.mark.slow, id=f"from {MORE_SEEDS[at]}")
            for at in range(0, len(MORE_SEEDS), AT_ONCE)
        ),
    ],
)
def test_seeds_hold(seeds: Sequence[int]) -> None:
    done = printed("tests.simulation", "--jobs", "--seeds", *map(str, seeds), limit_s=LIMIT_S)
    assert f"{len(seeds)} seeds, 0 failed" in done


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 10)
def test_fresh_seeds_hold() -> None:
    """A failure is a finding: its seed does the same again. Add it to the seeds once it holds."""
    assert " 0 failed" in printed("tests.simulation", "--jobs", "--seconds", str(FRESH_S), limit_s=LIMIT_S)


@pytest.mark.slow
def test_a_seed_does_the_same_each_time() -> None:
    options = "--jobs", "--verbose", "--seeds"
    first = printed("tests.simulation", *options, "5", "28", limit_s=LIMIT_S).splitlines()[1:-1]
    again = printed("tests.simulation", *options, "28", "5", limit_s=LIMIT_S).splitlines()[1:-1]
    assert first == again[::-1]
    assert all("events" in line for line in first)


def test_the_slow_seeds_have_all_that_can_happen() -> None:
    plans = [plan_of(seed) for seed in MORE_SEEDS]
    assert {step.what for plan in plans for step in plan.steps} >= set(OPTIONAL)
    assert {plan.nodes for plan in plans} == {2, 3, 4}
    assert {plan.torch for plan in plans} == {plan.agents for plan in plans} == {True, False}
