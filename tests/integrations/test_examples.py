"""Every example runs as its docstring says, is steered while it runs, and ends well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TestNode, until
from tests.examples import EXAMPLES, ROOT, read

LIMIT_S = 60.0
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
    )


def _status(node: TestNode, run: str) -> dict[str, Any] | None:
    done = node.hoptui("status", run, "--json")
    return json.loads(done.stdout) if done.returncode == 0 else None


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_steered_and_ends_well(path: Path, node: TestNode, tmp_path: Path) -> None:
    example = read(path)
    node.daemon()
    child = _start(node, path, tmp_path)

    def training() -> dict[str, Any] | None:
        assert child.poll() is None, child.communicate()[1][-4000:]
        found = _status(node, example.run)
        return found if found and found["iteration"] and _rate(found) > 0 else None

    status = until(training, seconds=LIMIT_S, what=f"iterations of {example.run}")
    assert example.knob in status["knobs"]
    changed = node.hoptui("set", example.run, f"{example.knob}={example.value}", "--yes", "--json")
    assert changed.returncode == 0, (changed.stdout, changed.stderr)
    output, errors = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 0, (output[-2000:], errors[-4000:])
    ended = _status(node, example.run)
    assert ended is not None
    assert ended["exit"]["reason"] == "finished"
    assert str(ended["knobs"][example.knob]["value"]) == str(
        type(ended["knobs"][example.knob]["value"])(example.value)
    )


def _rate(status: dict[str, Any]) -> float:
    return max((value for name, value in status["metrics"].items() if name.endswith("_per_s")), default=0.0)
