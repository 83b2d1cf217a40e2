"""What a training thread does at each line of the script, counted in its stack samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hoptui.domain.stack_groups import inside
from hoptui.domain.stack_kinds import CodeLine, Kind, kind_of, place_of
from hoptui.domain.stacks import StackSamples, unpack

OWN_LOADER = "_SingleProcessDataLoaderIter._next_data"
"""The function of torch.utils.data that loads in the training process."""


class Activity(NamedTuple):
    """What a thread does at a line, and the function that the line calls.

    `own_loader`: it loads data in a DataLoader without workers.
    """

    kind: Kind
    place: CodeLine
    inside: str
    own_loader: bool = False


def activities(samples: StackSamples) -> Counter[Activity]:
    """Return how often each activity was found. Samples without a stack are left out."""
    found: Counter[Activity] = Counter()
    for stack, count in unpack(samples).items():
        if stack:
            own = any(frame.function == OWN_LOADER for frame in stack)
            found[Activity(kind_of(stack), place_of(stack), inside(stack), own)] += count
    return found


def by_line(counts: Mapping[Activity, int]) -> list[tuple[tuple[Kind, CodeLine], Counter[str]]]:
    """Return the lines with what they call and how often, those with the most samples first."""
    lines: dict[tuple[Kind, CodeLine], Counter[str]] = {}
    for activity, count in counts.items():
        lines.setdefault((activity.kind, activity.place), Counter())[activity.inside] += count
    return sorted(lines.items(), key=lambda item: -item[1].total())


def summed(parts: Iterable[Counter[Activity]]) -> Counter[Activity]:
    """Return the sum of several counts."""
    found: Counter[Activity] = Counter()
    for part in parts:
        found.update(part)
    return found
