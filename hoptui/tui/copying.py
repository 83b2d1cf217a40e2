"""Copying what gives a command again, to the clipboard of the terminal that the person sits at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoptui.model.command_history import again, named
from hoptui.protocol.messages import CommandRecord
from hoptui.tui.view import View

if TYPE_CHECKING:
    from hoptui.tui.app import HoptuiApp


def copy_again(app: HoptuiApp, view: View, record: CommandRecord) -> None:
    """Ask the terminal to copy it (OSC 52: it reaches through SSH, and some refuse it), and show it to be copied by hand."""
    run = view.store.run(record.run)
    if run is None:
        app.tell("its run is no longer known")
        return
    line = again(record, named(run, view.node))
    app.copy_to_clipboard(line)
    title = "Copied from the recording" if view.replay else "Copied, if the terminal lets it"
    app.tell(line, "information", title=title, timeout=10)
