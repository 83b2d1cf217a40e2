"""The lines that the time of a training thread goes to."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hoptui.domain.code_lines import CodeLine
from hoptui.domain.kind_rules import Kind
from hoptui.domain.stack_groups import inside
from hoptui.domain.stack_kinds import assess_all, place_of
from hoptui.domain.stacks import Stack, StackSamples, unpack, without_phases
from hoptui.domain.training_code import NOTHING_KNOWN


class HotLine(NamedTuple):
    """A line of the script: the share of the samples in which the thread was there, and what it did.

    `inside` is what the line calls, directly or not: the innermost function, also one written in C, that is
    found most often. `callers` are the lines that led there, the outermost first, as found most often.
    """

    share: float
    kind: Kind
    place: CodeLine
    inside: str
    callers: tuple[CodeLine, ...]


def sampled(samples: StackSamples) -> int:
    """Return the number of samples."""
    return sum(samples.counts) + samples.left_out


def hot_lines(samples: StackSamples) -> list[HotLine]:
    """Return the lines, those with the most samples first. The shares are of all samples."""
    total = sampled(samples)
    by_line: dict[tuple[Kind, CodeLine], Counter[Stack]] = {}
    stacks = unpack(samples)
    code = NOTHING_KNOWN.learned(stacks)
    kinds = assess_all(stacks, code)
    for stack, count in stacks.items():
        if stack:
            part = kinds[stack].part(stack)
            by_line.setdefault((kinds[stack].kind, place_of(part)), Counter())[part] += count
    found = [_line(kind, place, stacks, total) for (kind, place), stacks in by_line.items()]
    return sorted(found, key=lambda line: -line.share)


def _line(kind: Kind, place: CodeLine, stacks: Counter[Stack], total: int) -> HotLine:
    names: Counter[str] = Counter()
    for stack, count in stacks.items():
        names[inside(stack)] += count
    ((name, _),) = names.most_common(1)
    ((usual, _),) = stacks.most_common(1)
    callers = tuple(CodeLine(frame.file, frame.line, frame.function) for frame in without_phases(usual))
    depth = next(at for at, each in enumerate(callers) if each == place)
    return HotLine(sum(stacks.values()) / total, kind, place, name, callers[:depth])
