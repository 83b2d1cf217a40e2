"""What happens to a run: it starts, restarts, ends; its ranks agree or do not."""

from __future__ import annotations

from collections.abc import Mapping

from hoptui.domain.code_lines import CodeLine
from hoptui.domain.knobs import shown
from hoptui.presentation import gpu_readings, numbers, stacks
from hoptui.presentation.sentences.jobs import line_group_text
from hoptui.presentation.sentences.template import Entry, Fields, Write

NONE_ENDED = "no iteration ended"


def _exited(fields: Fields, _: Write) -> str:
    """`stopped by kim (pid 7)`, `exception: ValueError: no`, `finished`."""
    reason, detail = fields["reason"], fields["detail"]
    return f"{reason} {detail}" if detail.startswith("by ") else f"{reason}: {detail}" if detail else reason


def _good_number(fields: Fields, _: Write) -> str:
    since = f" (it was not since iteration {fields['since']})" if fields["since"] >= 0 else ""
    return f"{fields['metric']} is a number again{since}"


def _rank_ended(fields: Fields, write: Write) -> str:
    return f"rank {fields['rank']} (pid {fields['pid']}): {_exited(fields, write)}"


def _ranks_differ(fields: Fields, _: Write) -> str:
    def having(value: object) -> str:
        return shown(value) if value is not None else "not declared"

    text = "; ".join(
        f"{one['knob']} is {having(one['value'])} on rank {one['rank']} and {having(one['first'])} on rank 0"
        for one in fields["knobs"]
    )
    return f"{text}; and {fields['more']} more" if fields["more"] else text


def _in_phase(fields: Fields, _: Write) -> str:
    return f"in {fields['phase'] or 'an iteration'} for {fields['age_s']:.0f} s"


def _no(fields: Fields) -> str:
    return f"{'no row' if fields['rows'] else NONE_ENDED} for {numbers.duration(fields['age_s'])}"


def _group(field: Fields, world: int) -> str:
    return stacks.group_text(
        field["ranks"], field["count"], world, field["kind"], _line(field), field["inside"]
    )


def _line(field: Fields) -> CodeLine:
    return CodeLine(field["file"], field["line"], field["function"])


def _silent(field: Fields, world: int) -> str:
    """`rank 3 does not answer: stopped (SIGSTOP), last seen 12 s ago in data.py:37 read`."""
    text = stacks.silent_text(field["rank"], world, field["state"])
    if "seen" not in field:
        return text
    seen = field["seen"]
    at = stacks.inside_text(_line(seen), seen["inside"])
    return f"{text}, last seen {numbers.duration(seen['age_s'])} ago in {at}"


def _hung(fields: Fields, _: Write) -> str:
    """`no iteration ended for 42 s; rank 5 of 8 is in data.py:37 read; 7 ranks wait in …`."""
    if "groups" not in fields:  # too large to be sent
        return f"{NONE_ENDED} for {numbers.duration(fields['age_s'])}"
    world = fields["world"]
    parts = [_no(fields)]
    parts += [_silent(one, world) for one in fields["silent"]]
    parts += [_group(one, world) for one in fields["groups"]]
    if unknown := fields["unsampled"]:
        who = f"of rank {', '.join(map(str, unknown))} " if world > 1 else ""
        parts.append(f"there are no stack samples {who}".rstrip())
    parts += [line_group_text(**one) for one in fields.get("others", ())]
    if away := fields["elsewhere"]:
        parts.append(f"{numbers.counted(away, 'rank')} not known on this node")
    return "; ".join(parts)


def _run_hung(fields: Fields, write: Write) -> str:
    return f"hung: {_hung(fields, write)}"


def _works(fields: Fields, _: Write) -> str:
    groups = fields["groups"]
    if not groups:
        where = f"in {fields['phase']}" if fields["phase"] else "in an iteration"
        return f"{_no(fields)}: {where}"
    one = groups[0]
    line = stacks.place(CodeLine(one["file"], one["line"], one["function"]))
    return f"{_no(fields)}: it {stacks.KINDS.get(one['kind'], one['kind'])} in {line}"


