"""What traces cost a real training process: memory that it keeps, and the pause."""

from __future__ import annotations

import re
import sys

import psutil
import pytest

from tests.conftest import TestNode, until

KEPT_BYTES = 300 << 20
MORE_BYTES = 50 << 20
"""By how much the process may grow with a trace that is not its first."""
PAUSE_S = 30.0
"""Where other processes leave this one little time; at rest it is a tenth of that."""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_traces_keep_no_memory_and_pause_training_for_seconds(node: TestNode) -> None:
    viewer = node.viewer()
    command = [sys.executable, "-m", "hoptui_trainer", "ppo", "--name", "traced", "--iterations", "1000000"]
    process = psutil.Process(node.spawn(command, OMP_NUM_THREADS="1").pid)
    run = viewer.run("traced")
    until(lambda: viewer.vital(run.run).step >= 5, seconds=60, what="iterations")
    resident, traces = [process.memory_info().rss], []
    for _ in range(2):
        done = node.hoptui("profile", "traced", "--steps", "5", "--timeout", "120", seconds=140)
        assert done.returncode == 0, done.stderr
        resident.append(process.memory_info().rss)
        traces += re.findall(r"MB, (\d+) iterations.*; training paused for ([\d.]+) s\)", done.stdout)
    before, first, second = resident
    assert first - before <= KEPT_BYTES, resident
    assert second - first <= MORE_BYTES, resident
    assert [int(iterations) for iterations, _ in traces] == [5, 5]
    assert max(float(pause) for _, pause in traces) <= PAUSE_S
