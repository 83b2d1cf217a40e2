"""Where the adapter of Ray Train says that a checkpoint is. Nothing here starts Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray.train
from pyarrow import fs
from ray.train import Checkpoint

import hoptui
from hoptui.integrations.ray import RayWorker
from tests.run_state import run_state
from tests.sdk.unit_run import send


@pytest.mark.parametrize(
    ("storage", "path", "shown"),
    [
        (fs.LocalFileSystem(), "/runs/ray/checkpoint_7", "/runs/ray/checkpoint_7"),
        (
            fs._MockFileSystem(),
            "bucket/checkpoint_7",
            "Checkpoint(filesystem=mock, path=bucket/checkpoint_7)",
        ),
    ],
)
def test_a_checkpoint_is_where_its_storage_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, storage: Any, path: str, shown: str
) -> None:
    """A path in other storage is none of this machine, and must not become one."""
    monkeypatch.setenv("HOPTUI", "off")
    monkeypatch.chdir(tmp_path)
    newest: list[Any] = [None]
    monkeypatch.setattr(ray.train, "get_checkpoint", lambda: newest[0])
    run = hoptui.connect("ray")
    worker = RayWorker(run, 1)
    run.on_checkpoint(worker._want_checkpoint)
    send(run, "checkpoint")
    run.boundary(0)
    newest[0] = Checkpoint(path, filesystem=storage)
    worker._tell({"loss": 1.0})
    written = run_state(run).inbox.collect_outcomes()[-1]
    assert (written.code, written.fields) == ("written", {"path": shown})
    assert not worker.checkpoint_wanted
    run.close()
