"""`hoptui get`: show the knobs of a run and their current values."""

from __future__ import annotations

from hoptui.cli.commands.status import knob_line
from hoptui.cli.support.options import Json, Run
from hoptui.cli.support.snapshot import knob_named, knobs_of, look
from hoptui.cli.support.terminal import OK, dump, say, table


def get(run: Run, /, *knobs: str, json: Json = False) -> int:
    """Show the knobs of a run and their current values: the named knobs, or all of them."""
    with look() as seen:
        found = seen.find(run)
        states = [knob_named(found, name) for name in knobs] if knobs else list(found.knobs)
        if json:
            every = knobs_of(found)
            dump({"run": found.run, "knobs": {state.spec.name: every[state.spec.name] for state in states}})
        elif states:
            table([knob_line(state) for state in states], right=(1,))
        else:
            say(f"{found.name} ({found.run}) has not declared any knobs yet")
    return OK
