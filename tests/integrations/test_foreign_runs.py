"""`hoptui import` of what TensorBoard's and wandb's own writers have written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TestNode

TENSORBOARD = """
import sys
from torch.utils.tensorboard import SummaryWriter
for name in ("a", "sub/b"):
    writer = SummaryWriter(f"{sys.argv[1]}/{name}")
    for step in range(50):
        writer.add_scalar("train/loss", 1 / (step + 1), step)
        if step % 10 == 0:
            writer.add_scalar("eval/accuracy", step / 50, step)
    writer.add_histogram("weights", __import__("numpy").arange(9), 0)
    writer.close()
"""
WANDB = """
import sys, wandb
run = wandb.init(project="p", name="my run", dir=sys.argv[1], mode="offline", tags=["t1"], notes="hello",
                 config={"lr": 0.1, "optimizer": {"name": "adam"}})
for step in range(30):
    run.log({"loss": 1 / (step + 1), "text": "x"})
run.summary["best"] = 0.5
run.finish()
"""


def made(script: str, place: Path, node: TestNode) -> None:
    subprocess.run(
        [sys.executable, "-c", script, str(place)],
        check=True,
        timeout=240,
        env=node.environment | {"WANDB_SILENT": "true", "HOPTUI": "off"},
        capture_output=True,
    )


def imported(node: TestNode, place: Path) -> list[dict[str, Any]]:
    done = node.hoptui("import", str(place), "--json", seconds=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_event_files_become_recordings(node: TestNode, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    made(TENSORBOARD, tmp_path, node)
    runs = imported(node, tmp_path)
    assert [(run["name"], run["rows"]) for run in runs] == [("a", 50), ("sub-b", 50)]
    assert runs[0]["metrics"] == ["eval/accuracy", "train/loss"]
    done = node.hoptui("export", runs[0]["run"], "--format", "csv")
    assert len(done.stdout.splitlines()) == 51
    assert node.hoptui("report", "a", "sub-b").returncode == 0


def test_an_offline_run_of_wandb_becomes_a_recording(node: TestNode, tmp_path: Path) -> None:
    pytest.importorskip("wandb.proto")
    made(WANDB, tmp_path, node)
    (run,) = imported(node, tmp_path)
    assert (run["name"], run["rows"], run["metrics"], run["damaged"]) == ("my run", 30, ["loss"], False)
    status = json.loads(node.hoptui("status", run["run"], "--json").stdout)
    assert status["metrics"]["loss"] == pytest.approx(1 / 30)
    report = node.hoptui("report", run["run"]).stdout
    for each in ("finished", "**optimizer.name** adam", "**best** 0.5", "t1", "hello"):
        assert each in report
