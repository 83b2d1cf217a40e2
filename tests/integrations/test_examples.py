"""Every example runs as its docstring says, is steered while it runs, and ends well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TestNode, until
from tests.examples import EXAMPLES, ROOT, read

LIMIT_S = 150.0  # other tests run at the same time; alone each takes less than a minute
PROGRAMS = {
    "python": [],
    "torchrun": ["-m", "torch.distributed.run"],
    "accelerate": ["-m", "accelerate.commands.launch"],
}


def _start(node: TestNode, path: Path, folder: Path) -> subprocess.Popen[str]:
    first, *rest = read(path).command
    if first == "accelerate":
        rest = rest[1:]  # launch
    words = [str(ROOT / word) if word.startswith("examples/") else word for word in rest]
    return node.spawn(
        ["env", "-C", str(folder), sys.executable, *PROGRAMS[first], *words],
        OMP_NUM_THREADS="1",
        PYTHONUNBUFFERED="1",
        PYTHONFAULTHANDLER="1",  # a process that aborts says where its threads are
    )


@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_steered_and_ends_well(path: Path, node: TestNode, tmp_path: Path) -> None:
    example = read(path)
    viewer = node.viewer()
    child = _start(node, path, tmp_path)

    def training() -> bool:
        assert child.poll() is None, child.communicate()[1][-4000:]
        found = [run.run for run in viewer.state().runs if run.name == example.run]
        vital = viewer.vital(found[-1]) if found else None
        return vital is not None and vital.step > 0 and bool(vital.throughput)

    until(training, seconds=LIMIT_S, what=f"iterations of {example.run}")
    run = viewer.run(example.run)
    kind = next(type(knob.value) for knob in run.knobs if knob.spec.name == example.knob)
    changed = viewer.outcome(viewer.command(run, knob=example.knob, value=kind(example.value)), LIMIT_S)
    assert changed.stage == "applied", (changed.code, changed.fields)
    output, errors = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 0, f"{output[-2000:]}\n{errors[-12000:]}"
    ended = node.status_at_end(example.run)
    assert ended["exit"]["reason"] == "finished", (ended["exit"], output[-1500:], errors[-1500:])
    assert str(ended["knobs"][example.knob]["value"]) == str(
        type(ended["knobs"][example.knob]["value"])(example.value)
    )
