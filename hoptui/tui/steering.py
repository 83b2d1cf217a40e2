"""What the keys do to a run: commands through the client, pauses kept alive, undo. No screen, no timer.

A pause is a lease: a run that this dashboard paused goes on by itself once nobody renews it, so the renewal lives exactly
as long as the dashboard is open.
"""

from __future__ import annotations

from typing import Literal

from hoptui.tui.view import UNDO, Connection, View, undoable
from hoptui.wire.knobs import KnobState, KnobValue
from hoptui.wire.messages import FINAL, CommandRecord, Verb

HOLD_S = 60.0
RENEW_S = 20.0


class Steering:
    """Sends commands for one dashboard. Times are seconds of the local monotonic clock."""

    def __init__(self, client: Connection) -> None:
        self._client = client
        self._held: dict[str, tuple[str, float]] = {}  # run -> (command id of the pause, when to renew)

    @property
    def held(self) -> list[str]:
        """The runs that this dashboard keeps paused."""
        return list(self._held)

    def may(self, view: View, verb: Verb) -> bool:
        """Whether the command makes sense now: the run exists, can do it, and the link is up.

        Nothing is sent into a lost link: it would reach the run some time later, when nobody expects it any more.
        """
        run = view.run
        return run is not None and not view.exited and view.link.state == "live" and verb in run.can

    def set(self, view: View, knob: KnobState, value: KnobValue, expect_version: int, why: str = "") -> str:
        """Ask for a value; returns the command's id."""
        return self._send(
            view, "set", knob=knob.spec.name, value=value, expect_version=expect_version, why=why
        )

    def undo(self, view: View) -> tuple[CommandRecord | None, str]:
        """Set the last applied change back; returns that change and one sentence for the person."""
        record = undoable(view.commands())
        if record is None or record.before is None:
            return None, "there is no applied change to undo"
        knob = view.knob(record.knob)
        if knob is None:
            return None, f"{record.knob} is no longer a knob of this run"
        if knob.value == record.before:
            return None, f"{record.knob} has its value of before already"
        self.set(view, knob, record.before, knob.version, why=f"{UNDO}{record.id}")
        return record, ""

    def pause_or_resume(self, view: View, now: float) -> Literal["pause", "resume"]:
        """Pause a run that goes, let a paused one go on."""
        run = view.run
        assert run is not None
        if view.vital is not None and view.vital.state == "paused":
            self._held.pop(run.run, None)
            self._send(view, "resume")
            return "resume"
        self._held[run.run] = (self._send(view, "pause"), now + RENEW_S)
        return "pause"

    def checkpoint(self, view: View) -> str:
        return self._send(view, "checkpoint")

    def stop(self, view: View) -> str:
        return self._send(view, "stop")

    def renew(self, now: float) -> None:
        """Renew the pauses that are due; forget those that ended otherwise. Call it about once a second."""
        for run, (pause, due) in list(self._held.items()):
            if self._over(run, pause):
                del self._held[run]
            elif now >= due:
                self._client.lease(run, "renew", "pause")
                self._held[run] = (pause, now + RENEW_S)

    def _over(self, run: str, pause: str) -> bool:
        """Whether the pause was refused, or was applied and the run goes on since."""
        record = self._client.store.commands.get(pause)
        if record is None or record.stage not in FINAL:
            return False
        vital = self._client.store.vital(run)
        paused = vital is not None and vital.state == "paused"
        settled_s = (self._client.store.now() - (record.settled or record.t)) / 1e9
        return record.stage != "applied" or (not paused and settled_s > 3.0)

    def _send(
        self,
        view: View,
        verb: Verb,
        *,
        knob: str = "",
        value: KnobValue | None = None,
        expect_version: int | None = None,
        why: str = "",
    ) -> str:
        assert view.run is not None
        return self._client.send(
            verb,
            view.run.run,
            knob=knob,
            value=value,
            expect_version=expect_version,
            why=why,
            hold_s=HOLD_S,
        )
