"""`hoptui tune`: start, watch and stop the tuner of a run's speed knobs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, NamedTuple, get_args

from cyclopts import Parameter
from msgspec import structs

from hoptui.cli.support.options import Json, Run
from hoptui.cli.support.run_events import next_state
from hoptui.cli.support.snapshot import NodeSnapshot, knob_named, look
from hoptui.cli.support.terminal import MISSING, OK, REJECTED, Fail, dump, say, usage, warn
from hoptui.domain.tuning import Limits, Objective, Trial, TunerState, check_limits
from hoptui.model.command_history import command_line, named
from hoptui.presentation import job_head, numbers, sentences, tuner, tuner_report, vocabulary
from hoptui.protocol.messages import RunState, Verb, Vital

LEARNING = "learning"
NOTHING_TO_TURN = ("tune.no_knobs", "tune.nothing_to_turn")
"""The refusals of a tuner that lacks knobs."""


class _Act(NamedTuple):
    """An operation on the tuner other than starting it."""

    op: Literal["stop", "status", "report", "freeze", "release"]
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
            help="Limits of a trial: memory=90% of each GPU, power=400 watts per GPU.",
        ),
    ] = None,
    budget: Annotated[
        str | None, Parameter(show_default=False, help="Share of the run's time that trials may cost (4%).")
    ] = None,
    objective: Annotated[
        Objective | None, Parameter(show_default=False, help="The quantity to improve (throughput).")
    ] = None,
    allow: Annotated[
        list[str] | None,
        Parameter(
            consume_multiple=(1, None),
            negative=(),
            show_default=False,
            help=(
                "Also allow these knobs even though they affect training results. "
                "`learning` allows all of them except those with cost `free`."
            ),
        ),
    ] = None,
    dry_run: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Show what it would try without trying it.")
    ] = False,
    detach: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Start the tuner without watching it.")
    ] = False,
    status: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Show the tuner's state and its trials.")
    ] = False,
    report: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Show the gain, its cost, and values to copy.")
    ] = False,
    stop: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Stop the tuner; a running trial is reverted.")
    ] = False,
    freeze: Annotated[
        str | None, Parameter(show_default=False, help="Exclude this knob from tuning.")
    ] = None,
    release: Annotated[
        str | None, Parameter(show_default=False, help="Allow tuning of this knob again.")
    ] = None,
    json: Json = False,
) -> int:
    """Let the daemon tune the speed knobs of a run, and print one line per trial.

    The tuner keeps changes that help and reverts the rest. Ctrl-C only stops watching; `--stop` stops the
    tuner. If the tuner is already on, this command watches it.
    """
    limits = limits_of(within or [], budget, objective, allow or [], dry=dry_run)
    acts = [_Act("stop")] if stop else []
    acts += [_Act("status")] if status else []
    acts += [_Act("report")] if report else []
    acts += [_Act("freeze", freeze)] if freeze is not None else []
    acts += [_Act("release", release)] if release is not None else []
    if len(acts) > 1:
        raise usage("give only one of --stop, --status, --report, --freeze and --release")
    if acts and (detach or limits != Limits()):
        raise usage(f"--{acts[0].op} cannot be combined with limits, --dry-run or --detach")
    if detach and dry_run:
        raise usage("--dry-run and --detach cannot be combined: a dry run ends when you stop watching")
    if acts:
        return _act(run, acts[0], json=json)
    return _start(run, limits, detach=detach, json=json)


def _act(run: str, act: _Act, *, json: bool) -> int:
    with look(steers=act.op not in ("status", "report"), readings=False) as seen:
        match act.op:
            case "status" | "report":
                found = seen.find(run)
                state, vital = _known_state(found), seen.store.vital(found.run)
            case op:
                found = seen.find_living(run)
                if op != "stop":
                    knob_named(found, act.knob)
                answer = seen.session.tune(found.run, op, knob=act.knob)
                if not answer.granted:
                    raise Fail(sentences.refusal(answer), REJECTED)
                state, vital = answer.state, None
        if act.op == "report":
            _report(found, state, vital, json=json)
        elif json:
            dump({"run": found.run, "tuner": tuner.in_words(state), **head_age_json(found, vital)})
        elif act.op in ("freeze", "release"):
            does = "leaves alone" if act.op == "freeze" else "may change"
            say(f"the tuner of {numbers.clean(found.name)} {does} {numbers.clean(act.knob)}")
        else:
            _print_state(state, vital)
    return OK


def head_age_json(run: RunState, vital: Vital | None) -> dict[str, Any]:
    """How old the state of the tuner is, on a node without rank 0."""
    return job_head.age_json(vital, "head_") if run.head is not None and vital is not None else {}


def _known_state(run: RunState) -> TunerState:
    """The state of the tuner. Raises Fail (exit code 3) if that is known on the node of rank 0 alone."""
    if run.rank and run.head is None:
        raise Fail(job_head.UNKNOWN_HEAD, MISSING)
    return run.tuner or TunerState()


def _report(run: RunState, state: TunerState, vital: Vital | None, *, json: bool) -> None:
    """Print what the tuner has achieved."""
    if run.head is not None and (lacking := run.head.left_out.get("trials")):
        there = f"{job_head.name(run.head)} alone knows {numbers.counted(lacking, 'trial')} of the tuner"
        raise Fail(f"{there}: run hoptui tune --report there", MISSING)
    if json:
        energy, throughput = tuner_report.saving(state), tuner_report.throughput(state)
        regret, values = tuner_report.regret(state), tuner_report.improved(state, run.knobs)
        dump(
            {
                "run": run.run,
                "tuner": tuner.in_words(state),
                "gain": tuner_report.gain(state),
                "gain_interval": tuner_report.gain_interval(state),
                "energy": energy._asdict() if energy is not None else None,
                "throughput": throughput._asdict() if throughput is not None else None,
                "lost_units": tuner_report.lost_units(state),
                "regret": regret._asdict() if regret is not None else None,
                "values": values,
                "copy": tuner_report.copied(values),
                **head_age_json(run, vital),
            }
        )
        return
    say(f"{numbers.clean(run.name)}: {job_head.dated(tuner.standing(state) or 'trying', vital)}")
    for line in tuner_report.lines(state, run.knobs, run.units):
        say(line)


def _start(run: str, limits: Limits, *, detach: bool, json: bool) -> int:
    with look(steers=True, readings=False) as seen:
        found = seen.find_living(run)
        for name in limits.learning:
            if name != "*":
                knob_named(found, name)
        answer = seen.session.tune(found.run, "start", limits=limits)
        state = answer.state
        # Do not watch a tuner that is already on with other limits than those requested.
        asked = structs.replace(limits, dry=False) != Limits()
        watches = not answer.granted and state.stand != "off" and not detach and not asked
        if not answer.granted and not watches:
            if answer.code in NOTHING_TO_TURN and not json:
                _print_declined(found)
            raise Fail(sentences.refusal(answer), REJECTED)
        if limits.dry:
            return _dry(seen, found, state, mine=answer.granted, json=json)
        if detach:
            if json:
                dump({"run": found.run, "tuner": tuner.in_words(state)})
            else:
                say(f"{numbers.clean(found.name)} is being tuned: {tuner.limits(state.limits)}")
                say(f"trials may cost {tuner.remaining(state)}")
            return OK
        if not json:
            doing = "watching" if watches else "tuning"
            say(f"{doing} {numbers.clean(found.name)}: {tuner.limits(state.limits)}")
            say(f"trials may cost {tuner.remaining(state)}")
        return _watch(seen, found, state.tried if answer.granted else (), json=json)


def _print_declined(run: RunState) -> None:
    """Print the knobs that the run does not offer, with the reasons or with what the script needs for it."""
    knobs = [(name, why) for name, why in run.declined.items() if name not in get_args(Verb)]
    for name, why in knobs:
        warn(f"  {numbers.clean(name)}: {numbers.clean(why)}")


def _dry(seen: NodeSnapshot, run: RunState, state: TunerState, *, mine: bool, json: bool) -> int:
    """Print the next trial that the tuner plans."""
    if not json and state.stand == "baseline":
        say(f"looking at {numbers.clean(run.name)} (Ctrl-C stops it)")
    state = planned(seen, run, state, mine=mine)
    if json:
        dump(plan_json(run, state))
    elif mine:
        say(sentences.standing(state))
    else:
        say(f"next it would try {tuner.changes(state.next) or 'nothing'}: {sentences.standing(state)}")
    return OK


def planned(
    seen: NodeSnapshot,
    run: RunState,
    state: TunerState,
    *,
    mine: bool,
    ended: Callable[[], bool] = lambda: False,
) -> TunerState:
    """Wait for the next trial that the tuner plans, or until `ended`. Then stop a tuner that we started
    dry."""
    version = 0
    try:
        while not (state.next or state.stand in ("holding", "off") or ended()):
            version = next_state(seen, run.run, version)
            now = seen.store.run(run.run)
            state = (now.tuner if now is not None else None) or TunerState()
    finally:
        if mine:
            seen.session.tune(run.run, "stop")
    return state


def plan_json(run: RunState, state: TunerState) -> dict[str, Any]:
    """What the tuner would try next, as `--dry-run --json` shows it."""
    said = {"facts": state.facts, "text": sentences.standing(state)}
    return {"run": run.run, "next": state.next, **said, "limits": state.limits}


def _watch(seen: NodeSnapshot, run: RunState, earlier: Iterable[Trial], *, json: bool) -> int:
    """Print a line per finished trial until the tuner or the run ends. Skip `earlier` trials."""
    name = numbers.clean(run.name)
    printed = {trial.t for trial in earlier}
    last = ""
    version = 0
    try:
        while True:
            version = next_state(seen, run.run, version)
            now = seen.store.run(run.run)
            if now is None or now.tuner is None:
                raise Fail(f"{name} ({run.run}) is no longer known", MISSING)
            state = now.tuner
            for trial in state.tried:
                if trial.t not in printed:
                    printed.add(trial.t)
                    _print_trial(seen, now, trial, json=json)
            standing = tuner.standing(state)
            words_alone = re.sub(r"[\d.,]+", "", standing)  # ignore changes of numbers alone
            if standing and words_alone != last and not json:
                last = words_alone
                say(f"{numbers.clock(time.time())}  {standing}")
            if state.stand == "off":
                return OK
    except KeyboardInterrupt:
        ends = command_line("tune", named(run, seen.node), "--stop")
        warn(f"hoptui: stopped watching; the tuner of {name} is still on. To stop it: {ends}")
        raise


def _print_trial(seen: NodeSnapshot, run: RunState, trial: Trial, *, json: bool) -> None:
    wall = (trial.t + seen.node.wall_offset_ns) / 1e9 + trial.seconds
    if json:
        dump({"run": run.run, "time": wall, "trial": tuner.trial_in_words(trial)})
        return
    speeds = vocabulary.speeds(trial.measured, run.units)
    say("  ".join(filter(None, (numbers.clock(wall), tuner.sentence(trial), speeds))))


def _print_state(state: TunerState, vital: Vital | None) -> None:
    """Print the state of a tuner and its trials."""
    word = tuner.STANDS[state.stand]
    stands = sentences.standing(state) or tuner.STANDS_FOR[state.stand]
    say(f"{word.symbol} {word.text}: {job_head.dated(stands, vital)}")
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


def limits_of(
    within: list[str], budget: str | None, objective: Objective | None, allow: list[str], *, dry: bool
) -> Limits:
    """The limits of a tuner as they are typed. Raises Fail (exit code 2)."""
    given: dict[str, str] = {}
    for word in within:
        name, equals, value = word.partition("=")
        if name not in ("memory", "power") or not equals or name in given:
            raise usage(f"--within accepts memory=90% and power=400, each once, not {word!r}")
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
    """Parse a share: `90%`, `90 %` or `0.9`. `such` names two examples for the error."""
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
