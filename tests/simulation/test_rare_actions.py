"""Each rare action alone: hoptui holds, and the harm of the defect that it is for is seen."""

from __future__ import annotations

import pytest

from tests.simulation.actions import Step, perform
from tests.simulation.defects import planted
from tests.simulation.node import Node, quiet
from tests.simulation.planted import named
from tests.simulation.scenario import always, finished, settled


def violations(what: str, number: float, seconds: float) -> set[str]:
    """Return which invariants a node violates to which this alone happens."""
    with Node("rare") as node, quiet():
        node.train("run", 0.3)
        node.view("ana")
        node.kernel.run(3.0)
        perform(node, Step(0.0, "set"))
        node.kernel.run(3.0)
        perform(node, Step(0.0, "finish"))  # it goes on under the same id
        node.kernel.run(10.0)
        perform(node, Step(0.0, what, number))
        node.kernel.run(seconds)
        perform(node, Step(0.0, "set"))
        node.settle(20.0)
        found = settled(node)
        node.finish()
        found += finished(node) + always(node)
    return {violation.partition(":")[0] for violation in found}


MALFORMED = "a malformed recording ends history", "outcomes_arrive"
UNLOCKED = "nobody looks whether the lock is still there", "one_daemon"
NULL = "a value that is no number is stored as null", "recordings_listed"
AGED = "the age of a recording is by the wall clock", "rows_accounted"
ANSWERED = "each answer to a repeated hello counts", "rows_accounted"


@pytest.mark.parametrize(
    ("what", "number", "seconds", "defect", "seen"),
    [
        pytest.param("foreign recording", 0.1, 10, *MALFORMED, id="link"),
        pytest.param("foreign recording", 0.5, 10, *MALFORMED, id="cell"),
        pytest.param("delete lock", 0.1, 10, *UNLOCKED, id="directory"),
        pytest.param("delete lock", 0.5, 10, *UNLOCKED, id="lock"),
        pytest.param("odd knob", 0.1, 5, *NULL, id="nan"),
        pytest.param("odd knob", 0.6, 5, *NULL, id="inf"),
        pytest.param("clock ahead", 0.1, 60, *AGED, id="clock"),
        pytest.param("slow answers", 0.1, 90, *ANSWERED, id="hello"),
    ],
)
def test_the_harm_is_seen(what: str, number: float, seconds: float, defect: str, seen: str) -> None:
    assert violations(what, number, seconds) == set()
    with planted(named(defect)):
        assert seen in violations(what, number, seconds)
