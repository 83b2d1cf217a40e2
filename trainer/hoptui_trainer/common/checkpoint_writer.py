"""The checkpoints of one run: written on schedule, on request and at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hoptui
from hoptui_trainer.common.checkpoint import checkpoint_path, write_checkpoint
from hoptui_trainer.common.ranks import RankGroup

Content = Callable[[], tuple[int, Mapping[str, Any]]]


class CheckpointWriter:
    """Writes the checkpoints of one run. All ranks hold the same, so rank 0 writes and the others do nothing.

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
        write_checkpoint(path, self._workload, {**content, "run": self._run.state_dict()})
        self._run.event(f"checkpoint written: {path}")
        return path

    def attempt(self, folder: Path | None = None) -> Path | None:
        """The same into `folder`, else into the run's own; None without either, and where it cannot be
        written.

        A full disk, or too little memory to put it together, is worth a warning, not the end of a run that
        may have taken days.
        """
        folder = folder or self._folder
        if folder is None:
            return None
        try:
            path = self.save(folder)
        except (OSError, MemoryError) as error:
            self._run.event(f"no checkpoint written: {error}", level="warning")
            self._say(f"no checkpoint written: {error}")
            return None
        if path:
            self._say(f"checkpoint written: {path}")
        return path
