"""Checkpoints: one file each, written whole or not at all, read without executing anything in it."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hoptui_trainer.common.errors import UsageError

VERSION = 2
SUFFIX = ".ckpt"


class DamagedCheckpointError(UsageError):
    """A file is no checkpoint, or not whole."""


class Resumed(NamedTuple):
    """What a job goes on from: the state of a checkpoint, None for a new run; and lines about it for
    users."""

    state: dict[str, Any] | None
    notes: tuple[str, ...] = ()


def checkpoint_path(folder: Path, workload: str, iteration: int) -> Path:
    """The file of one iteration; the names sort by iteration."""
    return folder / f"{workload}-{iteration:09d}{SUFFIX}"


def write_checkpoint(path: Path, workload: str, state: Mapping[str, Any]) -> Path:
    """Write `state` (tensors, numbers, text, dicts and lists of them) so that `path` is complete or not
    there.

    The bytes reach the disk before the name does: a machine that dies in between leaves the older checkpoints
    whole.

    Raises:
        OSError: the folder cannot be written; nothing is left behind.
        MemoryError: the bytes cannot be put together.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    content = io.BytesIO()  # torch.save turns a full disk into a RuntimeError; a plain write does not
    try:
        torch.save({"workload": workload, "version": VERSION, "state": dict(state)}, content)
    except (MemoryError, RuntimeError) as error:  # torch may turn the one into the other
        if not isinstance(error, MemoryError) and not isinstance(error.__context__, MemoryError):
            raise
        raise MemoryError("there is too little memory to put it together") from None
    try:
        with partial.open("wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return path


def best_path(folder: Path, workload: str) -> Path:
    """The file of the best weights. Its name sorts with no iteration: a folder is resumed from the newest."""
    return folder / f"{workload}-best.pt"


def resumed(path: Path | None, workload: str) -> Resumed:
    """What `--resume PATH` goes on from.

    A folder means its newest checkpoint that is not damaged, or the best weights where there is no other. A
    folder without checkpoints means a new run: one command then serves the first start of a job and every
    later one.

    Raises:
        UsageError: there is no such path, it holds other checkpoints or only damaged ones.
    """
    if path is None:
        return Resumed(None)
    if not path.is_dir():
        return Resumed(read_checkpoint(path, workload))
    best = best_path(path, workload)
    found = [*sorted(path.glob(f"{workload}-*{SUFFIX}"), reverse=True), *filter(Path.is_file, (best,))]
    if not found:
        if others := sorted(path.glob(f"*-*{SUFFIX}")):
            raise UsageError(f"--resume {path}: it holds no checkpoint of {workload}, only {others[-1].name}")
        return Resumed(None, (f"--resume {path}: there is no checkpoint yet, so this is a new run",))
    notes: list[str] = []
    for file in found:
        try:
            state = read_checkpoint(file, workload)
        except DamagedCheckpointError:
            notes.append(f"{file.name} is damaged, and left out")
            continue
        if notes or file == best:
            notes.append(f"resumed from {file.name}")
        return Resumed(state, tuple(notes))
    raise UsageError(f"--resume {path}: all its checkpoints of {workload} are damaged")


def read_checkpoint(path: Path, workload: str) -> dict[str, Any]:
    """The state written by `write_checkpoint`, its tensors on the CPU. A folder means its newest
    checkpoint.

    Raises:
        DamagedCheckpointError: it is no checkpoint at all, or not whole.
        UsageError: there is none, or it belongs to another workload.
    """
    if path.is_dir():
        found = sorted(path.glob(f"{workload}-*{SUFFIX}"))
        if not found:
            raise UsageError(f"--resume {path}: this folder holds no checkpoint of {workload}")
        path = found[-1]
    try:
        # torch checks no checksums when it reads, so a flipped bit would become a weight.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip() is not None
        content = None if damaged else torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UsageError(f"--resume {path}: there is no such file") from None
    except (OSError, RuntimeError, zipfile.BadZipFile, pickle.UnpicklingError):
        damaged = True
    if damaged:
        raise DamagedCheckpointError(f"--resume {path}: this file is no checkpoint, or it is damaged")
    if not isinstance(content, dict) or content.get("workload") != workload:
        raise UsageError(f"--resume {path}: this is no checkpoint of hoptui train {workload}")
    if content["version"] != VERSION:
        raise UsageError(
            f"--resume {path}: it has format {content['version']}, and this trainer reads format {VERSION}"
        )
    state: dict[str, Any] = content["state"]
    return state
