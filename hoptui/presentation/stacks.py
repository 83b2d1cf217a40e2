"""Stack samples for people: words for kinds, short names of files, and the format of speedscope."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from hoptui.domain.code_lines import CodeLine
from hoptui.domain.hot_lines import HotLine, hot_lines, sampled
from hoptui.domain.stack_groups import WAITS
from hoptui.domain.stacks import PHASE_FILE, StackFrame, StackSamples, unpack
from hoptui.presentation import numbers

KINDS: dict[str, str] = {
    "wait": "waits for the GPU",
    "copy": "copies to/from the GPU",
    "collective": "waits for other ranks",
    "compute": "computes",
    "input": "loads data",
    "environment": "steps environments",
    "save": "saves",
    "log": "logs",
    "compile": "compiles",
    "evaluate": "evaluates",
    "paused": "is paused",
    "script": "runs Python",
}
BRIEF = KINDS | {
    "wait": "waits: GPU",
    "copy": "copies",
    "collective": "waits: ranks",
    "environment": "steps env",
}
"""The same where the place of the line needs the room."""
BLOCKING = frozenset(
    ("sleep", "poll", "accept", "recv", "recv_into", "wait", "waitpid", "acquire", "communicate")
)
SELECTS = frozenset(("select.select", "SelectSelector.select", "PollSelector.select", "EpollSelector.select"))
"""Functions in which a thread of Python only waits. `np.select` does not."""
LONGEST = 80
"""Characters of the name of a file or a function."""
SILENT: Mapping[str, str] = {
    "T": "stopped (SIGSTOP)",
    "t": "stopped by a debugger",
    "D": "in the kernel, which waits for a disk or a driver",
    "Z": "its process has ended",
    "": "its process is gone",
    "R": "C code holds the interpreter, or it gets no CPU",
}
"""Why a process sends nothing, by its state."""
OFF = "HOPTUI_STACKS=off or stacks=False has switched them off"
"""Why there are no samples, after `no stack samples: `."""
_UNNAMED = re.compile(r"\.<\w+>")
"""Parts of a function's name that say nothing to users: `.<locals>`, `.<listcomp>`."""
SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def does(kind: str, inside: str = "", *, brief: bool = False) -> str:
    """Return what a thread does in a few words, for a kind and the function that the line calls."""
    if kind == "script" and (inside.rpartition(".")[2] in BLOCKING or inside in SELECTS):
        return "waits"
    return (BRIEF if brief else KINDS).get(kind, kind)


def place(found: CodeLine) -> str:
    """Return a line in a few words: `data.py:37 augment`."""
    function = _UNNAMED.sub("", found.function)
    file, function = (numbers.clean(text, LONGEST) for text in (PurePath(found.file).name, function))
    return f"{file}:{found.line} {function}"


def called(name: str) -> str:
    """Return the end of a long dotted name: `random.rand` for `np.random.rand`."""
    return numbers.clean(".".join(name.split(".")[-2:]), LONGEST)


def where(samples: StackSamples) -> str:
    """Return the line with the most samples in a phrase, "" if no sample has a place.

    `waits for the GPU 61 %, train.py:120 step (item), 596 samples in 60 s`.
    """
    lines = hot_lines(samples)
    return f"{line(lines[0])}, {amount(samples)}" if lines else ""


def line(found: HotLine) -> str:
    """Return what a line does, its share and its place."""
    inside = f" ({called(found.inside)})" if found.inside else ""
    what, share = does(found.kind, found.inside), numbers.percentage(100 * found.share)
    return f"{what} {share}, {place(found.place)}{inside}"


def amount(samples: StackSamples) -> str:
    """Return how many samples there are, and over how long: `596 samples in 60 s`."""
    passed = numbers.duration((samples.ended - samples.began) / 1e9)
    return f"{numbers.counted(sampled(samples), 'sample')} in {passed}"


