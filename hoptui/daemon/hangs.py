"""Hung runs: those without progress for much longer than an iteration takes, and where their ranks are."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.code_lines import is_script, package_path
from hoptui.domain.facts import Fact, fact
from hoptui.domain.jobs import LineGroup, line_groups
from hoptui.domain.kind_rules import EVENT_LOOP, Kind
from hoptui.domain.stack_groups import StackGroup, grouped, usual_stack
from hoptui.domain.stack_kinds import kind_of
from hoptui.domain.stacks import Stack, StackSamples, unpack
from hoptui.node.processes import process_state
from hoptui.protocol.messages import HUNG

SECOND = 1_000_000_000
FRESH_S = 10.0
"""Older samples do not say where a thread is now. A sampler takes one at least every five seconds."""
AWAY_S, RETURN_S = 5.0, 6.0
"""A daemon that could not work for so long lets runs report for a while before it judges them."""
WORKS: frozenset[Kind] = frozenset(("save", "evaluate", "compile", "paused"))
"""What may take much longer than an iteration."""
WORK_NAME = re.compile(r"eval|valid|checkpoint|save", re.IGNORECASE)
"""The same, by the names of phases and of the script's functions."""
INTERACTIVE = ("pdb", "bdb", "cmd", "code.", "IPython", "ipykernel", "ptpython", "_pyrepl")
"""Packages in which a thread waits for its user."""
MANY_STACKS, COMPUTES = 12, 0.3
"""A thread with so many different stacks, so many of them computing, goes on."""
MOST_GROUPS, MOST_RANKS, LONGEST_FILE = 4, 16, 200


class Hangs:
    """Judges the live runs of a node. Call `tend` about once per second.

    Args:
        state_of: returns the state of a process, as `process_state` does.
    """

    def __init__(self, node: Node, state_of: Callable[[int], str] = process_state) -> None:
        self._node = node
        self._state_of = state_of
        self._told: dict[str, float] = {}  # by run: the time of its last progress, in seconds
        self._worked: dict[str, float] = {}  # by run: when it was last seen to work, since its last progress
        self._tended = 0.0
        self._quiet_until = 0.0

    def tend(self) -> None:
        """Judge every live run."""
        now = self._node.clock.t() / SECOND
        if self._tended and now - self._tended > AWAY_S:
            self._quiet_until = now + RETURN_S
        self._tended = now
        live = self._node.registry.live()
        names = {run.id for run in live}
        for known in (self._told, self._worked):
            for name in known.keys() - names:
                del known[name]
        if now >= self._quiet_until:
            for run in live:
                self._node.faults.attempt(f"looking for a hang of {run.id}", self._look, run, now)

    def _look(self, run: TrackedRun, now: float) -> None:
        before = run.stalled
        run.stalled = None
        still_s = run.still_s(now)
        if still_s is None:
            self._worked.pop(run.id, None)
        else:
            run.stalled = self._after_work(run, before, self._why(run, now, still_s), now)
        hung = run.stalled is not None and run.stalled.code == HUNG
        if hung and run.id not in self._told:
            assert still_s is not None
            assert run.stalled is not None
            self._told[run.id] = now - still_s
            what = Fact("run.hung", run.stalled.fields)
            self._node.event("hung", what, run=run.id, step=run.step, level="warning")
        elif still_s is None and run.id in self._told and run.stands_s(now) is not None:
            since = self._told.pop(run.id)
            what = fact("run.progress", after_s=now - since)
            self._node.event("hung", what, run=run.id, step=run.step)
        if (before and before.code) != (run.stalled and run.stalled.code):
            self._node.changed()

    def _after_work(self, run: TrackedRun, before: Fact | None, found: Fact, now: float) -> Fact:
        """Return what was found. A run that has just worked gets as much time as after a boundary."""
        if found.code != HUNG:
            self._worked[run.id] = now
        elif before is not None and before.code != HUNG and now - self._worked[run.id] <= run.patience_s():
            return before
        return found

    def _why(self, run: TrackedRun, now: float, still_s: float) -> Fact:
        """Return what is known of a run that stands: that it is hung, or what it does instead."""
        newest = run.stacks.newest(0)
        fresh = {rank: part for rank, part in newest.items() if part.ended > (now - FRESH_S) * SECOND}
        silent = self._silent(run, now)
        stacks = {rank: usual_stack(part) for rank, part in fresh.items() if rank not in silent}
        groups = grouped(stacks)
        if run.passed_none or WORK_NAME.search(run.phase):
            return _works(run, groups, still_s)
        for rank, stack in stacks.items():
            if _works_at(stack) or _goes_on(run.stacks.since(int((now - FRESH_S) * SECOND)).get(rank)):
                return _works(run, grouped({rank: stack}), still_s)
        first = run.rank
        if first in newest and first not in fresh and first not in silent and newest[first].ended:
            return fact("state.no_stack", age_s=still_s)
        known = set(run.known_ranks)
        others = line_groups(run.job) if run.job is not None else []
        elsewhere = sum(len(group.ranks) for group in others)
        return fact(
            HUNG,
            age_s=still_s,
            usual_s=run.usual_s or 0.0,
            rows=run.logs_only,
            world=run.state.world,
            groups=[group_fields(group) for group in groups[:MOST_GROUPS]],
            silent=[
                _silent_fields(rank, state, newest.get(rank), now)
                for rank, state in sorted(silent.items())[:MOST_RANKS]
            ],
            unsampled=sorted(known - stacks.keys() - silent.keys())[:MOST_RANKS],
            others=[_line_fields(group) for group in others[:MOST_GROUPS]],
            elsewhere=max(0, run.state.world - len(known) - elsewhere),
        )

    def _silent(self, run: TrackedRun, now: float) -> dict[int, str]:
        """Return the ranks that send no pulse, with the states of their processes."""
        pids = {run.rank: run.state.pid} | {each.rank: each.pid for each in run.state.ranks}
        quiet = [rank for rank in run.known_ranks if run.silent_s(rank, now) is not None]
        return {rank: self._state_of(pids[rank]) for rank in quiet if rank in pids}


