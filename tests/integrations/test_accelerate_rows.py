"""Where a loop with accelerate finds its metrics: in the row of the step that they came from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)
LIMIT_S = 200.0
ROWS, BATCHES, ACCUMULATED = 8, 6, 2
SCRIPT = f"""
import json, sys
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from hoptui.integrations.accelerate import HoptuiTracker
from tests.run_state import queued_rows

ROWS, BATCHES, ACCUMULATED = {ROWS}, {BATCHES}, {ACCUMULATED}
"""
LOOP = """
def train(log):
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    torch.manual_seed(0)
    tracker = HoptuiTracker()
    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATED, log_with=tracker, cpu=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training, other = (torch.utils.data.DataLoader(torch.randn(ROWS * BATCHES, 4), batch_size=ROWS)
                       for _ in range(2))
    model, optimizer, training, other = accelerator.prepare(model, optimizer, training, other)
    accelerator.init_trackers("rows")
    state = tracker.tracker._core.state
    log(accelerator, "before", 0)
    micro = 0
    for epoch in range(2):
        for batch in training:
            with accelerator.accumulate(model):
                log(accelerator, "forward", micro)
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            log(accelerator, "micro", micro)
            micro += 1
            if accelerator.sync_gradients:
                log(accelerator, "step", micro // ACCUMULATED - 1)
                if micro == 4:  # in the middle of an epoch
                    for _ in other:
                        pass
                    log(accelerator, "middle", micro // ACCUMULATED - 1)
        log(accelerator, "epoch", micro // ACCUMULATED - 1)
        for _ in other:
            pass
        log(accelerator, "evaluated", micro // ACCUMULATED - 1)
    tracker.finish()
    found = {}
    for _, step, row in queued_rows(state):
        found.setdefault(step, {}).update(row)
    return found

def numbered(accelerator, name, value):
    accelerator.log({name: value}, step=value)

def without_step(accelerator, name, value):
    accelerator.log({name: value})

def same_step(accelerator, name, value):
    accelerator.log({name: value}, step=7)

def falling(accelerator, name, value):
    accelerator.log({name: value}, step=1000 - value)

def twice(accelerator, name, value):
    accelerator.log({name: -1.0}, step=value)
    accelerator.log({name: value}, step=value)

ways = (numbered, without_step, same_step, falling, twice)
print(json.dumps({each.__name__: train(each) for each in ways}))
"""


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, dict[str, Any]]]:
    """What each way to log gave, by way and iteration."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + LOOP],
        env=os.environ | {"HOPTUI": "off", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("way", ["numbered", "without_step", "same_step", "falling", "twice"])
def test_metrics_are_in_the_row_of_the_step_they_came_from(
    rows: dict[str, dict[str, dict[str, Any]]], way: str
) -> None:
    """Whatever `step` says. Of several values of one step the last one counts."""
    found = {int(step): row for step, row in rows[way].items()}
    steps = range(2 * BATCHES // ACCUMULATED)
    assert sorted(found) == [*steps], "a step is a row, and nothing else is"
    for step in steps:
        row = found[step]
        assert row["samples"] == ROWS * ACCUMULATED
        assert row["step"] == step
        assert row["micro"] == row["forward"] == step * ACCUMULATED + 1, "of the last micro-batch"
    assert {step: row["before"] for step, row in found.items() if "before" in row} == {0: 0}
    assert {step: row["middle"] for step, row in found.items() if "middle" in row} == {1: 1}
    for name in ("epoch", "evaluated"):
        assert {step: row[name] for step, row in found.items() if name in row} == {2: 2, 5: 5}
