"""Why a command came to its outcome, and what its effect rests on."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hoptui.domain.facts import nested
from hoptui.domain.knobs import KnobError, KnobSpec, check_value, missing, shown
from hoptui.presentation.numbers import counted
from hoptui.presentation.sentences.template import Entry, Fields, Write


def _bad_value(fields: Fields, _: Write) -> str:
    """The sentence of the check that the run has made, with the same rules."""
    if "option" in fields:
        return f"{fields['option']} = {shown(fields['iterations'])} is not possible in a trace"
    if "iterations" in fields:
        return f"a trace is of 1 to {fields['most']} iterations, not {shown(fields['iterations'])}"
    try:
        check_value(msgspec.convert(fields["spec"], KnobSpec), fields["value"])
    except KnobError as error:
        return str(error)
    return f"{fields['spec']['name']} cannot be {shown(fields['value'])}"


def _unsupported(fields: Fields, _: Write) -> str:
    if "world" in fields:
        return f"this run has {fields['world']} ranks that cannot agree, and one alone carries out no command"
    if "option" in fields:
        return f"this run cannot trace with --{fields['option']}: its handler has no such parameter"
    return f"this run has no {fields['verb']} handler (run.on_{fields['verb']})"


def _declined(fields: Fields, _: Write) -> str:
    """Of a command, or of a `set` of a knob that the script does not offer."""
    if "verb" in fields:
        return f"this run offers no {fields['verb']}: {fields['reason']}"
    return f"{fields['knob']} cannot change in this run: {fields['reason']}"


def _no_such_run(fields: Fields, _: Write) -> str:
    if "run" in fields:
        return f"no run has the id {fields['run']!r}"
    return f"{fields['name']} has exited ({fields['exit_reason']})"


def _restarting(fields: Fields, _: Write) -> str:
    """Of a command that the run restarts for, or of one that came meanwhile."""
    if "checkpoint" in fields:
        return f"restarting from {fields['checkpoint']}"
    return f"{fields['name']} is restarting to change a knob: try again once it is back"


def _stale_epoch(fields: Fields, _: Write) -> str:
    return (
        f"{fields.get('name', 'the run')} has restarted since: the command was meant for the process before"
    )


def _held_by_person(fields: Fields, _: Write) -> str:
    knob, by = fields["knob"], fields.get("by")
    if by is None:
        return f"a user set {knob}: the tuner leaves it alone until it is released"
    return f"{by or 'a user'} set {knob}: agents leave it alone until a user releases it"


def _on_ranks(fields: Fields, write: Write) -> str:
    having = ((one["rank"], nested(one["problem"])) for one in fields["problems"])
    text = "; ".join(f"rank {rank}: {write(problem)}" for rank, problem in having if problem is not None)
    return f"{text}; and {fields['more']} more ranks" if fields["more"] else text


SENTENCES: Mapping[str, Entry] = {
    # refused
    "bad_type": _bad_value,
    "out_of_range": _bad_value,
    "unknown_knob": lambda fields, _: missing(fields.get("run", "this run"), fields["knob"], fields["known"]),
    "declined": _declined,
    "unsupported": _unsupported,
    "no_such_run": _no_such_run,
    "stale_epoch": _stale_epoch,
    "version_conflict": lambda f, _: (
        f"{f['knob']} is {shown(f['value'])} since version {f['version']}, "
        f"set by {f['by'] or 'the run itself'}"
    ),
    "pending_conflict": "{by} was first: {knob} → {value:value} is already scheduled",
    "recording": "this is a recording: the run cannot be steered from here",
    "no_boundaries": (
        "the loop of {name} passes no boundary, where commands take effect: call run.boundary() in it"
    ),
    "too_many_commands": "{name} has {most} commands that are not settled; try again later",
    "held_by_person": _held_by_person,
    # replaced, too late, or lost with a process
    "later_command": "a later command of {by} took its place",
    "no_boundary": "no iteration ended within {ttl_s:g} s",
    "no_answer": "no daemon answers any more",
    "no_daemon": "no daemon read it for {waited_s:.0f} s",
    "run_ended": "the run ended: {reason}",
    "run_restarted": "the run restarted (restart {restart})",
    "job.no_head": "the node of rank 0 has not answered",
    "job.too_many_commands": "too many commands of this node wait for the node of rank 0; try again later",
    "daemon_ended": "the daemon ended before it gave it to the run",
    "too_large": lambda fields, _: (
        f"its details are too large to be shown{f' ({code})' if (code := fields.get('code')) else ''}"
    ),
    "fate_unknown": "it was given to the run and may have taken effect: {why:fact}",
    "lost_in_restart": "{why:fact}, while restarting from {checkpoint}",
    # carried out
    "tracing": lambda fields, _: f"tracing {counted(fields['iterations'], 'iteration')}",
    "written": "written to {path}",
    "restarting": _restarting,
    "later": "taken: the training script says when it is in effect",
    "restarted": "restarted",
    "not_as_asked": lambda fields, _: (
        fields.get("reason") or "not in effect as asked: this is the value read back"
    ),
    # failed
    "setter_failed": "{knob} could not be set to {value:value}: {error}",
    "undo_failed": "setting {knob} back to {value:value} raised {error}",
    "raised": "{error}",
    "on_ranks": _on_ranks,
    "several": "{facts:facts}",
    "ranks.missing": "rank {rank} takes no part: it has not called hoptui.connect",
    "ranks.apart": "the ranks can no longer agree: {error}",
    "ranks.not_all_later": "it takes effect later on some ranks and at once on rank {rank}",
    "ranks.left": "rank {rank} has left the loop",
    "ranks.silent": "rank {rank} has been silent for {seconds:g} s",
    "no_knob_after_restart": "after the restart there is no knob {knob:quoted}",
    "other_value_after_restart": "after the restart {knob} is {value:value}",
    "reverted": "{reason}",
    # effects
    "effect.too_few_before": "no effect measured: only {had} of {least} iterations before the change",
    "effect.measuring": "measuring: {had} of {least} iterations",
    "effect.cut_short": "another change came before it could be measured",
    "effect.restarted": "not measured: the run was restarted",
    "effect.load_changed": (
        "but other processes used {before:percent} of the CPUs before and {after:percent} after"
    ),
    "effect.gpu_shared": "but another process works on GPU {gpu} (pid {pid})",
    "effect.shared": "together with {knobs:and}",
}