def group_fields(group: StackGroup) -> dict[str, Any]:
    """Return a group as fields of a fact. At most 16 ranks are listed; `count` is their number."""
    return {
        "ranks": list(group.ranks[:MOST_RANKS]),
        "count": len(group.ranks),
        "kind": group.kind,
        "file": group.place.file[-LONGEST_FILE:],
        "line": group.place.line,
        "function": group.place.function[:LONGEST_FILE],
        "inside": group.inside[:LONGEST_FILE],
    }


def _line_fields(group: LineGroup) -> dict[str, Any]:
    """Return ranks of other nodes as fields of a fact. At most 16 of them are listed, and one node."""
    return {
        "ranks": group.ranks[:MOST_RANKS],
        "count": len(group.ranks),
        "hosts": group.hosts[:1],
        "host_count": len(group.hosts),
        "line": group.line,
        "waits": group.waits,
    }


def _silent_fields(rank: int, state: str, newest: StackSamples | None, now: float) -> dict[str, Any]:
    """Return a rank that sends nothing, with the place and the age of its newest samples if known."""
    groups = grouped({rank: usual_stack(newest)}) if newest is not None else []
    if newest is None or not groups:
        return {"rank": rank, "state": state}
    seen = group_fields(groups[0]) | {"age_s": now - newest.ended / SECOND}
    return {"rank": rank, "state": state, "seen": seen}


def _works(run: TrackedRun, groups: list[StackGroup], still_s: float) -> Fact:
    return fact(
        "state.works",
        age_s=still_s,
        phase=run.phase,
        rows=run.logs_only,
        groups=[group_fields(group) for group in groups[:1]],
    )


def _works_at(stack: Stack) -> bool:
    """Whether a thread does what may take long, or waits for its user."""
    if not stack:
        return False
    if kind_of(stack) in WORKS or stack[-1].call in ("input", "breakpoint"):
        return True
    paths = [(package_path(frame), frame) for frame in stack]
    if any(path.startswith((*INTERACTIVE, "hoptui/integrations/torch_trace")) for path, _ in paths if path):
        return True
    loops = [at for at, (path, _) in enumerate(paths) if path.startswith(EVENT_LOOP)]
    if loops and not any(map(is_script, stack[loops[-1] :])):
        return True  # a shell waits there for its user, as no task of a script does
    return any(not path and WORK_NAME.search(frame.function) for path, frame in paths)


def _goes_on(samples: StackSamples | None) -> bool:
    """Whether a thread computes at many different places: that is a long iteration."""
    if samples is None:
        return False
    found = unpack(samples)
    computes = sum(count for stack, count in found.items() if stack and kind_of(stack) == "compute")
    return len(found) >= MANY_STACKS and computes >= COMPUTES * sum(found.values())
