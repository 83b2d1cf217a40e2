"""Knobs that need a new process: the run writes a checkpoint, and this process becomes the next epoch of the same run."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import hoptui
from trainer.common.options import declared, option_name, spelled

BEGAN = "TRAINER_RESTART_BEGAN"
"""In the environment of a restarted process: the monotonic nanoseconds at which the old one stopped training."""
LEFT = "TRAINER_RESTART_FOLDER"
"""Likewise: a folder made for this restart alone, to be removed once its checkpoint is read."""


class Restart:
    """Collects the knobs that a restart will change; the training loop ends its iterations when `wanted` is not empty.

    `config` is the dataclass that declares the workload's knobs.
    """

    def __init__(self, world: int, config: type) -> None:
        self.wanted: dict[str, int | float | str | bool] = {}
        self._world = world
        self._knobs = {option_name(name): kind for name, kind, _ in declared(config)}

    def ask(self, name: str, now: Callable[[], object]) -> Callable[[int | float | str | bool], None]:
        """What applies a new value of the knob `name`. It raises where this process cannot be replaced alone.

        `now()` is the value that this process has: to set that back takes the wish back.
        """

        def apply(value: int | float | str | bool) -> None:
            if value == now():
                self.wanted.pop(name, None)
                return
            if self._world > 1:
                raise RuntimeError(f"{name} needs a restart, and this run has {self._world} processes")
            self.wanted[name] = value

        return apply

    def folder(self, chosen: Path | None) -> Path:
        """Where to write the checkpoint: the run's own folder, or one that is removed after it was read."""
        if chosen is not None:
            return chosen
        folder = Path(tempfile.mkdtemp(prefix="trainer-restart-"))
        os.environ[LEFT] = str(folder)
        return folder

    def begin(self, checkpoint: Path) -> NoReturn:
        """Replace this process by one that goes on from `checkpoint` with the values wanted; the run must be closed."""
        os.environ[BEGAN] = str(time.monotonic_ns())
        sys.stdout.flush()
        sys.stderr.flush()
        arguments = [*kept(sys.argv[1:], self._knobs), f"--resume={checkpoint}"]
        arguments += (f"{option_name(name)}={spelled(value)}" for name, value in self.wanted.items())
        os.execv(sys.executable, [sys.executable, "-m", "trainer", *arguments])


def kept(arguments: Sequence[str], knobs: Mapping[str, type]) -> list[str]:
    """A command line without `--resume` and the knobs (by option): the checkpoint knows their values as they are by now."""
    left: list[str] = []
    skip = False
    for argument in arguments:
        option, has_value, _ = argument.partition("=")
        positive = f"--{option.removeprefix('--no-')}"
        if skip:
            skip = False
        elif option == "--resume" or option in knobs:
            skip = not has_value and knobs.get(option) is not bool
        elif knobs.get(positive) is not bool:
            left.append(argument)
    return left


def restarted(run: hoptui.Run) -> None:
    """To be called when training is about to go on: says how long it stood still, and removes what was written for it."""
    if folder := os.environ.pop(LEFT, None):
        shutil.rmtree(folder, ignore_errors=True)
    if began := os.environ.pop(BEGAN, None):
        seconds = (time.monotonic_ns() - int(began)) / 1e9
        run.event(f"restarted from a checkpoint; training stood still for {seconds:.1f} s")
