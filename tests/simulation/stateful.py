"""The same actions and faults, chosen and shrunk by Hypothesis: a failure is a short list of steps.

python -m tests.simulation.stateful               other examples each time
python -m tests.simulation.stateful --seed 42     the same ones again; a failure is shrunk
"""

from __future__ import annotations

import argparse
import os
import random
import sys

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.simulation.actions import ALWAYS, OPTIONAL, RANKS, RARE, Step, perform
from tests.simulation.node import Node, quiet
from tests.simulation.scenario import SETTLE_S, always, finished, settled

USUAL = sorted(ALWAYS)
"""The first does nothing. Hypothesis takes a failure that has only the first of all for the simplest one."""
OTHERS = sorted({*OPTIONAL, *RANKS, *RARE})
"""Half of the steps are these."""
EXAMPLES, STEPS = 10, 12


class NodeMachine(RuleBasedStateMachine):
    """One run, two viewers, and whatever may happen to them."""

    told = False
    """Whether each example is printed."""

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
        what=st.sampled_from(USUAL) | st.sampled_from(OTHERS),
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
        if self.told:
            print(
                f"{node.kernel.seconds:.0f} s, {len(node.truth.given)} commands, {node.kernel.events} events"
            )
        assert not violations, "\n".join(violations)


def explore(number: int, *, examples: int = EXAMPLES, shrink: bool = True) -> None:
    """Try the examples of a seed. The first failure raises AssertionError, with its steps as a note."""
    run_state_machine_as_test(
        seed(number)(type("Examples", (NodeMachine,), {"told": not shrink})),
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            derandomize=False,  # which Hypothesis does in a CI by itself
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )


def main() -> int:
    """Return 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.stateful")
    parser.add_argument("--seed", type=int, help="these examples (default: others each time)")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="how many")
    parser.add_argument("--verbose", action="store_true", help="report each example, and shrink none")
    options = parser.parse_args()
    number = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 40)
    print(f"examples of seed {number}", flush=True)
    try:
        explore(number, examples=options.examples, shrink=not options.verbose)
    except AssertionError as error:
        print(error, *getattr(error, "__notes__", ()), sep="\n")
        print(f"replay: python -m tests.simulation.stateful --seed {number} --examples {options.examples}")
        return 1
    return 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.stateful", *sys.argv[1:]])
    sys.exit(main())
