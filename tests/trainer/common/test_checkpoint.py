from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from hoptui_trainer.common.checkpoint import (
    best_path,
    checkpoint_path,
    read_checkpoint,
    resumed,
    write_checkpoint,
)
from hoptui_trainer.common.errors import UsageError

STATE: dict[str, Any] = {
    "iteration": 3,
    "weights": torch.arange(4.0),
    "config": {"lr": 0.5, "names": ["a"]},
    "none": None,
}


def test_a_checkpoint_reads_back_what_was_written(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "new" / "x.ckpt", "ppo", STATE)
    back = read_checkpoint(path, "ppo")
    assert torch.equal(back.pop("weights"), STATE["weights"])
    assert back == {name: value for name, value in STATE.items() if name != "weights"}


def test_a_folder_stands_for_its_newest_checkpoint(tmp_path: Path) -> None:
    for iteration in (2, 10, 9):
        write_checkpoint(checkpoint_path(tmp_path, "ppo", iteration), "ppo", {"iteration": iteration})
    write_checkpoint(checkpoint_path(tmp_path, "zzz", 99), "zzz", {"iteration": 99})
    assert read_checkpoint(tmp_path, "ppo") == {"iteration": 10}


class Narrow(io.BytesIO):
    """Memory of which there is too little for a tensor, or for a little more than one."""

    room = 0

    def write(self, part: Any) -> int:
        if self.tell() + len(part) > self.room:
            raise MemoryError
        return super().write(part)


@pytest.mark.parametrize("room", [0, 600])
def test_too_little_memory_for_a_checkpoint_is_told_as_that(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Narrow, "room", room)
    monkeypatch.setattr("hoptui_trainer.common.checkpoint.io.BytesIO", Narrow)
    with pytest.raises(MemoryError, match="too little memory"):
        write_checkpoint(tmp_path / "x.ckpt", "ppo", STATE)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_older_checkpoint_and_no_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path / "x.ckpt", "ppo", {"iteration": 1})

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(path, "ppo", {"iteration": 2})
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.ckpt"]
    assert read_checkpoint(path, "ppo") == {"iteration": 1}


def test_the_bytes_are_on_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.ckpt"
    order: list[str] = []
    sync, replace = os.fsync, Path.replace

    def seen_sync(fd: int) -> None:
        order.append("sync")
        sync(fd)

    def seen_replace(old: Path, new: Path) -> Path:
        order.append("rename")
        return replace(old, new)

    monkeypatch.setattr(os, "fsync", seen_sync)
    monkeypatch.setattr(Path, "replace", seen_replace)
    write_checkpoint(path, "ppo", STATE)
    assert order == ["sync", "rename", "sync"]


def test_what_cannot_be_resumed_is_told_in_one_sentence(tmp_path: Path) -> None:
    whole = write_checkpoint(tmp_path / "whole.ckpt", "ppo", STATE)
    cut = tmp_path / "cut.ckpt"
    cut.write_bytes(whole.read_bytes()[:-200])
    flipped = tmp_path / "flipped.ckpt"
    at = whole.read_bytes().index(STATE["weights"].numpy().tobytes())
    flipped.write_bytes(whole.read_bytes()[:at] + b"\xff" + whole.read_bytes()[at + 1 :])
    text = tmp_path / "text.ckpt"
    text.write_text("iteration: 3")
    bare = tmp_path / "bare.ckpt"
    torch.save([1, 2], bare)
    (tmp_path / "empty").mkdir()
    for path, workload, problem in (
        (tmp_path / "absent.ckpt", "ppo", "no such file"),
        (cut, "ppo", "damaged"),
        (flipped, "ppo", "damaged"),
        (text, "ppo", "damaged"),
        (bare, "ppo", "no checkpoint of hoptui train ppo"),
        (whole, "lm", "no checkpoint of hoptui train lm"),
        (tmp_path / "empty", "ppo", "holds no checkpoint of ppo"),
    ):
        with pytest.raises(UsageError, match=problem) as caught:
            read_checkpoint(path, workload)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_folder_is_resumed_from_its_newest_checkpoint_that_is_whole(tmp_path: Path) -> None:
    assert resumed(None, "lm") == (None, ())
    assert resumed(tmp_path, "lm").state is None
    assert len(resumed(tmp_path, "lm").notes) == 1
    best = write_checkpoint(best_path(tmp_path, "lm"), "lm", {"iteration": 15})
    found = resumed(tmp_path, "lm")
    assert (found.state, found.notes) == ({"iteration": 15}, (f"resumed from {best.name}",))
    for iteration in (10, 20):
        write_checkpoint(checkpoint_path(tmp_path, "lm", iteration), "lm", {"iteration": iteration})
    assert resumed(tmp_path, "lm") == ({"iteration": 20}, ())
    assert resumed(best, "lm").state == {"iteration": 15}
    checkpoint_path(tmp_path, "lm", 20).write_bytes(b"half")
    found = resumed(tmp_path, "lm")
    assert found.state == {"iteration": 10}
    assert len(found.notes) == 2
    for file in (best, checkpoint_path(tmp_path, "lm", 10)):
        file.write_bytes(b"half")
    with pytest.raises(UsageError, match="all its checkpoints of lm are damaged"):
        resumed(tmp_path, "lm")
    with pytest.raises(UsageError, match=r"no checkpoint of ppo, only lm-000000020\.ckpt"):
        resumed(tmp_path, "ppo")
    with pytest.raises(UsageError, match="no such file"):
        resumed(tmp_path / "absent", "lm")


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("trapped",)


def test_reading_a_checkpoint_executes_nothing_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"workload": "ppo", "version": 1, "state": Trap()}, tmp_path / "zip.ckpt")
    (tmp_path / "raw.ckpt").write_bytes(pickle.dumps(Trap()))
    for name in ("zip.ckpt", "raw.ckpt"):
        with pytest.raises(UsageError, match="damaged"):
            read_checkpoint(tmp_path / name, "ppo")
    assert not (tmp_path / "trapped").exists()