def _straggler(fields: Fields, _: Write) -> str:
    """`the others wait for rank 3 of 8: it waits 2 %, they 31 %; it loads data in data.py:37 read 45 % of the
    time, they 14 %`."""
    waits, others = numbers.percent(fields["waits"]), numbers.percent(fields["others_wait"])
    parts = [
        f"the others wait for rank {fields['rank']} of {fields['world']}: it waits {waits}, they {others}"
    ]
    if (where := fields["where"]) is not None:
        line = stacks.place(CodeLine(where["file"], where["line"], where["function"]))
        share, usual = numbers.percent(fields["share"]), numbers.percent(fields["others_share"])
        does = stacks.does(where["kind"], where.get("inside") or "")
        parts.append(f"it {does} in {line} {share} of the time, they {usual}")
    if device := gpu_readings.rank_device(fields):
        parts.append(device)
    if unknown := fields["unsampled"]:
        parts.append(f"there are no stack samples of rank {', '.join(map(str, unknown))}")
    if away := fields["elsewhere"]:
        parts.append(f"{numbers.counted(away, 'rank')} not known on this node")
    return "; ".join(parts)


SENTENCES: Mapping[str, Entry] = {
    # why a run is not live
    "state.starting": "starting: no iteration has begun",
    "state.restarting": "restarting to change a knob",
    "state.not_connected": "no word from it since the daemon started",
    "state.no_pulse": "no pulse for {age_s:.0f} s",
    "state.rank_silent": "rank {rank} sends no pulse for {age_s:.0f} s",
    "state.no_row": "no row for {age_s:.0f} s",
    "state.paused": "resumes by itself in {left_s:.0f} s",
    "state.in_phase": _in_phase,
    "state.hung": _hung,
    "state.works": _works,
    "state.no_stack": "no iteration ended for {age_s:duration}, and its thread runs no Python code",
    "state.off": "hoptui is off in this run: {error}",
    # what happens
    "run.started": "started (pid {pid})",
    "run.restarted": "restart {restart} (pid {pid})",
    "run.reconnected": "connected to the daemon again",
    "run.exited": _exited,
    "knobs.undescribed": "the declarations of {knobs} knobs are too large: descriptions are left out",
    "knobs.left_out": "the declarations of {knobs} knobs are too large: only {shown} are shown",
    "knob.refused": "knob {knob} is not live: {problem}",
    "knob.again": "knob {knob} is declared twice: the second declaration counts",
    "call.refused": "run.{call}: {problem}",
    "number.bad": "{metric} is {value}",
    "number.good": _good_number,
    "run.hung": _run_hung,
    "run.progress": "goes on, after {after_s:duration} without progress",
    "run.straggler": _straggler,
    "run.even": "the others do not wait for rank {rank} any more, after {after_s:duration}",
    "memory.soon_full": (
        "the memory of {of} is full in about {minutes} min if it grows on like this: {used_bytes:gib} of "
        "{total_bytes:gib} are used"
    ),
    "memory.steady": "the memory of {of} does not fill up any more",
    "stacks.ended": "there are no more stack samples: {problem}",
    "command.reverted": "{knob} is back at {value:value}: {why:fact}",
    "knob.reverted": "{knob} {before:value} → {value:value}: {why:fact}",
    "pause.expired": "the pause lease ran out: the run goes on",
    "rank.ended": _rank_ended,
    "rank.off": "rank {rank}: {why:fact}",
    "ranks.differ": _ranks_differ,
    "ranks.agree": "the knobs of all ranks are the same again",
    "metrics.bad_address": (
        "no metrics for Prometheus: {address:quoted} is no HOST:PORT, such as 127.0.0.1:9400"
    ),
    "metrics.not_installed": (
        "no metrics for Prometheus: prometheus-client is not installed (pip install 'hoptui[metrics]')"
    ),
    "metrics.unavailable": "no metrics for Prometheus: {address} cannot be served: {error}",
    "metrics.ended": "no metrics for Prometheus any more: the server of {address} has ended with {error}",
}
