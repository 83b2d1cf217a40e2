"""Joins the phases of live runs with the readings of their GPUs, on the node's clock. No I/O."""

from __future__ import annotations

from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.diagnosis.phase_readings import NAMES

MOST_ROWS = 2048


class PhaseJoin:
    """Call `tend` about once per second."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def tend(self) -> None:
        """Look at the stretches of phases that runs have reported."""
        for run in self._node.registry.live():
            if run.phases.waiting:
                self._node.faults.attempt(f"the phases of {run.id}", self._join, run)

    def _join(self, run: TrackedRun) -> None:
        rings = [ring for uuid in self._gpus(run) if (ring := self._node.rings.get(f"gpu/{uuid}"))]
        spans = run.phases.due([ring.last_t for ring in rings], self._node.clock.t())
        if not spans:
            return
        start = min(span.start for span in spans)
        found = {ring.source: ring.excerpt(NAMES, after=start, most=MOST_ROWS) for ring in rings}
        run.phases.join(spans, found)

    def _gpus(self, run: TrackedRun) -> tuple[str, ...]:
        """Return the GPUs of rank 0, whose phases are known: of several ranks, only those it has itself."""
        if run.state.world == 1:
            return run.state.gpus
        return run.resolved_rank(run.rank, self._node.gpus).gpus  # without a claim it has none here
