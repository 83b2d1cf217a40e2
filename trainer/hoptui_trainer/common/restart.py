"""Knobs that need a new process: the run writes a checkpoint, and this process becomes the next epoch of the
same run.

With several ranks all of them do so at the same boundary: `exec` keeps the pids that a launcher watches over,
and the environment by which the new programs meet.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import hoptui
from hoptui_trainer.common.checkpoint_writer import CheckpointWriter
from hoptui_trainer.common.options import declared, kept, option_name
from hoptui_trainer.common.ranks import RESTARTS, RankGroup, restarts

LEFT = "TRAINER_RESTART_FOLDER"
"""In the environment of a restarted process: a folder made for its checkpoint alone."""


class Restart:
    """Ends the training loop where a knob needs a new process, and begins that.

    Args:
        config: the dataclass that declares the workload's knobs.
        folder: where checkpoints are written to; without one there is a folder for the checkpoint alone,
            which goes once training has gone on from it.
        say: takes a line for users.
    """

    def __init__(
        self,
        run: hoptui.Run,
        ranks: RankGroup,
        saver: CheckpointWriter,
        config: type,
        folder: Path | None,
        say: Callable[[str], None],
    ) -> None:
        self._run, self._ranks, self._saver, self._folder, self._say = run, ranks, saver, folder, say
        self._knobs = {option_name(name): kind for name, kind, _ in declared(config)}
        self._checkpoint: Path | None = None
        self._left = os.environ.pop(LEFT, None)
        self._proven = False
        self._forced: dict[str, int] = {}

    def due(self) -> bool:
        """Whether the loop is to end for a new process; to be asked after each boundary, on all ranks.

        Where there can be none, the knobs are set back with the reason, and training goes on.
        """
        if self._proven:
            self._clear()
        self._proven = True  # the next time an iteration will have been
        wanted = self._run.restart_wanted
        if not wanted:
            return False
        problem = self._prepare()
        if problem:
            self._run.refuse_restart(problem)
            return False
        values = ", ".join(f"{name} = {value}" for name, value in wanted.items())
        self._say(f"restarting from {self._checkpoint} with {values}")
        return True

    def force(self, values: Mapping[str, int]) -> str:
        """End the loop for a new process with these values of knobs, which nobody asked for. All ranks call
        it, and leave the loop.

        Returns why that cannot be, "" if it can.
        """
        self._forced = dict(values)
        if problem := self._prepare():
            return problem
        self._say(f"restarting from {self._checkpoint}")
        return ""

    def leave(self) -> bool:
        """After the loop, while the run is open: leave it to the next process, if there is to be one."""
        if self._checkpoint is None:
            self._clear()
            return False
        self._run.hand_over(str(self._checkpoint))
        return True

    def begin(self) -> NoReturn:
        """Replace this process by the one that goes on. The run has been left, and the ranks have left each
        other."""
        values = self._run.restart_wanted | self._forced
        os.environ[RESTARTS] = str(restarts(os.environ) + 1)
        if self._folder is None and self._checkpoint is not None:
            os.environ[LEFT] = str(self._checkpoint.parent)
        self._ranks.outlast()
        sys.stdout.flush()
        sys.stderr.flush()
        arguments = [*kept(sys.argv[1:], self._knobs), f"--resume={self._checkpoint}"]
        arguments += (f"{option_name(name)}={value}" for name, value in values.items())
        safe = ["-P"] if sys.flags.safe_path else []
        os.execv(sys.executable, [sys.executable, *safe, "-m", "hoptui_trainer", *arguments])

    def _prepare(self) -> str:
        """Write the checkpoint that all ranks go on from; why that cannot be, "" if it can."""
        if not self._ranks.all(not self._run.stop_asked):
            return "the run is about to stop"
        path, problem, folder = None, "", self._folder
        try:
            if folder is None and not self._ranks.rank:
                folder = Path(tempfile.mkdtemp(prefix="trainer-restart-"))
            path = self._saver.save(folder or Path())
        except (OSError, MemoryError) as error:
            problem = f"there is no checkpoint to restart from: {error}"
        path, problem = self._ranks.gather((path, problem))[0]
        if path is not None and not self._ranks.all(path.is_file()):
            problem = (
                f"not every rank sees {path}: --checkpoint-dir must be on a disk that all machines share"
            )
        if problem:
            if self._folder is None and folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            return problem
        self._checkpoint = path
        self._clear()
        return ""

    def _clear(self) -> None:
        """Remove the folder of the checkpoint that this process came from."""
        if self._left and not self._ranks.rank:
            shutil.rmtree(self._left, ignore_errors=True)
        self._left = None
