"""`hoptui set`: change knobs of a run. Nothing is sent if a value breaks the declaration of its knob."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter
from msgspec import structs

from hoptui.cli.support.options import Json, Run, Timeout, Yes
from hoptui.cli.support.outcomes import Given, follow, knob_outcome
from hoptui.cli.support.run_events import await_effects
from hoptui.cli.support.snapshot import NONE, NodeSnapshot, knob_named, look
from hoptui.cli.support.terminal import OK, REJECTED, Fail, agreed, dump, interactive, say, usage, warn
from hoptui.domain.facts import fact
from hoptui.domain.knobs import KnobError, KnobState, KnobValue, check_value, parse_value, shown
from hoptui.presentation import numbers, vocabulary
from hoptui.protocol.messages import CommandRecord, RunState

TIMEOUT_S = 600.0
LOOK_S = 0.5
"""Between two looks at a run that has not declared its knobs."""


class Wish(NamedTuple):
    """One parsed k=v. `refusal` is the reason if the declaration of the knob forbids the value."""

    knob: KnobState
    value: KnobValue
    refusal: str


def set(  # noqa: A001 - the command's name
    run: Run,
    /,
    *values: Annotated[str, Parameter(help="knob=value, e.g. lr=1e-4 grad_accum=8")],
    why: Annotated[str, Parameter(show_default=False, help="A note for the history.")] = "",
    expect: Annotated[
        int | None, Parameter(help="Change the knob only if it still has this version (see get --json).")
    ] = None,
    timeout: Timeout = TIMEOUT_S,
    measure: Annotated[
        float | None,
        Parameter(show_default=False, help="Wait so many seconds for the measured effect, and print it."),
    ] = None,
    yes: Yes = False,
    dry_run: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Check the values and change nothing.")
    ] = False,
    json: Json = False,
) -> int:
    """Change knobs of a run and wait until the changes take effect.

    A knob of cost `restart` asks first: the run starts a new process, and weights of other shapes begin anew.

    Exit codes: 0 all applied; 1 one was refused, failed or superseded; 2 bad usage; 3 no such run or no
    answer in time.
    """
    pairs = [_pair(pair) for pair in values]
    _check(pairs, expect, timeout)
    if measure is not None and not measure >= 0:
        raise usage(f"--measure must be 0 seconds or more, not {measure:g}")
    with look(steers=not dry_run) as seen:
        found = declared(seen, seen.find_living(run), [name for name, _ in pairs], timeout)
        wishes = [wish_of(found, name, typed) for name, typed in pairs]
        if any(wish.refusal for wish in wishes):
            return _refuse(found, [wish for wish in wishes if wish.refusal], json=json)
        if dry_run:
            return _dry_run(found, wishes, expect, json=json)
        if not yes:
            _confirm(found, wishes)
        given = submit(seen, found, wishes, why=why, expect=lambda _: expect)
        code, outcomes = follow(seen.session, given, timeout_s=timeout, quiet=json)
        document = report(found, given, outcomes)
        if measure is not None:
            await_effects(seen, found, document["commands"], measure)
        if json:
            dump(document)
        elif measure is not None:
            for change in document["commands"]:
                say(f"{change['knob']}: {change['effect']}")
        return code


def submit(
    seen: NodeSnapshot,
    run: RunState,
    wishes: list[Wish],
    *,
    why: str,
    expect: Callable[[KnobState], int | None],
) -> list[Given]:
    """Send changes of knobs. `expect` gives the version that a knob must still have."""
    return [
        _given(
            seen.session.submit(
                run,
                "set",
                knob=wish.knob.spec.name,
                value=wish.value,
                expect_version=expect(wish.knob),
                why=why,
            ),
            wish,
        )
        for wish in wishes
    ]


def declared(seen: NodeSnapshot, run: RunState, names: list[str], timeout: float) -> RunState:
    """Return the run once it has declared or declined these knobs, or has begun, or the time is over."""
    until = time.monotonic() + timeout
    state, told = 0, False
    while _lacks(run, names) and vocabulary.starting(seen.store.vital(run.run)) and time.monotonic() < until:
        if not told:
            told = True
            warn(f"{numbers.clean(run.name)} is starting: waiting for {', '.join(_lacks(run, names))}")
        delta = seen.session.fetch(events=NONE, commands=NONE, state=state, wait_s=LOOK_S)
        state = delta.state
        seen.store.apply(delta)
        run = seen.find_living(run.run)
    return run


def _lacks(run: RunState, names: list[str]) -> list[str]:
    known = {*(knob.spec.name for knob in run.knobs), *run.declined}
    return [numbers.clean(name, 64) for name in names if name not in known]


def _check(pairs: list[tuple[str, str]], expect: int | None, timeout: float) -> None:
    if not pairs:
        raise usage("nothing to set: give knob=value, e.g. hoptui set RUN grad_accum=8")
    names = [name for name, _ in pairs]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise usage(f"{twice[0]} is given twice")
    if expect is not None and len(pairs) > 1:
        raise usage(f"--expect needs exactly one knob, not {len(pairs)}")
    if not timeout > 0:
        raise usage(f"--timeout must be more than 0 seconds, not {timeout:g}")


def _dry_run(run: RunState, wishes: list[Wish], expect: int | None, *, json: bool) -> int:
    """Print what allowed values would do. The run itself may still refuse them."""
    name = numbers.clean(run.name)
    for wish in wishes:
        version = wish.knob.version
        if expect is not None and expect != version:
            raise Fail(f"{wish.knob.spec.name} has version {version}, not {expect}", REJECTED)
    if json:
        dump({"run": run.run, "dry_run": [would(wish) for wish in wishes]})
        return OK
    for wish in wishes:
        spec = wish.knob.spec
        change = f"{spec.name} {numbers.value(wish.knob.value, spec)} -> {numbers.value(wish.value, spec)}"
        say(f"would set {change} in {name}: {vocabulary.EFFECTS[spec.effect]}; {vocabulary.cost(wish.knob)}")
        if wish.knob.spec.cost == "restart" and wish.value != wish.knob.value:
            say(f"  the run would restart: {vocabulary.RESTART}")
    say("nothing was changed")
    return OK


def would(wish: Wish) -> dict[str, Any]:
    """What an allowed value would do, as `--dry-run --json` shows it."""
    spec = wish.knob.spec
    return {
        "knob": spec.name,
        "from": wish.knob.value,
        "to": wish.value,
        "version": wish.knob.version,
        "effect": spec.effect,
        "cost": spec.cost,
    }


def _confirm(run: RunState, wishes: list[Wish]) -> None:
    """Ask before a restart that may throw away what the run has learned. Raises Fail."""
    restarting = [w for w in wishes if w.knob.spec.cost == "restart" and w.value != w.knob.value]
    if not restarting:
        return
    name = numbers.clean(run.name)
    what = ", ".join(f"{w.knob.spec.name} = {shown(w.value)}" for w in restarting)
    meaning = f"{name} restarts for {what}: {vocabulary.RESTART}"
    if not interactive():
        raise usage(f"{meaning}; no terminal to confirm: add --yes")
    if not agreed(f"{meaning}; go on?"):
        raise Fail(f"nothing was changed in {name}", REJECTED)


def _pair(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals or not name:
        raise usage(f"{pair!r} does not have the form knob=value")
    return name.strip(), value


def wish_of(run: RunState, name: str, typed: str) -> Wish:
    """Parse a value for a knob. A malformed value is bad usage; a value out of bounds is a refusal."""
    knob = knob_named(run, name)
    free = structs.replace(knob.spec, min=None, max=None, choices=(), scale="linear")
    try:
        value = parse_value(free, typed)
    except KnobError as error:
        raise usage(str(error)) from None
    try:
        return Wish(knob, check_value(knob.spec, value), "")
    except KnobError as error:
        return Wish(knob, value, str(error))


def _refuse(run: RunState, refused: list[Wish], *, json: bool) -> int:
    """Report the refused values. Nothing is sent unless all values are allowed."""
    for wish in refused:
        warn(f"hoptui: {wish.refusal}; nothing was changed")
    if json:
        dump(refusal(run, refused))
    return REJECTED


def refusal(run: RunState, refused: list[Wish]) -> dict[str, Any]:
    """Refused values as `--json` shows them."""
    plain = CommandRecord(id="", run=run.run, epoch=run.epoch, verb="set", stage="rejected")
    return report(run, [_given("", wish) for wish in refused], [_refused(plain, wish) for wish in refused])


def _refused(plain: CommandRecord, wish: Wish) -> CommandRecord:
    why = fact("out_of_range", spec=wish.knob.spec, value=wish.value)
    return structs.replace(plain, code=why.code, fields=why.fields)


def _given(command_id: str, wish: Wish) -> Given:
    return Given(command_id, "set", wish.knob.spec, wish.knob.value, wish.value)


def report(run: RunState, given: list[Given], outcomes: list[CommandRecord]) -> dict[str, Any]:
    """Changes and their outcomes as `--json` shows them."""
    return {"run": run.run, "commands": list(map(knob_outcome, given, outcomes))}
