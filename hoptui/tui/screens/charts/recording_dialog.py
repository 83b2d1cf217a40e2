"""The question which recording is to lie beside a run: those of this node, or any by its path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hoptui.tui.dialogs import Choice, Finder, Option

if TYPE_CHECKING:
    from hoptui.tui.app_protocol import AppProtocol


async def ask(
    app: AppProtocol,
    run: str,
    replayed: Path | None,
    *,
    comparing: bool,
    chosen: Callable[[Path | None], None],
) -> None:
    """Ask what to compare a run with, which may be `replayed` from a file, and call `chosen` with the file.

    It is called with None where nothing is to be compared any more, which is offered to who is `comparing`.
    """
    # Here, because it needs SQLite and a live dashboard does not:
    from hoptui.model.reference_run import comparable

    found = await asyncio.to_thread(comparable, run, replayed)
    ends = [Option("nothing", "end the comparison")] if comparing else []

    def typed(path: str) -> list[Option]:
        return [Option(path, "the file of this name")] if file_of(path) else []

    def answered(answer: Choice | None) -> None:
        if answer is None:
            return
        if answer.place < len(ends):
            chosen(None)
        elif answer.place < len(ends) + len(found):
            chosen(found[answer.place - len(ends)].path)
        elif path := file_of(answer.option.text):
            chosen(path)

    options = [*ends, *(Option(one.name, one.about) for one in found)]
    nothing = "there is no other recording; type the path of one"
    app.push_screen(Finder("Compare with", options, nothing=nothing, more=typed), answered)


def file_of(typed: str) -> Path | None:
    """The file that is called so; None where there is none, or it cannot be looked at."""
    try:
        path = Path(typed).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long a name, a closed folder; nobody's home; no name
        return None
