"""What the head says of a run, in words, on a node without rank 0. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hoptui.domain.jobs import SILENT_S, HeadReports
from hoptui.presentation import diagnosis, numbers
from hoptui.protocol.messages import NodeState, RunState, Vital

UNKNOWN_HEAD = "what the node of rank 0 says of the run is not known on this node"
LONGEST_HOST = 60
KINDS = ("metrics", "events", "commands", "notes", "trials")


def name(reports: HeadReports) -> str:
    """The name of the head."""
    return numbers.clean(reports.host, LONGEST_HOST) or "the node of rank 0"


def old_s(vital: Vital | None) -> float | None:
    """How many seconds old what the head says is. None while it is current, and if that is not known."""
    age_s = vital.head_age_s if vital is not None else None
    return age_s if age_s is not None and age_s > SILENT_S else None


def as_of(vital: Vital | None) -> str:
    """`as of 40 s ago`, "" while what the head says is current."""
    age_s = old_s(vital)
    return f"as of {numbers.duration(age_s)} ago" if age_s is not None else ""


def dated(text: str, vital: Vital | None) -> str:
    """A text on what the head says, with its age if that is old: `gpu00, as of 40 s ago`."""
    return ", ".join(filter(None, (text, as_of(vital)))) if text else ""


def verdict(reports: HeadReports) -> str:
    """`gpu00: data-bound: …`, "" while there is no verdict."""
    found = reports.diagnosis
    return f"{name(reports)}: {numbers.clean(diagnosis.sentence(found))}" if found is not None else ""


def known_there(reports: HeadReports, node: NodeState) -> str:
    """`gpu00 alone knows 12 events and metrics before 14:03:10`, "" if it knows no more than this node."""
    counts = [(kind, reports.left_out.get(kind, 0)) for kind in KINDS]
    parts = [numbers.counted(count, kind.removesuffix("s")) for kind, count in counts if count]
    if since := since_wall(reports, node):
        parts.append(f"metrics before {numbers.clock(since)}")
    return f"{name(reports)} alone knows {_and(parts)}" if parts else ""


def since_wall(reports: HeadReports, node: NodeState) -> float | None:
    """The time from which on the metrics of the head are known here, None while none are."""
    return (reports.since + node.wall_offset_ns) / 1e9 if reports.since else None


def as_json(
    run: RunState, vital: Vital | None, node: NodeState, metrics: Sequence[str]
) -> dict[str, Any] | None:
    """The head as `status --json` shows it, None where rank 0 is on this node. `metrics` are those of the
    head.
    """
    if not run.rank:
        return None
    found = run.head
    return {
        "known": found is not None,
        "host": found.host or None if found is not None else None,
        **age_json(vital),
        "metrics": metrics,
        "since": since_wall(found, node) if found is not None else None,
        "left_out": found.left_out if found is not None else None,
    }


def age_json(vital: Vital | None, prefix: str = "") -> dict[str, Any]:
    """How old what the head says is, in seconds, and whether it is too old to be current."""
    return {
        f"{prefix}age_s": vital.head_age_s if vital is not None else None,
        f"{prefix}stale": old_s(vital) is not None,
    }


def _and(parts: Sequence[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
