"""What a training thread does at each line of the script, counted in its stack samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from hoptui.domain.code_lines import CodeLine, package_path
from hoptui.domain.kind_rules import OPERATORS, Kind
from hoptui.domain.stack_groups import inside
from hoptui.domain.stack_kinds import Basis, assess_all, calls_host, place_of, waits_for_interpreter
from hoptui.domain.stacks import Stack, in_backward
from hoptui.domain.training_code import NOTHING_KNOWN, TrainingCode

OWN_LOADER = "_SingleProcessDataLoaderIter._next_data"
"""The function of torch.utils.data that loads in the training process."""
MAKES_LOADERS = "keras/src/trainers/data_adapters/"
"""Code that makes a DataLoader by itself. The script cannot give it workers."""


RECEIVES = "multiprocessing/connection"
"""The module of the standard library that receives from another process."""
UNNAMED = frozenset((*OPERATORS, "bool", ""))
"""What a line does that is no call by a name: it may work on tensors or on numbers."""
BackwardState = Literal["", "computes", "waits"]
"""What a thread does in a backward pass: it computes gradients, or waits for other ranks. "": unknown, or it
is in none."""


class Activity(NamedTuple):
    """What a thread does at a line, and the function that the line calls.

    `own_loader`: it loads data in a DataLoader of the script without workers. `basis` is what the kind rests
    on. `interpreter`: another thread does it, and keeps the interpreter that this one needs.
    """

    kind: Kind
    place: CodeLine
    inside: str
    own_loader: bool = False
    basis: Basis = "known"
    backward: BackwardState = ""
    interpreter: bool = False


def activities(
    stacks: Mapping[Stack, int],
    code: TrainingCode = NOTHING_KNOWN,
    asleep: Mapping[Stack, int] | None = None,
) -> Counter[Activity]:
    """Return how often each activity was found. Samples without a stack are left out.

    Args:
        stacks: How often each stack was found.
        code: The functions of the script that train.
        asleep: How often the thread slept in stacks that are in a backward pass. None: unknown.
    """
    found: Counter[Activity] = Counter()
    kinds = assess_all(stacks, code)
    for stack, count in stacks.items():
        if not stack:
            continue
        assessed = kinds[stack]
        part = assessed.part(stack)
        called = _receives(part) if assessed.basis == "process" else inside(part)
        kept = assessed.other and waits_for_interpreter(stack)
        own = _in_own_loader(stack)
        activity = Activity(assessed.kind, place_of(part), called, own, assessed.basis, interpreter=kept)
        if asleep is None or not in_backward(part):
            found[activity] += count
            continue
        waits = asleep.get(stack, 0)
        states: dict[BackwardState, int] = {"waits": waits, "computes": count - waits}
        for state, times in states.items():
            if times:
                found[activity._replace(backward=state)] += times
    return _of_numbers(found)


def _in_own_loader(stack: Stack) -> bool:
    return any(frame.function == OWN_LOADER for frame in stack) and not any(
        package_path(frame).startswith(MAKES_LOADERS) for frame in stack
    )


def _receives(stack: Stack) -> str:
    """Return how a line waits for another process: `Connection.recv`, and not how that reads."""
    receives = (frame.function for frame in stack if package_path(frame).startswith(RECEIVES))
    return next(receives, inside(stack))


def _of_numbers(found: Counter[Activity]) -> Counter[Activity]:
    """Return the same with Python of the script where operators are those of numbers, not of tensors.

    So it is with what calls nothing by a name. Nothing but their surroundings says so: their line, or else
    their function, calls NumPy or Python itself more often than torch.
    """
    lines, functions = Counter[CodeLine](), Counter[tuple[str, str]]()
    for activity, count in found.items():
        of_host = activity.kind == "script" and calls_host(activity.inside)
        if of_host or (activity.kind == "compute" and activity.inside not in UNNAMED):
            lines[activity.place] += count if of_host else -count
            functions[activity.place.file, activity.place.function] += count if of_host else -count
    settled = Counter[Activity]()
    for activity, count in found.items():
        line, function = activity.place, (activity.place.file, activity.place.function)
        numbers = lines[line] > 0 or (lines[line] == 0 and functions[function] > 0)
        unnamed = activity.kind == "compute" and activity.inside in UNNAMED
        settled[activity._replace(kind="script") if unnamed and numbers else activity] += count
    return settled


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
