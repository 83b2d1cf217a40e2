"""IPython itself: cells of a session, and `hoptui run` on a script that `ipython` starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

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
