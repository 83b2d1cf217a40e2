"""Processes of a run by where their training threads are: those at the same line are one group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hoptui.domain.code_lines import CodeLine, package_path
from hoptui.domain.kind_rules import Kind
from hoptui.domain.stack_kinds import assess, place_of
from hoptui.domain.stacks import Stack, StackSamples, unpack

WAITS: frozenset[Kind] = frozenset(("collective", "wait"))
"""Kinds of a thread that waits for others: for other ranks, or for a GPU that may do so."""
COLLECTIVES = "torch/distributed/distributed_c10d"


class StackGroup(NamedTuple):
    """Ranks whose threads are at the same line, and the stack of the first of them.

    `inside` is the function that the line calls: that of a collective, otherwise the innermost one.
    """

    ranks: tuple[int, ...]
    kind: Kind
    place: CodeLine
    inside: str
    stack: Stack


def grouped(stacks: Mapping[int, Stack]) -> list[StackGroup]:
    """Group ranks by their stacks. The odd group is first: one that does not wait for others, then a small
    one. An empty stack is left out."""
    found: dict[tuple[Kind, CodeLine, str], list[int]] = {}
    for rank in sorted(stacks):
        stack = stacks[rank]
        if stack:
            assessed = assess(stack)
            part = assessed.part(stack)
            found.setdefault((assessed.kind, place_of(part), inside(part)), []).append(rank)
    groups = [StackGroup(tuple(ranks), *key, stacks[ranks[0]]) for key, ranks in found.items()]
    return sorted(groups, key=lambda group: (group.kind in WAITS, len(group.ranks), group.ranks))


def usual_stack(samples: StackSamples) -> Stack:
    """Return the stack that is found most often, empty without any."""
    return next((stack for stack, _ in unpack(samples).most_common(1)), ())


def inside(stack: Stack) -> str:
    """Return the name of what the line of the script calls, "" if its own code runs."""
    for frame in stack:
        if package_path(frame).startswith(COLLECTIVES):
            return frame.function.rpartition(".")[2]
    innermost = stack[-1]
    if innermost.call:
        return innermost.call
    return "" if innermost.function == place_of(stack).function else innermost.function
