from __future__ import annotations

from pathlib import Path

import pytest

import hoptui
from hoptui_trainer.common import checkpoint_writer
from hoptui_trainer.common.checkpoint_writer import CheckpointWriter
from hoptui_trainer.common.ranks import ALONE
from tests.run_state import run_state


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), MemoryError("there is too little memory")]
)
def test_a_checkpoint_that_cannot_be_written_is_a_warning(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Path:
        raise error

    run, lines = hoptui.connect("unit"), list[str]()
    saver = CheckpointWriter(run, ALONE, "lm", tmp_path, lambda: (3, {}), lines.append)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_writer, "write_checkpoint", fail)
        saver.attempt()
    assert list(tmp_path.iterdir()) == []
    assert lines == [f"no checkpoint written: {error}"]
    assert [(note.level, note.text) for note in run_state(run).notes] == [("warning", lines[0])]
    saver.attempt()
    path = tmp_path / "lm-000000003.ckpt"
    assert path.is_file()
    assert lines[1:] == [f"checkpoint written: {path}"]
