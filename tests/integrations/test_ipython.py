"""IPython itself: cells of a session, and `hoptui run` on a script that `ipython` starts."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TestNode, until
from tests.injection.scripts import HEAD, finished, run_command, script

pytest.importorskip("IPython")

pytestmark = pytest.mark.timeout(200)

SESSION = """
import json
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
CELL = '''
import hoptui
run = hoptui.connect("cells")
for step in run.iterations(20):
    run.log(loss=1.0 / (step + 1))
'''
found = []
for text in (CELL, CELL, CELL.replace("run.log", "raise ValueError('planted')\\n    run.log")):
    result = shell.run_cell(text)
    run = shell.user_ns["run"]
    found.append([run.id, run.step, run._core.open, type(result.error_in_exec).__name__])
print("FOUND" + json.dumps(found))
"""


def test_cells_of_one_name_are_one_run_that_restarts(node: TestNode, tmp_path: Path) -> None:
    node.daemon()
    code, out, err = finished(node.spawn([sys.executable, str(script(tmp_path, SESSION))]), 100)
    assert code == 0, err
    first, second, third = json.loads(next(line[5:] for line in out.splitlines() if line.startswith("FOUND")))
    assert first[0] == second[0] == third[0]
    assert (first[2], second[2]) == (False, False), "the run ends with its loop, not with the session"
    assert [each[3] for each in (first, second, third)] == ["NoneType", "NoneType", "ValueError"]
    viewer = node.viewer()
    run = until(lambda: next((r for r in viewer.state().runs if r.exit_reason), None), what="the end")
    assert [(each.name, each.epoch) for each in viewer.state().runs] == [("cells", 3)]
    assert (run.exit_reason, run.exit_detail) == ("exception", "ValueError: planted")


SAMPLED = """
import os, sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
if sys.argv[1] == "ipykernel":  # Jupyter names the code of a cell after a file that does not exist
    shell.compile.get_code_name = lambda raw, transformed, n: f"/tmp/ipykernel_{os.getpid()}/{len(raw)}.py"
for text in (
    "import hoptui\\nrun = hoptui.connect('cells')",
    "def work():\\n    return sorted(range(50_000), key=str)",
    "for step in run.iterations():\\n    x = work()\\n    run.log(x=len(x))",
):
    shell.run_cell(text).raise_error()
"""


@pytest.mark.parametrize("shell", ["ipython", "ipykernel"])
def test_samples_of_cells_name_the_line_of_the_cell(shell: str, node: TestNode, tmp_path: Path) -> None:
    node.daemon()
    child = node.spawn([sys.executable, str(script(tmp_path, SAMPLED)), shell], IPYTHONDIR=str(tmp_path))

    def first() -> dict[str, Any] | None:
        assert child.poll() is None, child.communicate()[1][-4000:]
        done = node.hoptui("where", "cells", "--json")
        lines = json.loads(done.stdout)["lines"] if done.returncode == 0 else []
        return next((line for line in lines if line["share"] > 0.5), None)

    found = until(first, seconds=60, what="stack samples")
    of_cell = re.compile(r"<ipython-input-\d+-\w+>" if shell == "ipython" else r"/tmp/ipykernel_\d+/\d+\.py")
    assert of_cell.fullmatch(found["file"])
    assert (found["line"], found["function"], found["kind"]) == (2, "work", "script")
    caller = found["callers"][-1]
    assert of_cell.fullmatch(caller["file"])
    assert (caller["line"], caller["file"] == found["file"]) == (2, False)


TRAIN = """
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(5):
    for x, y in loader:
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
weights(model)
"""


def test_a_script_under_ipython_is_shown_and_has_the_same_results(
    node: TestNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-m", "IPython", str(script(tmp_path, HEAD + TRAIN))]
    quiet = {"OMP_NUM_THREADS": "1", "IPYTHONDIR": str(tmp_path)}
    expected = finished(node.spawn(command, **quiet), 100)
    monkeypatch.setenv("HOPTUI_IDLE_S", "300")
    node.daemon()
    found = finished(node.spawn(run_command("--name", "shown", "--", *command), **quiet), 100)
    assert found == expected
    assert "weights" in found[1]
    viewer = node.viewer()
    run = until(lambda: next((r for r in viewer.state().runs if r.exit_reason), None), what="the end")
    assert (run.name, run.exit_reason) == ("shown", "finished")
    assert "lr" in {each.spec.name for each in run.knobs}
