"""The checkpoints of one run: written on schedule, on request and at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hoptui
from hoptui_trainer.common.checkpoint import best_path, checkpoint_path, write_checkpoint
from hoptui_trainer.common.ranks import RankGroup

Content = Callable[[], tuple[int, Mapping[str, Any]]]


class CheckpointWriter:
    """Writes the checkpoints of one run. All ranks hold the same, so rank 0 writes and the others do nothing.
    `best` is the file of the best weights, None without a folder.

    Args:
        folder: where to; None: no checkpoints. With one, viewers may ask for a checkpoint.
        content: the finished iterations, and what goes on from them; all ranks call it. The run's own state
            is added.
        say: takes a line for users.
    """

    def __init__(
        self,
        run: hoptui.Run,
        ranks: RankGroup,
        workload: str,
        folder: Path | None,
        content: Content,
        say: Callable[[str], None],
    ) -> None:
        self._run, self._ranks, self._workload = run, ranks, workload
        self._folder, self._content, self._say = folder, content, say
        self.best = best_path(folder, workload).absolute() if folder is not None else None
        if folder is not None:
            run.on_checkpoint(lambda: self.save(folder))

    def save(self, folder: Path) -> Path | None:
        """Write a checkpoint into `folder`; returns its path on rank 0.

        Raises:
            OSError: it cannot be written.
        """
        iteration, content = self._content()
        if self._ranks.rank:
            return None
        path = checkpoint_path(folder, self._workload, iteration)
        self._write(path, content)
        self._run.event(f"checkpoint written: {path}")
        return path

    def attempt(self) -> None:
        """Write a checkpoint into the run's folder, if there is one; all ranks call it.

        A full disk, or too little memory to put it together, is worth a warning, not the end of a run that
        may have taken days.
        """
        if self._folder is None:
            return
        try:
            path = self.save(self._folder)
        except (OSError, MemoryError) as error:
            self._warn(f"no checkpoint written: {error}")
            return
        if path:
            self._say(f"checkpoint written: {path}")

    def keep_best(self, *, first: bool) -> bool:
        """Write the file of the best weights, which are those of now; all ranks call it.

        Args:
            first: whether no earlier one is of these weights. What is in their place then is of another run
                or model, and is kept under another name.

        Returns:
            Whether they are in the file, on rank 0. An error is a warning, and the older file stays.
        """
        if self.best is None:
            return False
        try:
            _, content = self._content()
            if self._ranks.rank:
                return False
            if first and self.best.exists():
                before = self.best.with_suffix(f".previous{self.best.suffix}")
                self.best.replace(before)
                self._say(f"{self.best} was there already: it is {before.name} now")
            self._write(self.best, content)
        except (OSError, MemoryError) as error:
            self._warn(f"best weights not written: {error}")
            return False
        return True

    def _write(self, path: Path, content: Mapping[str, Any]) -> None:
        write_checkpoint(path, self._workload, {**content, "run": self._run.state_dict()})

    def _warn(self, text: str) -> None:
        self._run.event(text, level="warning")
        self._say(text)
