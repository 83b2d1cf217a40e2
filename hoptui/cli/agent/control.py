"""What an agent may do to a run. Its rules are those of a person, and what a person has set stays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from hoptui.cli.commands.pause import LONGEST_PAUSE_S
from hoptui.cli.commands.set import Wish, refusal, report, submit, wish_of, would
from hoptui.cli.commands.tune import head_age_json, limits_of, plan_json, planned
from hoptui.cli.support.outcomes import settled, verb_outcome
from hoptui.cli.support.run_events import await_effects
from hoptui.cli.support.snapshot import NodeSnapshot, check_offered, look
from hoptui.cli.support.terminal import REJECTED, Fail, usage
from hoptui.domain.knobs import KnobValue
from hoptui.domain.tuning import Objective, TunerState
from hoptui.presentation import sentences, tuner, vocabulary
from hoptui.protocol.messages import RunState, Verb

OUTCOME_S = 60.0
"""How long to wait for the outcome of a command. It stays in effect after that."""
LONGEST_S = 600.0
OLD_DAEMON = (
    "the daemon is older than this hoptui and does not know agents: hoptui daemon stop, then try again "
    "(training goes on)"
)
Ended = Callable[[], bool]
"""Whether nobody waits for the answer any more."""


@contextmanager
def _living(agent: str, run: str) -> Iterator[tuple[NodeSnapshot, RunState]]:
    """A session of an agent, and a live run. `agent` names its program. Raises Fail."""
    with look(steers=True, readings=False, agent=agent) as seen:
        found = seen.find_living(run)
        if found.held is None:
            raise Fail(OLD_DAEMON, REJECTED)
        yield seen, found


def set_knobs(
    agent: str,
    run: str,
    values: Mapping[str, KnobValue],
    *,
    why: str,
    dry_run: bool,
    restart: bool,
    measure_s: float,
    ended: Ended,
) -> dict[str, Any]:
    """Set knobs of a run, and return what was read back and the measured effects.

    Each knob must be as it was just before: a change in between is refused with its author. With `dry_run`
    nothing is sent. `restart` permits knobs of cost `restart`.
    """
    if not values:
        raise usage("nothing to set: values is empty")
    if not 0 <= measure_s <= LONGEST_S:
        raise usage(f"measure_s must be 0 to {LONGEST_S:g} seconds, not {measure_s:g}")
    with _living(agent, run) as (seen, found):
        wishes = [wish_of(found, name, _typed(value)) for name, value in values.items()]
        if refused := [wish for wish in wishes if wish.refusal]:
            return refusal(found, refused)
        if dry_run:
            return {"run": found.run, "dry_run": [_would(found, wish) for wish in wishes]}
        _check_restart(wishes, permitted=restart)
        given = submit(seen, found, wishes, why=why, expect=lambda knob: knob.version)
        outcomes = settled(seen.session, [one.id for one in given], OUTCOME_S, ended)
        document = report(found, given, outcomes)
        await_effects(seen, found, document["commands"], measure_s, ended)
        return document


def _typed(value: KnobValue) -> str:
    """A value as a person types it."""
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def _would(run: RunState, wish: Wish) -> dict[str, Any]:
    return {**would(wish), "held_by": (run.held or {}).get(wish.knob.spec.name)}


def _check_restart(wishes: Sequence[Wish], *, permitted: bool) -> None:
    restarting = [w for w in wishes if w.knob.spec.cost == "restart" and w.value != w.knob.value]
    if restarting and not permitted:
        names = ", ".join(wish.knob.spec.name for wish in restarting)
        raise usage(f"the run restarts for {names}: {vocabulary.RESTART}; permit it with restart=true")


def send(agent: str, run: str, verb: Verb, ended: Ended, *, hold_s: float = 60.0) -> dict[str, Any]:
    """Send a command other than `set` to a run, and return its outcome."""
    if not 1 <= hold_s <= LONGEST_PAUSE_S:
        raise usage(f"seconds must be 1 to {LONGEST_PAUSE_S:g}, not {hold_s:g}")
    with _living(agent, run) as (seen, found):
        check_offered(found, verb)
        command = seen.session.submit(found, verb, hold_s=hold_s)
        [outcome] = settled(seen.session, [command], OUTCOME_S, ended)
        return {"run": found.run, "command": verb_outcome(command, outcome)}


Act = Literal["start", "stop", "status", "plan"]


def tune(
    agent: str,
    run: str,
    act: Act,
    *,
    budget: float | None,
    objective: Objective | None,
    allow: list[str],
    ended: Ended,
) -> dict[str, Any]:
    """Start or stop the tuner of a run, or return its state or what it would try next."""
    typed = None if budget is None else str(budget)
    limits = limits_of([], typed, objective, allow, dry=act == "plan")
    with _living(agent, run) as (seen, found):
        if act == "status":
            age = head_age_json(found, seen.store.vital(found.run))
            return {**_tuner(found, found.tuner or TunerState()), **age}
        if act == "stop":
            answer = seen.session.tune(found.run, "stop")
        else:
            answer = seen.session.tune(found.run, "start", limits=limits)
        on_already = act == "plan" and answer.code == "tune.on_already"
        if not answer.granted and not on_already:
            raise Fail(sentences.refusal(answer), REJECTED)
        if act != "plan":
            return _tuner(found, answer.state)
        until = time.monotonic() + OUTCOME_S
        state = planned(
            seen,
            found,
            answer.state,
            mine=answer.granted,
            ended=lambda: ended() or time.monotonic() > until,
        )
        return plan_json(found, state)


def _tuner(run: RunState, state: TunerState) -> dict[str, Any]:
    return {"run": run.run, "tuner": tuner.in_words(state)}