def left_out(ranks: int, unreadable: int, skipped: int) -> list[str]:
    """Return a phrase for each kind of samples that a recording lacks, or that were not read of it.

    `ranks` have no samples in it, `unreadable` minutes are damaged, and `skipped` ones were not read.
    """
    found = (
        (ranks, "rank", "not recorded"),
        (unreadable, "minute", "of samples damaged"),
        (skipped, "minute", "of samples not read, as there are too many"),
    )
    return [f"{numbers.counted(count, noun)} {why}" for count, noun, why in found if count]


def group_text(ranks: Sequence[int], count: int, world: int, kind: str, line: CodeLine, inside: str) -> str:
    """Return where a group of ranks is: `rank 5 of 8 is in data.py:37 read`, `7 ranks wait in all_reduce,
    train.py:120`. A run of one process is `it`."""
    who = _who(ranks, count, world)
    many = count > 1
    at = f"{PurePath(line.file).name}:{line.line}"
    if kind in WAITS and inside:
        return f"{who} {'wait' if many else 'waits'} in {called(inside)}, {at}"
    return f"{who} {'are' if many else 'is'} in {inside_text(line, inside)}"


def inside_text(line: CodeLine, inside: str) -> str:
    """Return a line and what it calls: `data.py:37 read (recv)`."""
    deeper = f" ({called(inside)})" if inside and inside != line.function else ""
    return f"{place(line)}{deeper}"


def _who(ranks: Sequence[int], count: int, world: int) -> str:
    if world <= 1:
        return "it"
    if count == 1:
        return f"rank {ranks[0]} of {world}"
    return f"{count} ranks" if count > 3 else f"ranks {', '.join(map(str, ranks))}"


def silent_text(rank: int, world: int, state: str) -> str:
    """Return why a rank does not answer, by the letter of its process: `rank 3 does not answer: stopped
    (SIGSTOP)`."""
    who = "it" if world <= 1 else f"rank {rank}"
    return f"{who} does not answer: {SILENT.get(state, SILENT['R'])}"


def uneven_text(collective: str, ranks: Mapping[int, Sequence[int]]) -> str:
    """Return how often ranks have begun a collective: `NCCL: rank 1 has begun 5 × AllReduce, ranks 0, 2 have
    begun 6 ×`. The ranks are given by their count."""
    groups = [
        f"rank {found[0]} has begun {count} ×" if len(found) == 1
        else f"ranks {', '.join(map(str, sorted(found)))} have begun {count} ×"
        for count, found in sorted(ranks.items())
    ]  # fmt: skip
    return f"NCCL: {', '.join((f'{groups[0]} {collective}', *groups[1:]))}"


def speedscope(name: str, ranks: Iterable[tuple[int, StackSamples]]) -> dict[str, Any]:
    """Return samples in the format of speedscope, one profile for each rank. The weights are samples."""
    frames: dict[StackFrame, int] = {}
    profiles = []
    for rank, samples in ranks:
        stacks, weights = [], []
        for stack, count in unpack(samples).items():
            stacks.append([frames.setdefault(frame._replace(call=""), len(frames)) for frame in stack])
            weights.append(count)
            if stack and (call := stack[-1].call):
                inner = StackFrame("", call, 0)
                stacks[-1].append(frames.setdefault(inner, len(frames)))
        profiles.append(
            {
                "type": "sampled",
                "name": f"rank {rank}",
                "unit": "none",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": stacks,
                "weights": weights,
            }
        )
    return {
        "$schema": SCHEMA,
        "name": name,
        "exporter": "hoptui",
        "shared": {"frames": [_speedscope_frame(frame) for frame in frames]},
        "profiles": profiles,
    }


def _speedscope_frame(frame: StackFrame) -> dict[str, Any]:
    if not frame.file:
        return {"name": frame.function}
    if frame.file == PHASE_FILE:
        return {"name": f"phase {frame.function}"}
    return {"name": frame.function, "file": frame.file, "line": frame.line}
