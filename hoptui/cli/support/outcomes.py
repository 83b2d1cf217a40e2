"""Send verbs, wait for the outcomes of commands, report them, and derive the exit code."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hoptui.cli.support.snapshot import NodeSnapshot
from hoptui.cli.support.terminal import MISSING, OK, REJECTED, dump, say, usage, warn
from hoptui.client.session import Session
from hoptui.domain.knobs import KnobSpec, KnobValue
from hoptui.presentation import numbers, sentences, vocabulary
from hoptui.protocol.messages import FINAL, LATER_CODE, CommandRecord, RunState, Verb

SLICE_S = 0.5
"""The longest time without a look whether a wait was ended."""
SOON_S = 1.0  # an outcome that takes longer is announced first


class Given(NamedTuple):
    """A sent command: a change of a knob (`spec`), or a verb alone."""

    id: str
    verb: str
    spec: KnobSpec | None = None
    before: KnobValue | None = None
    value: KnobValue | None = None

    def __str__(self) -> str:
        if self.spec is None:
            return self.verb
        change = f"{numbers.value(self.before, self.spec)} → {numbers.value(self.value, self.spec)}"
        return f"{numbers.clean(self.spec.name)} {change}"


def follow(
    session: Session, given: list[Given], *, timeout_s: float, quiet: bool = False
) -> tuple[int, list[CommandRecord]]:
    """Wait up to `timeout_s` in total for all outcomes. Report each of them unless `quiet`.

    The exit code is 0 if all were applied, 1 if one failed, 3 if one has no outcome yet.
    Ctrl-C only ends the wait; the command remains in effect.
    """
    until = time.monotonic() + timeout_s
    outcomes: list[CommandRecord] = []
    for one in given:
        waiting: CommandRecord | None = None
        announce = _Announcement(one, quiet)
        try:
            waiting = session.outcome(one.id, timeout_s=min(SOON_S, until - time.monotonic()))
            if waiting.stage not in FINAL and until - time.monotonic() > 0:
                announce.first(waiting)
            if waiting.stage not in FINAL:
                left = max(0.0, until - time.monotonic())
                waiting = session.outcome(one.id, timeout_s=left, on_stage=announce.changed)
        except KeyboardInterrupt:
            warn(f"hoptui: interrupted; {one} stays {_so_far(waiting)}")
            raise
        outcomes.append(waiting)
        _tell(one, waiting, timeout_s, quiet=quiet)
    stages = {outcome.stage for outcome in outcomes}
    if stages == {"applied"}:
        return OK, outcomes
    return REJECTED if stages & FINAL - {"applied"} else MISSING, outcomes


class _Announcement:
    """Says what a command waits for: once, and again when the training script has taken it for later."""

    def __init__(self, one: Given, quiet: bool) -> None:
        self._one, self._quiet = one, quiet
        self._said = ""

    def first(self, record: CommandRecord) -> None:
        text = _so_far(record)
        if not self._quiet and text != self._said:
            self._said = text
            warn(f"{self._one}  {text} (Ctrl-C only stops waiting)")

    def changed(self, record: CommandRecord) -> None:
        if record.code == LATER_CODE and record.stage not in FINAL:
            self.first(record)


def knob_outcome(one: Given, outcome: CommandRecord) -> dict[str, Any]:
    """The outcome of a knob change as `--json` shows it."""
    return {
        "id": one.id,
        "knob": one.spec.name if one.spec else "",
        "from": outcome.before if outcome.before is not None else one.before,
        "to": one.value,
        "stage": vocabulary.stage_name(outcome),
        "effective": outcome.effective,
        "version": outcome.version,
        **_end(outcome),
    }


def verb_outcome(command: str, outcome: CommandRecord) -> dict[str, Any]:
    """The outcome of any other command as `--json` shows it."""
    stage = vocabulary.stage_name(outcome)
    return {"id": command, "verb": outcome.verb, "stage": stage, **_end(outcome)}


def _end(outcome: CommandRecord) -> dict[str, Any]:
    return {
        "iteration": outcome.step,
        "code": outcome.code,
        "fields": outcome.fields,
        "reason": sentences.reason(outcome),
        "took_s": outcome.took_s,
        "unsaved": outcome.unsaved,
    }


def settled(
    session: Session, commands: list[str], timeout_s: float, ended: Callable[[], bool]
) -> list[CommandRecord]:
    """Return the outcomes of commands, or their stages after `timeout_s` in total or once `ended` is True."""
    until = time.monotonic() + timeout_s
    found = []
    for command in commands:
        while True:
            left = until - time.monotonic()
            record = session.outcome(command, timeout_s=max(0.0, min(SLICE_S, left)))
            if record.stage in FINAL or left <= 0 or ended():
                break
        found.append(record)
    return found


def _tell(one: Given, outcome: CommandRecord, timeout_s: float, *, quiet: bool) -> None:
    if outcome.before is not None:
        one = one._replace(before=outcome.before)
    reason = sentences.reason(outcome) if outcome.code != "restarted" else ""
    unsaved = f", {vocabulary.UNSAVED}" if outcome.unsaved else ""
    why = f"{unsaved}: {reason}" if reason else unsaved
    if outcome.stage == "applied":
        at = f" at iteration {numbers.grouped(outcome.step)}" if outcome.step is not None else ""
        got = outcome.effective
        if one.spec is not None and got is not None and got != one.value:
            why = f"{unsaved}: {numbers.value(got, one.spec)} is in effect{why.removeprefix(unsaved)}"
        took = f", {vocabulary.took(outcome.took_s)}" if vocabulary.took(outcome.took_s) else ""
        if not quiet:
            say(f"{one}  applied{at}{took}{why}")
    elif outcome.stage in FINAL:
        warn(f"hoptui: {one}  {vocabulary.stage_word(outcome).text}{why}")
    else:
        warn(f"hoptui: {one}  still {_so_far(outcome)} after {timeout_s:g} s")


def _so_far(outcome: CommandRecord | None) -> str:
    if outcome is None or outcome.stage == "sent":
        return "on its way to the run"
    if outcome.code == "restarting":
        return f"waiting for the run, which is {sentences.reason(outcome)}"
    if outcome.code == LATER_CODE:
        return f"scheduled: {sentences.reason(outcome)}"
    step = f" for iteration {numbers.grouped(outcome.step)}" if outcome.step is not None else ""
    return f"scheduled{step}"


TIMEOUT_S = 600.0


def send_verb(
    seen: NodeSnapshot,
    run: RunState,
    verb: Verb,
    timeout: float,
    *,
    hold_s: float = 60.0,
    value: KnobValue | None = None,
    options: dict[str, int | bool] | None = None,
    json: bool = False,
) -> int:
    """Send a verb to a run, report its outcome, and return the exit code.

    Raises:
        Fail: the timeout is not positive.
    """
    if not timeout > 0:
        raise usage(f"--timeout must be more than 0 seconds, not {timeout:g}")
    command = seen.session.submit(run, verb, hold_s=hold_s, value=value, options=options or {})
    given = [Given(command, f"{verb} {numbers.clean(run.name)}")]
    code, outcomes = follow(seen.session, given, timeout_s=timeout, quiet=json)
    if json:
        dump({"run": run.run, "command": verb_outcome(command, outcomes[0])})
    return code
