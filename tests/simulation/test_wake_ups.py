"""How often a quiet node wakes up. Virtual time counts it exactly, on any machine."""

from __future__ import annotations

import pytest

from tests.simulation.node import Node, quiet

MINUTES = 2


def wake_ups(node: Node) -> dict[str, float]:
    """Return how often each thread ran in a second, over some minutes."""
    before = dict(node.kernel.resumed)
    node.kernel.run(60.0 * MINUTES)
    now = node.kernel.resumed
    return {name: (count - before.get(name, 0)) / (60 * MINUTES) for name, count in now.items()}


@pytest.mark.parametrize(("iteration_s", "link", "daemon"), [(30.0, 1.2, 1.0), (1.0, 5.5, 2.0)])
def test_a_slow_run_that_nobody_watches_costs_little(iteration_s: float, link: float, daemon: float) -> None:
    with Node("quiet") as node, quiet():
        node.train("run", iteration_s)
        node.kernel.run(10.0)
        found = wake_ups(node)
    assert 0.9 < found["run run/hoptui-link"] <= link
    assert 0.8 < found["daemon/main"] <= daemon
    assert found["daemon/archive"] <= 1.0


def test_a_fast_run_does_not_wake_the_link_for_each_row() -> None:
    with Node("fast") as node, quiet():
        node.train("run", 0.01)
        node.kernel.run(10.0)
        found = wake_ups(node)
    assert found["run run/main"] > 90
    assert 4.5 < found["run run/hoptui-link"] <= 7
