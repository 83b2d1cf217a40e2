"""What is wrong in a run on several nodes: its ranks, its nodes and the links between them.

Fields that are absent or None are not known, and left out of the sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hoptui.domain.devices import REASONS
from hoptui.presentation import numbers, stacks
from hoptui.presentation.readings import value_text
from hoptui.presentation.sentences.template import Entry, Fields, Write

_REASONS = {reason.name: reason.word for reason in REASONS}
MOST_NAMED = 3


def _who(fields: Fields) -> str:
    """`rank 301 (gpu38, GPU 5)`."""
    host, gpu = _host(fields), fields.get("gpu")
    place = ", ".join(filter(None, (host, f"GPU {gpu}" if gpu is not None else "")))
    return f"rank {fields['rank']} ({place})" if place else f"rank {fields['rank']}"


def _host(fields: Fields) -> str:
    """The name of a node, or its number in the job, "" for neither."""
    if host := fields.get("host"):
        return numbers.clean(str(host), 60)
    return f"node {fields['node']}" if fields.get("node") is not None else ""


def _does(fields: Fields) -> str:
    """`it loads data in data.py:37 read`, "" without a line."""
    line, kind = fields.get("line"), fields.get("kind")
    if not line:
        return ""
    return f"it {stacks.KINDS.get(str(kind), 'is')} in {numbers.clean(str(line), 120)}"


def _since(fields: Fields) -> str:
    """` for 42 s`, "" if that is not known."""
    after_s = fields.get("after_s")
    return f" for {numbers.duration(after_s)}" if after_s is not None else ""


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _own_time(fields: Fields, _: Write) -> str:
    """`rank 301 (gpu38, GPU 5) takes 562 ms of its own in an iteration, the median is 362 ms; it loads …`."""
    value, usual = numbers.seconds(fields["value"]), numbers.seconds(fields["usual"])
    takes = f"{_who(fields)} takes {value} of its own in an iteration, the median is {usual}"
    return _joined(takes, _does(fields), _doubt(fields))


def _doubt(fields: Fields) -> str:
    """Why a rank is not reported as slow, "" if the evidence is sure."""
    why = {
        "chance": "chance may explain it",
        "small": "the others wait little for it",
        "slower_rank": f"rank {fields.get('slower')} is",
        "few_samples": "there are too few stack samples",
        "late": "half of the ranks make no progress",
    }.get(str(fields.get("doubt")))
    if why is None:
        return ""
    if fields["doubt"] == "chance":
        away, needed = fields["deviation"], fields["needed"]
        why += f" ({numbers.value(away)} of {numbers.value(needed)} standard deviations)"
    return f"it is not reported as slow: {why}"


def _missing_node(fields: Fields, _: Write) -> str:
    return f"{_host(fields) or 'a node'} has not reported yet"


def _no_progress(fields: Fields, _: Write) -> str:
    step = fields.get("step")
    at = f", in iteration {numbers.grouped(step)}" if step is not None else ""
    return f"{_host(fields) or 'a node'} makes no progress{_since(fields)}{at}, while other nodes do"


def _stalled(fields: Fields, _: Write) -> str:
    return f"no node makes progress{_since(fields)}, and no rank is known to hold up the others"


def _clock(fields: Fields, state: str) -> str:
    value, usual = fields.get("value"), fields.get("usual")
    reason = fields.get("reason")
    against = f": {value_text('MHz', value)}" if value is not None else ""
    if value is not None and usual is not None:
        against += f", the median is {value_text('MHz', usual)}"
    why = f" ({_REASONS.get(str(reason), numbers.clean(str(reason), 40))})" if reason else ""
    return f"{_who(fields)} has {state}{against}{why}"


def _throttled(fields: Fields, _: Write) -> str:
    return _clock(fields, "throttled clocks")


def _low_clock(fields: Fields, _: Write) -> str:
    return _clock(fields, "a lower clock than the others")


def _slow_link(fields: Fields, _: Write) -> str:
    link = "NVLink" if fields["link"] == "nvlink" else "the network"
    who = _who(fields) if fields.get("rank") is not None else _host(fields) or "a node"
    value, usual = value_text("B/s", fields["value"]), value_text("B/s", fields["usual"])
    waits = numbers.percent(fields["waiting"])
    return f"{who} moves {value} over {link}, the median is {usual}; ranks wait {waits} of the time"


def _slower_network(fields: Fields, _: Write) -> str:
    value, usual = value_text("B/s", fields["value"]), value_text("B/s", fields["usual"])
    waits, waited = numbers.percent(fields["waiting"]), numbers.percent(fields["waited"])
    return (
        f"the network between the nodes has become slower: {value} a node, before {usual}; "
        f"ranks wait {waits} of the time, before {waited}"
    )


def _slow_rank(fields: Fields, _: Write) -> str:
    """`rank 37 of 512 on node-4 is slow: it waits 1 % of the time, the others 11 %; train.py:12 step`.

    Of a node: `node-4 is slow: all its ranks, 32 to 39 of 512; rank 37 waits 1 % of the time, …`.
    """
    it, who = "it", f"rank {fields['rank']} of {fields['world']} on {fields['host']} is slow"
    of_node = []
    if ranks := fields.get("ranks"):
        it, who = f"rank {fields['rank']}", f"{_host(fields) or 'a node'} is slow"
        of_node.append(f"all its ranks, {ranks[0]} to {ranks[-1]} of {fields['world']}")
    waits, others, took, usual = (fields[name] for name in ("waits", "others_wait", "iteration_s", "usual_s"))
    parts = of_node
    if waits is not None and others is not None:
        waiting = "waits or is in the backward pass" if fields.get("basis") == "backward" else "waits"
        usually = numbers.percent(others)
        parts.append(f"{it} {waiting} {numbers.percent(waits)} of the time, the others {usually}")
    if fields.get("work_s") is not None:
        work, usual_work = numbers.seconds(fields["work_s"]), numbers.seconds(fields["usual_work_s"])
        phases = numbers.clean(str(fields["phases"]).replace(",", ", "), 60)
        parts.append(f"{it} takes {work} for {phases}, the others {usual_work}")
    if took is not None and usual is not None and took > usual:
        parts.append(
            f"its iterations take {numbers.seconds(took)}, those of the others {numbers.seconds(usual)}"
        )
    if fields["line"]:
        parts.append(f"most often in {fields['line']}")
    if fields["throttled"]:
        parts.append(f"GPU {fields['gpu']} lowers its clocks: {fields['throttled']}")
    return f"{who}: {'; '.join(parts)}" if parts else who


def _even(fields: Fields, _: Write) -> str:
    who = (_host(fields) or "the node") if fields.get("ranks") else f"rank {fields['rank']}"
    return f"{who} is not slow any more, after {numbers.duration(fields['after_s'])}"


def _hung_rank(fields: Fields, _: Write) -> str:
    who = f"rank {fields['rank']} of {fields['world']} on {fields['host']}"
    age = fields["age_s"]
    since = f" for {numbers.duration(age)}" if age is not None else ""
    if not fields["heard"]:
        last = f"; it was last in {fields['line']}" if fields["line"] else ""
        return f"no iteration ended{since}: {who} sends no pulse{last}"
    where = f": it is in {fields['line']}" if fields["line"] else ""
    return f"no iteration ended{since}: {who} does not wait for the others{where}"


def _silent_node(fields: Fields, _: Write) -> str:
    """`node gpu51 (ranks 408–415 of 512) has been silent for 137 s`."""
    ranks, count = fields["ranks"], fields["count"]
    which = rank_names(ranks) if count == len(ranks) else f"{count} ranks"
    since = f"{fields['age_s']:.0f} s"
    return f"node {fields['host']} ({which} of {fields['world']}) has been silent for {since}"


def rank_names(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 8–15` for consecutive ones, `ranks 1, 5, 9`, `5 ranks`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    ordered = sorted(ranks)
    if ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"ranks {ordered[0]}–{ordered[-1]}"
    return f"ranks {', '.join(map(str, ordered))}" if len(ordered) <= MOST_NAMED else f"{len(ordered)} ranks"


def line_group_text(
    ranks: Sequence[int], count: int, hosts: Sequence[str], host_count: int, line: str, *, waits: bool
) -> str:
    """`504 ranks on 63 other nodes are most in train.py:120 step`, for ranks and hosts of which some are
    listed.
    """
    who = rank_names(ranks) if count == len(ranks) else numbers.counted(count, "rank")
    where = f"on {numbers.clean(hosts[0], 60) or '?'}" if host_count == 1 else f"on {host_count} other nodes"
    if waits:
        return f"{who} {where} mostly {'waits' if count == 1 else 'wait'} for other ranks"
    are = "is" if count == 1 else "are"
    return (
        f"{who} {where} {are} most in {numbers.clean(line, 120)}"
        if line
        else f"{who} {where} sent no stack samples"
    )


SENTENCES: Mapping[str, Entry] = {
    "job.slow_rank": _slow_rank,
    "job.even": _even,
    "job.hung_rank": _hung_rank,
    "job.progress": "rank {rank} goes on, after {after_s:duration}",
    "job.silent_node": _silent_node,
    "job.node_back": "node {host} is there again, after {after_s:duration}",
    "job.ended": "the ranks of other nodes are not shown any more: {problem}",
    "job.own_time": _own_time,
    "job.missing_node": _missing_node,
    "job.no_progress": _no_progress,
    "job.stalled": _stalled,
    "job.throttled": _throttled,
    "job.low_clock": _low_clock,
    "job.slow_link": _slow_link,
    "job.slower_network": _slower_network,
}
