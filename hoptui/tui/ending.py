"""Ending a process on a GPU: the question that is asked before, and the signal after it. SIGTERM first; SIGKILL only for one
that got it and is still there."""

from __future__ import annotations

import signal
from typing import NamedTuple

from hoptui.domain.devices import GpuProcess
from hoptui.model.process_handle import Held, NotYoursError
from hoptui.presentation import numbers
from hoptui.tui.view import View

_LONGEST = 300


class Question(NamedTuple):
    """What is asked of the person, and the signal that a yes sends."""

    title: str
    question: str
    consequence: str
    number: signal.Signals


class Endings:
    """Remembers who was asked to end. Times are seconds of the local monotonic clock."""

    def __init__(self) -> None:
        self._asked: dict[tuple[int, float], float] = {}

    def hold(self, view: View, shown: GpuProcess) -> Held:
        """The process itself, until the question is answered.

        Raises:
            NotYoursError: it may not be ended from here; the text says why.
        """
        if view.read_only:
            raise NotYoursError("read-only: no process is ended")
        if view.link.node:
            raise NotYoursError(f"the process is on {view.link.node}: it cannot be ended from here")
        if view.node is None:
            raise NotYoursError("there is no word from the daemon")
        return Held(shown, view.node)

    def question(self, view: View, shown: GpuProcess, held: Held) -> Question:
        """What to ask: it names the pid, the user and the command, as they are now."""
        who = f"process {held.pid} of {numbers.clean(held.user, 40)}"
        lines = [numbers.clean(held.command, _LONGEST)]
        run = view.store.run(shown.run) if shown.run else None
        if run is not None:
            lines.append(
                f"It belongs to the run {numbers.clean(run.name, 40)}. Stop the run itself if it is to end well."
            )
        since = self._asked.get((held.pid, held.started))
        if since is None:
            lines.append("SIGTERM asks it to end. What it has not saved may be lost.")
            return Question("End process", f"End {who}?", "\n".join(lines), signal.SIGTERM)
        ago = numbers.duration(max(0.0, view.clock - since))
        lines.append(
            f"It was asked to end {ago} ago and is still there. SIGKILL ends it at once: it can save nothing."
        )
        return Question("Kill process", f"Kill {who}?", "\n".join(lines), signal.SIGKILL)

    def end(self, held: Held, number: signal.Signals, now: float) -> str:
        """Send the signal; returns one sentence on what was done."""
        try:
            held.end(number)
        except NotYoursError as error:
            return str(error)
        self._asked[held.pid, held.started] = now
        return f"process {held.pid} got {number.name}"
