"""A run on several nodes on the command line: its size, spread and findings, and where a rank is."""

from __future__ import annotations

import shlex
from typing import Any

from hoptui.cli.support.terminal import say
from hoptui.client.target import SCHEME, BadPlace, parse
from hoptui.domain.job_findings import findings
from hoptui.domain.jobs import JobState
from hoptui.presentation import jobs, numbers, sentences

MOST_FINDINGS = 10
SPREADS = ("own_s", "iteration_s", "waiting")


def brief(state: JobState | None) -> str:
    """`512 ranks on 64 nodes, 2 silent`, "" for a run on one node."""
    if state is None:
        return ""
    odd = [f"{count} {jobs.CONDITIONS[one].text}" for one, count in jobs.conditions(state) if one != "live"]
    return ", ".join([jobs.size(state), *odd])


def brief_json(state: JobState | None) -> dict[str, Any] | None:
    """A job as `ls --json` shows it."""
    return jobs.brief_json(state, findings(state)) if state is not None else None


def whole_json(state: JobState | None) -> dict[str, Any] | None:
    """A job as `status --json` shows it."""
    return jobs.as_json(state, findings(state)) if state is not None else None


def show(state: JobState, unit: str) -> None:
    """Print a job: its nodes, spread, totals, and what differs."""
    say()
    say(f"on all nodes: {brief(state)}")
    if problem := jobs.store_problem(state):
        say(f"  {problem}")
    if problem := jobs.head_problem(state):
        say(f"  {problem}")
    for name in SPREADS:
        if text := jobs.spread_text(state, name):
            say(f"  {text}")
    if parts := jobs.totals_parts(state, unit):
        say(f"  {', '.join(f'{label} {text}' for label, text in parts)}")
    found = findings(state)
    for one in found[:MOST_FINDINGS]:
        say(f"  {sentences.sentence(one)}")
    if len(found) > MOST_FINDINGS:
        say(f"  and {len(found) - MOST_FINDINGS} more: hoptui status --json")


def elsewhere(state: JobState | None, rank: int, words: list[str]) -> str:
    """On which node a rank of another node is, and the command to see it there; "" if that is not known."""
    if state is None:
        return ""
    node = jobs.node_of(state, rank)
    if node is None or node.index == state.here:
        return ""
    silent = (
        f", which has been silent for {numbers.duration(node.age_s)}" if node.condition == "silent" else ""
    )
    there = f"ssh {node.host} {shlex.join(['hoptui', *words])}" if _is_host(node.host) else ""
    return f"rank {rank} is on {jobs.node_name(node)}{silent}{f': {there}' if there else ''}"


def _is_host(name: str) -> bool:
    """Whether a name that another node gives itself may be an argument of ssh."""
    try:
        return parse(f"{SCHEME}{name}").host == name
    except BadPlace:
        return False


def ranks_elsewhere(state: JobState | None) -> list[dict[str, Any]]:
    """The ranks on other nodes with their lines, as `stack --json` shows them."""
    if state is None:
        return []
    return [
        {
            "rank": rank.rank,
            "host": node.host or None,
            "condition": rank.condition if node.condition == "live" else node.condition,
            "kind": rank.kind or None,
            "line": rank.line or None,
            "share": rank.line_share,
            "waiting": rank.waiting,
        }
        for node, rank in state.ranks()
        if node.index != state.here
    ]
