"""`hoptui tune`: have the daemon turn a run's speed knobs, watch what it tries, and end it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple

from cyclopts import Parameter
from msgspec import structs

from hoptui.cli.support.options import Json, Run
from hoptui.cli.support.snapshot import NONE, NodeSnapshot, knob_named, look
from hoptui.cli.support.terminal import MISSING, OK, REJECTED, Fail, dump, say, usage, warn
from hoptui.client.session import Unreachable
from hoptui.domain.tuning import Limits, Objective, Trial, TunerState, check_limits
from hoptui.model.command_history import command_line, named
from hoptui.presentation import numbers, tuner, vocabulary
from hoptui.protocol.messages import RunState

RETURN_S = 30.0
"""How long a daemon that is gone may take to come back: runs start another by themselves."""
AGAIN_S = 0.2
LEARNING = "learning"


class _Act(NamedTuple):
    """What else than to start it."""

    op: Literal["stop", "status", "freeze", "release"]
    knob: str = ""


def tune(
    run: Run,
    /,
    *,
    within: Annotated[
        list[str] | None,
        Parameter(
            consume_multiple=(1, None),
            negative=(),
            show_default=False,
            help="Limits of a trial: memory=90% of each GPU, power=400 watts a GPU.",
        ),
    ] = None,
    budget: Annotated[
        str | None, Parameter(show_default=False, help="Share of the run's time that trials may take (2%).")
    ] = None,
    objective: Annotated[
        Objective | None, Parameter(show_default=False, help="What is to become better (throughput).")
    ] = None,
    allow: Annotated[
        list[str] | None,
        Parameter(
            consume_multiple=(1, None),
            negative=(),
            show_default=False,
            help="Knobs that change what is learned and may be turned all the same; `learning`: all but those of cost free.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Say what it would try, and try nothing.")
    ] = False,
    detach: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Start it, and do not watch.")
    ] = False,
    status: Annotated[
        bool, Parameter(negative=(), show_default=False, help="How it stands, and what it has tried.")
    ] = False,
    stop: Annotated[
        bool, Parameter(negative=(), show_default=False, help="End it; a trial is taken back.")
    ] = False,
    freeze: Annotated[
        str | None, Parameter(show_default=False, help="A knob that it is to leave alone.")
    ] = None,
    release: Annotated[
        str | None, Parameter(show_default=False, help="A knob that it may turn again.")
    ] = None,
    json: Json = False,
) -> int:
    """Let the daemon turn the speed knobs of a run, keep what helps and take back what does not; a line for each trial.

    It goes on when you leave: Ctrl-C ends the watching only, `--stop` ends it. Where it is on already, this watches.
    """
    limits = _limits(within or [], budget, objective, allow or [], dry=dry_run)
    acts = [_Act("stop")] if stop else []
    acts += [_Act("status")] if status else []
    acts += [_Act("freeze", freeze)] if freeze is not None else []
    acts += [_Act("release", release)] if release is not None else []
    if len(acts) > 1:
        raise usage("hoptui tune starts, stops, freezes, releases or tells: one of them at a time")
    if acts and (detach or limits != Limits()):
        raise usage(f"--{acts[0].op} stands alone: limits, --dry-run and --detach are for the start")
    if detach and dry_run:
        raise usage("a dry run ends with the watching: give --dry-run or --detach")
    if acts:
        return _act(run, acts[0], json=json)
    return _start(run, limits, detach=detach, json=json)


def _act(run: str, act: _Act, *, json: bool) -> int:
    with look(steers=act.op != "status", readings=False) as seen:
        if act.op == "status":
            found = seen.find(run)
            state = found.tuner or TunerState()
        else:
            found = seen.find_living(run)
            if act.op != "stop":
                knob_named(found, act.knob)
            answer = seen.session.tune(found.run, act.op, knob=act.knob)
            if not answer.granted:
                raise Fail(answer.reason, REJECTED)
            state = answer.state
        if json:
            dump({"run": found.run, "tuner": state})
        elif act.op in ("freeze", "release"):
            does = "leaves alone" if act.op == "freeze" else "may turn"
            say(f"the tuner of {numbers.clean(found.name)} {does} {numbers.clean(act.knob)}")
        else:
            _tell(state)
    return OK


def _start(run: str, limits: Limits, *, detach: bool, json: bool) -> int:
    with look(steers=True, readings=False) as seen:
        found = seen.find_living(run)
        for name in limits.learning:
            if name != "*":
                knob_named(found, name)
        answer = seen.session.tune(found.run, "start", limits=limits)
        state = answer.state
        # One that is on already is no answer to who asks for limits of their own.
        asked = structs.replace(limits, dry=False) != Limits()
        watches = not answer.granted and state.stand != "off" and not detach and not asked
        if not answer.granted and not watches:
            raise Fail(answer.reason, REJECTED)
        if limits.dry:
            return _dry(seen, found, state, mine=answer.granted, json=json)
        if detach:
            if json:
                dump({"run": found.run, "tuner": state})
            else:
                say(f"{numbers.clean(found.name)} is being tuned: {tuner.limits(state.limits)}")
            return OK
        if not json:
            say(
                f"{'watching' if watches else 'tuning'} {numbers.clean(found.name)}: {tuner.limits(state.limits)}"
            )
        return _watch(seen, found, state.tried if answer.granted else (), json=json)


def _dry(seen: NodeSnapshot, run: RunState, state: TunerState, *, mine: bool, json: bool) -> int:
    """Tell what the tuner would try next, as soon as it knows; a dry tuner of our own ends with that."""
    if not json and state.stand == "baseline":
        say(f"looking at {numbers.clean(run.name)} (Ctrl-C ends it)")
    version = 0
    try:
        while not (state.next or state.stand in ("holding", "off")):
            version = _next(seen, run, version)
            now = seen.store.run(run.run)
            state = (now.tuner if now is not None else None) or TunerState()
    finally:
        if mine:
            seen.session.tune(run.run, "stop")
    if json:
        dump({"run": run.run, "next": state.next, "text": state.text, "limits": state.limits})
    elif mine:
        say(numbers.clean(state.text, 300))
    else:
        say(f"next it would try {tuner.changes(state.next) or 'nothing'}: {numbers.clean(state.text, 300)}")
    return OK


def _watch(seen: NodeSnapshot, run: RunState, earlier: Iterable[Trial], *, json: bool) -> int:
    """A line for each trial as it ends, until the tuner or the run does; none for those of `earlier` tuners."""
    name = numbers.clean(run.name)
    told = {trial.t for trial in earlier}
    said = ""
    version = 0
    try:
        while True:
            version = _next(seen, run, version)
            now = seen.store.run(run.run)
            if now is None or now.tuner is None:
                raise Fail(f"{name} ({run.run}) is not known any more", MISSING)
            state = now.tuner
            for trial in state.tried:
                if trial.t not in told:
                    told.add(trial.t)
                    _tell_trial(seen, now, trial, json=json)
            standing = tuner.standing(state)
            words_alone = re.sub(r"[\d.,]+", "", standing)  # a figure that moves is no news
            if standing and words_alone != said and not json:
                said = words_alone
                say(f"{numbers.clock(time.time())}  {standing}")
            if state.stand == "off":
                return OK
    except KeyboardInterrupt:
        ends = command_line("tune", named(run, seen.node), "--stop")
        warn(f"hoptui: this ends the watching only, {name} is tuned on; {ends} ends that")
        raise


def _next(seen: NodeSnapshot, run: RunState, version: int = 0) -> int:
    """Wait up to a second for a state of the node other than `version`, take it in and return its version. A daemon that is
    gone gets time to come back."""
    end = time.monotonic() + RETURN_S
    while True:
        try:
            delta = seen.session.fetch(run=run.run, events=NONE, commands=NONE, state=version, wait_s=1.0)
        except Unreachable:
            if time.monotonic() > end:
                raise
            time.sleep(AGAIN_S)
            continue
        seen.store.apply(delta)
        return delta.state


def _tell_trial(seen: NodeSnapshot, run: RunState, trial: Trial, *, json: bool) -> None:
    wall = (trial.t + seen.node.wall_offset_ns) / 1e9 + trial.seconds
    if json:
        dump({"run": run.run, "time": wall, "trial": trial})
        return
    speeds = vocabulary.speeds(trial.measured, run.units)
    say("  ".join(filter(None, (numbers.clock(wall), tuner.sentence(trial), speeds))))


def _tell(state: TunerState) -> None:
    """How a tuner stands, in a few lines."""
    word = tuner.STANDS[state.stand]
    say(f"{word.symbol} {word.text}: {numbers.clean(state.text, 300) or tuner.STANDS_FOR[state.stand]}")
    if not state.started:
        return
    by = f", for {numbers.clean(state.user)}" if state.user else ""
    say(f"  within  {tuner.limits(state.limits)}{by}")
    if state.trial is not None:
        say(f"  trying  {tuner.changes(state.trial.changes)}, {tuner.progress(state.trial)}")
    elif state.next:
        say(f"  next    {tuner.changes(state.next)}")
    for trial in state.tried:
        say(f"  tried   {tuner.sentence(trial)}")
    if state.frozen:
        say(f"  alone   {', '.join(map(numbers.clean, state.frozen))}")
    say(f"  spent   {tuner.cost(state)}")


def _limits(
    within: list[str], budget: str | None, objective: Objective | None, allow: list[str], *, dry: bool
) -> Limits:
    """The limits as they were typed."""
    given: dict[str, str] = {}
    for word in within:
        name, equals, value = word.partition("=")
        if name not in ("memory", "power") or not equals or name in given:
            raise usage(f"--within takes memory=90% and power=400, each once, not {word!r}")
        given[name] = value
    usual = Limits()
    learning = tuple("*" if name == LEARNING else name for name in allow)
    limits = Limits(
        memory=_share("memory", given["memory"], "90% or 0.9") if "memory" in given else usual.memory,
        power_w=_watts(given["power"]) if "power" in given else None,
        budget=_share("--budget", budget, "2% or 0.02") if budget is not None else usual.budget,
        objective=objective or usual.objective,
        learning=learning,
        dry=dry,
    )
    try:
        check_limits(limits)
    except ValueError as error:
        raise usage(str(error)) from None
    return limits


def _share(name: str, typed: str, such: str) -> float:
    """A share as it was typed: `90%`, `90 %` or `0.9`; `such` are two ways to give one."""
    number, percent, rest = typed.strip().partition("%")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if rest.strip() or not 0 < value <= (100 if percent else 1):
        raise usage(f"{name} takes a share such as {such}, not {typed!r}")
    return value / 100 if percent else value


def _watts(typed: str) -> float:
    try:
        return float(typed.strip().removesuffix("W"))
    except ValueError:
        raise usage(f"power takes watts such as 400, not {typed!r}") from None
