"""The adapter of TorchTitan, against a stand-in of its trainer. tests/integrations/ has TorchTitan itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TestNode, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SCRIPT = """
import sys
from pathlib import Path
from tests import titan
titan.stand_in()
from hoptui.integrations import torchtitan
torchtitan.install()
torchtitan.install("twice")
folder = Path(sys.argv[1])


class Slow(titan.Trainer):
    def train_step(self):
        super().train_step()
        import time
        time.sleep(0.01)


trainer = Slow(folder, steps=10**6, load_step=7, dp_shard=2)
trainer.train()
groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
import json
(folder / "end.json").write_text(json.dumps({
    "step": trainer.step, "tokens": trainer.ntokens_seen, "saved": trainer.checkpointer.saved,
    "bases": [base for one in trainer.lr_schedulers for base in one.base_lrs],
    "rates": [group["lr"] for group in groups], "decays": [group["weight_decay"] for group in groups],
    "max_norm": trainer.config.training.max_norm, "interval": trainer.checkpointer.interval,
    "logged": trainer.metrics_processor.logged[-3:],
}))
"""


@pytest.fixture
def steered(node: TestNode, tmp_path: Path) -> dict[str, Any]:
    """What a trainer has at the end, and the status of its run before."""
    viewer = node.viewer()
    child = node.start(SCRIPT, str(tmp_path))

    def training() -> bool:
        assert child.poll() is None, child.communicate()[1]
        found = [run.run for run in viewer.state().runs if run.name == "llama3"]
        return bool(found) and viewer.vital(found[0]).step > 20

    until(training, seconds=60)
    for words in (
        ("set", "llama3", "lr=0.02", "weight_decay=0.5", "max_norm=3.0", "log_freq=1", "--yes"),
        ("checkpoint", "llama3"),
    ):
        done = node.hoptui(*words)
        assert done.returncode == 0, (done.stdout, done.stderr)
    status = json.loads(node.hoptui("status", "llama3", "--json").stdout)
    assert node.hoptui("stop", "llama3", "--yes").returncode == 0
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 0, errors
    end: dict[str, Any] = json.loads((tmp_path / "end.json").read_text())
    ended = json.loads(node.hoptui("status", "llama3", "--json").stdout)
    return end | {"status": status, "exit": ended["exit"], "commands": ended["commands"]}


def test_a_trainer_is_steered_and_stopped(steered: dict[str, Any], tmp_path: Path) -> None:
    assert steered["bases"] == [0.02, 0.02]
    assert steered["rates"] == pytest.approx([0.02 / (1 + steered["step"] - 7)] * 2)
    assert steered["decays"] == [0.5, 0.5]
    assert steered["max_norm"] == 3.0
    assert steered["logged"] == list(range(steered["step"] - 2, steered["step"] + 1))
    assert steered["exit"]["reason"] == "stopped"

    (saved,) = steered["saved"]
    assert steered["interval"] == 10**6
    (command,) = [one for one in steered["commands"] if one["verb"] == "checkpoint"]
    assert command["stage"] == "applied"
    assert str(tmp_path / f"step-{saved}") in json.dumps(command)

    metrics = steered["status"]["metrics"]
    assert metrics["tokens"] == 200, "of all ranks"
    assert metrics["loss"] == 2.0
    assert steered["status"]["total"] == 10**6


LAST_STEP = """
import sys
from pathlib import Path
from tests import titan
titan.stand_in()
import hoptui
from hoptui.integrations import torchtitan
torchtitan.install()
logged, log = [], hoptui.Run.log

def noted(run, *arguments, **values):
    if "tokens" in values:
        logged.append(values["tokens"])
    log(run, *arguments, **values)

hoptui.Run.log = noted
titan.Trainer(Path(sys.argv[1]), steps=10, load_step=7).train()
print(logged)
"""


def test_the_tokens_of_each_step_count_and_none_of_before_the_checkpoint(
    node: TestNode, tmp_path: Path
) -> None:
    child = node.start(LAST_STEP, str(tmp_path), HOPTUI="off")
    out, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    assert out.split() == ["[100,", "100,", "100]"]


FAULTS = """
import sys
from pathlib import Path
from tests import titan
titan.stand_in()
import hoptui
from hoptui.integrations import torchtitan
torchtitan.install()

def broken(*arguments, **options):
    raise RuntimeError("broken")

for call in ("bind", "boundary", "log"):
    works = getattr(hoptui.Run, call)
    setattr(hoptui.Run, call, broken)
    trainer = titan.Trainer(Path(sys.argv[1]), steps=30)
    trainer.train()
    setattr(hoptui.Run, call, works)
    print(call, trainer.step, trainer.metrics_processor.logged)
"""


def test_an_error_of_the_adapter_ends_no_training(node: TestNode, tmp_path: Path) -> None:
    child = node.start(FAULTS, str(tmp_path), HOPTUI="off")
    out, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    assert out.splitlines() == [f"{call} 30 [1, 10, 20, 30]" for call in ("bind", "boundary", "log")]
    assert errors.count("hoptui is off in this run") == 3, errors
    assert errors.count("RuntimeError: broken") == 3


def test_the_newest_environment_has_torchtitan() -> None:
    """Where it is missing, tests/integrations/conftest.py leaves the tests of the real trainer out."""
    assert "\ntorchtitan==0.3." in (ROOT / "tests/integrations/newest.txt").read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert "{ test $$end = oldest || .venv-$$end/bin/python -c 'import torchtitan'; } &&" in makefile
    conftest = (ROOT / "tests/integrations/conftest.py").read_text()
    assert 'collect_ignore = ["test_torchtitan.py"]' in conftest
    assert (ROOT / "tests/integrations/test_torchtitan.py").exists()
