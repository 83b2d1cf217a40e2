"""Wait until something happens to a run: an iteration, a measured effect, a verdict, its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec import structs

from hoptui.cli.support.records import command_json
from hoptui.cli.support.snapshot import NONE, NodeSnapshot, diagnosis_json, knob_named, state_name
from hoptui.cli.support.terminal import MISSING, Fail, usage
from hoptui.client.session import Unreachable
from hoptui.domain.knobs import coefficient
from hoptui.presentation import job_head, numbers, sentences, tuner, vocabulary
from hoptui.protocol.messages import FINAL, CommandRecord, RunState

RETURN_S = 30.0
"""How long to wait for a lost daemon to come back. Runs start a new one automatically."""
AGAIN_S = 0.2
SLICE_S = 0.5
"""The longest request of a wait, so that it can be ended."""
EVENTS = {
    "iteration": "the next iteration has finished; iteration=1200: so many have",
    "effect": "the effect of the newest change is measured; effect=ID: that of a command",
    "command": "a command to the run has its outcome, whoever sent it",
    "verdict": "the daemon knows what limits the run",
    "tuner": "the tuner tries nothing any more",
    "event": "anything is added to the events of the run",
    "live": "the run trains",
    "paused": "the run is paused",
    "hung": "the run is hung or unresponsive",
    "ended": "the run has exited",
}
"""What can be waited for."""
TAKES = ("iteration", "effect")
Detail = dict[str, Any]


class _Impossible(Exception):  # noqa: N818 - says what is the case
    """It will not happen. The text says why."""


class Waiting:
    """One wait. Raises Fail for an event that there is not (exit code 2), or a command (3)."""

    def __init__(self, seen: NodeSnapshot, run: RunState, wanted: str) -> None:
        name, equals, value = wanted.partition("=")
        if name not in EVENTS:
            raise usage(f"there is no event {numbers.clean(name)!r}; the events are {', '.join(EVENTS)}")
        if equals and (name not in TAKES or not value):
            raise usage(f"{numbers.clean(wanted)!r} has a value that {name} does not take")
        self._seen, self._id, self._name = seen, run.run, name
        self._event, self._began_t = seen.newest_event, seen.store.now()
        self._began = {record.id for record in self._records() if record.stage in FINAL}
        self._target = self._iteration(value) if name == "iteration" else 0
        self._command = self._change(value) if name == "effect" else ""

    def until(self, timeout_s: float, ended: Callable[[], bool] = lambda: False) -> Detail:
        """Return what happened as `hoptui wait --json` shows it, after at most `timeout_s`.

        `happened` is False after that time, if `ended` returns True, or if it is not `possible` any more.
        """
        began, version = time.monotonic(), 0
        happened, possible, reason, detail = False, True, "", None
        while True:
            try:
                detail = self._happened()
            except _Impossible as error:
                possible, reason = False, str(error)
                break
            left = began + timeout_s - time.monotonic()
            if happened := detail is not None:
                break
            if left <= 0 or ended():
                reason = f"not within {timeout_s:g} s"
                break
            version = next_state(self._seen, self._id, version, min(SLICE_S, left), everything=True)
        return {
            "run": self._id,
            "event": self._name,
            "happened": happened,
            "possible": possible,
            "reason": reason,
            "waited_s": time.monotonic() - began,
            "detail": detail,
        }

    def _iteration(self, value: str) -> int:
        if value and not value.isdecimal():
            raise usage(f"iteration={numbers.clean(value)} is not a number of iterations")
        return int(value) if value else (vocabulary.iteration(self._seen.store.vital(self._id)) or 0) + 1

    def _change(self, value: str) -> str:
        """The id of the command whose effect is wanted."""
        changes = [record for record in self._records() if record.verb == "set"]
        wanted = [record for record in changes if record.id == value] if value else changes[-1:]
        if not wanted:
            why = f"no change has the id {numbers.clean(value)}" if value else "nothing was set"
            raise Fail(why, MISSING)
        return wanted[0].id

    def _records(self) -> list[CommandRecord]:
        return [record for record in self._seen.store.commands.values() if record.run == self._id]

    def _happened(self) -> Detail | None:
        """What has happened, None for nothing yet. Raises _Impossible."""
        run = self._seen.store.run(self._id)
        if run is None:  # to a new daemon, until the run connects
            return None
        found = self._look(run)
        if found is None and not self._seen.lives(run) and self._name != "effect":
            state = vocabulary.state_text(self._seen.store.vital(self._id), run)
            raise _Impossible(f"{numbers.clean(run.name)}: {state}")
        return found

    def _look(self, run: RunState) -> Detail | None:
        vital = self._seen.store.vital(self._id)
        match self._name:
            case "iteration":
                done = vocabulary.iteration(vital)
                return {"iteration": done} if done is not None and done >= self._target else None
            case "effect":
                return self._effect(run)
            case "command":
                ended = (r for r in self._records() if r.stage in FINAL and r.id not in self._began)
                new = (r for r in ended if not r.host or r.settled > self._began_t)
                return next(map(command_json, new), None)
            case "verdict":
                found = run.diagnosis
                known = found is not None and found.verdict != "unknown" and not found.stale
                return diagnosis_json(found) if known else None
            case "tuner":
                idle = run.tuner is not None and run.tuner.stand in ("off", "holding")
                idle = idle and job_head.old_s(vital) is None
                return structs.asdict(tuner.in_words(run.tuner)) if run.tuner is not None and idle else None
            case "event":
                added = (e for e in self._seen.store.events if e.seq > self._event and e.run == self._id)
                first = next((e for e in added if not e.host or e.t > self._began_t), None)
                return {**structs.asdict(first), "text": sentences.event_text(first)} if first else None
            case "ended":
                over = {"reason": run.exit_reason, "detail": run.exit_detail}
                return over if not self._seen.lives(run) else None
        if vital is None or not self._seen.lives(run):
            return None
        state = state_name(vital)
        wanted = ("hung", "unresponsive") if self._name == "hung" else (self._name,)
        return {"state": state} if state in wanted else None

    def _effect(self, run: RunState) -> Detail | None:
        record = self._seen.store.commands.get(self._command)
        if record is None or record.stage not in FINAL:
            return None
        if record.stage != "applied":
            stage, why = vocabulary.stage_name(record), sentences.reason(record)
            raise _Impossible(f"there is no effect: {record.knob} is {stage}{f': {why}' if why else ''}")
        if record.measured is not None and record.measured.settled:
            return command_json(record)
        if coefficient(knob_named(run, record.knob).spec):
            raise _Impossible(f"{record.knob} does not change the speed: its effect is not measured")
        if not self._seen.lives(run):
            raise _Impossible("the run ended before the effect was measured")
        return None


def await_effects(
    seen: NodeSnapshot,
    run: RunState,
    given: list[dict[str, Any]],
    timeout_s: float,
    ended: Callable[[], bool] = lambda: False,
) -> None:
    """Add the measured effects to changes as `hoptui set --json` shows them, after at most `timeout_s`.

    Each gets `measured`, `contended` and `effect`: the effect in words, or why there is no figure.
    """
    until, version = time.monotonic() + timeout_s, 0
    for change in given:
        why = "not applied"
        if change["stage"] == "applied":
            while change["id"] not in seen.store.commands and time.monotonic() < until and not ended():
                version = next_state(seen, run.run, version, SLICE_S, everything=True)
            why = "not measured yet"
            if change["id"] in seen.store.commands:
                waiting = Waiting(seen, run, f"effect={change['id']}")
                found = waiting.until(max(0.0, until - time.monotonic()), ended)
                why = why if found["possible"] else found["reason"]
        record = seen.store.commands.get(change["id"])
        measured = record.measured if record is not None else None
        change["measured"] = measured
        change["contended"] = vocabulary.contended(measured)
        change["effect"] = vocabulary.effect_text(measured) or why


def next_state(
    seen: NodeSnapshot, run: str, version: int, wait_s: float = 1.0, *, everything: bool = False
) -> int:
    """Wait up to `wait_s` for a state newer than `version`, apply it, and return its version.

    A lost daemon gets time to come back. With `everything`, also new commands and events are news.

    Raises:
        Unreachable: the daemon did not come back.
    """
    end = time.monotonic() + RETURN_S
    while True:
        try:
            delta = seen.session.fetch(
                run=run,
                events=seen.newest_event if everything else NONE,
                commands=seen.newest_command if everything else NONE,
                state=version,
                wait_s=wait_s,
            )
        except Unreachable:
            if time.monotonic() > end:
                raise
            time.sleep(AGAIN_S)
            continue
        seen.store.apply(delta)
        return delta.state
