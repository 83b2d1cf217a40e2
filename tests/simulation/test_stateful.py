"""The same actions and faults, chosen and shrunk by Hypothesis: a failure is a short list of steps.

Each time other examples are tried. A failure prints a `reproduce_failure`, which replays it.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.simulation.actions import ALWAYS, OPTIONAL, RANKS, RARE, Step, perform
from tests.simulation.node import Node, quiet
from tests.simulation.scenario import SETTLE_S, always, finished, settled

KINDS = sorted({*ALWAYS, *OPTIONAL, *RANKS, *RARE})


class NodeMachine(RuleBasedStateMachine):
    """One run, two viewers, and whatever may happen to them."""

    @initialize(iteration_s=st.sampled_from([0.3, 1.0]), world=st.sampled_from([1, 2]))
    def start(self, iteration_s: float, world: int) -> None:
        self.quiet = quiet()
        self.quiet.__enter__()
        self.node = Node("stateful")
        self.node.__enter__()
        self.node.train("run", iteration_s, world=world)
        self.node.view("ana")
        self.node.view("bo")
        self.node.kernel.run(3.0)

    @rule(
        what=st.sampled_from(KINDS),
        number=st.floats(0.0, 0.99),
        wait_s=st.sampled_from([0.0, 0.001, 0.1, 2.0, 10.0]),
    )
    def act(self, what: str, number: float, wait_s: float) -> None:
        self.node.kernel.run(wait_s)
        perform(self.node, Step(wait_s, what, number))

    def teardown(self) -> None:
        if not hasattr(self, "node"):
            return
        node = self.node
        try:
            node.settle(SETTLE_S)
            violations = settled(node)
            node.finish()
            violations += finished(node) + always(node)
        finally:
            node.__exit__(None, None, None)
            self.quiet.__exit__(None, None, None)
        assert not violations, "\n".join(violations)


NodeMachine.TestCase.settings = settings(
    max_examples=6,
    stateful_step_count=12,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestNodeMachine = NodeMachine.TestCase
