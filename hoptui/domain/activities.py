"""What a training thread does at each line of the script, counted in its stack samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hoptui.domain.code_lines import CodeLine
from hoptui.domain.stack_groups import inside
from hoptui.domain.stack_kinds import Basis, Kind, assess, place_of
from hoptui.domain.stacks import Stack
from hoptui.domain.training_code import NOTHING_KNOWN, TrainingCode

OWN_LOADER = "_SingleProcessDataLoaderIter._next_data"
"""The function of torch.utils.data that loads in the training process."""


class Activity(NamedTuple):
    """What a thread does at a line, and the function that the line calls.

    `own_loader`: it loads data in a DataLoader without workers. `basis` is what the kind rests on.
    """

    kind: Kind
    place: CodeLine
    inside: str
    own_loader: bool = False
    basis: Basis = "known"


def activities(stacks: Mapping[Stack, int], code: TrainingCode = NOTHING_KNOWN) -> Counter[Activity]:
    """Return how often each activity was found. Samples without a stack are left out.

    Args:
        stacks: How often each stack was found.
        code: The functions of the script that train.
    """
    found: Counter[Activity] = Counter()
    for stack, count in stacks.items():
        if stack:
            own = any(frame.function == OWN_LOADER for frame in stack)
            kind, basis = assess(stack, code)
            found[Activity(kind, place_of(stack), inside(stack), own, basis)] += count
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
