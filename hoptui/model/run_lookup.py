"""From what a person types to the run that is meant."""

from __future__ import annotations

from collections.abc import Mapping

from hoptui.presentation.numbers import clean
from hoptui.protocol.messages import NodeState, RunState, Vital


class NoSuchRun(ValueError):  # noqa: N818 - says what is the case
    """No run has this name or id; the text is one sentence."""


class Ambiguous(ValueError):  # noqa: N818
    """Several runs have this name or begin of an id; the text names them."""


def find_run(node: NodeState, vitals: Mapping[str, Vital], text: str) -> RunState:
    """The run with this id, name, or beginning of an id; of several with one name, the only one that still
    lives.

    Raises:
        NoSuchRun: none has it; the names that are there are listed.
        Ambiguous: several have it; their ids and pids are listed.
    """
    for run in node.runs:
        if run.run == text:
            return run
    found = [run for run in node.runs if run.name == text]
    if not found and text:
        found = [run for run in node.runs if run.run.startswith(text)]
    if not found:
        raise NoSuchRun(f"no run {clean(text, 60)!r} on this node{_there(node, vitals)}")
    living = [run for run in found if lives(run, vitals)]
    if len(living) == 1:
        return living[0]
    if len(found) == 1:
        return found[0]
    which = living or found
    listed = ", ".join(f"{run.run} (pid {run.pid})" for run in which)
    kind = "live runs" if living else "runs that have exited"
    raise Ambiguous(f"{clean(text, 60)!r} is {len(which)} {kind}: {listed}; say which by its id")


def lives(run: RunState, vitals: Mapping[str, Vital]) -> bool:
    """Whether a run has not exited, as far as is known."""
    vital = vitals.get(run.run)
    return not run.exit_reason and (vital is None or vital.state != "exited")


def _there(node: NodeState, vitals: Mapping[str, Vital]) -> str:
    names = dict.fromkeys(clean(run.name, 40) for run in node.runs if lives(run, vitals))
    if not names:
        return ""
    shown = list(names)[:5]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"; there {'is' if len(names) == 1 else 'are'} {', '.join(shown)}{more}"
