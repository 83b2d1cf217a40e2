"""Stack samples for people: words for kinds, short names of files, and the format of speedscope."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from hoptui.domain.stack_kinds import CodeLine
from hoptui.domain.stacks import StackFrame, StackSamples, unpack

KINDS: Mapping[str, str] = {
    "wait": "waits for the GPU",
    "copy": "copies to the GPU",
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
SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def place(found: CodeLine) -> str:
    """Return a line in a few words: `data.py:37 augment`."""
    return f"{PurePath(found.file).name}:{found.line} {found.function}"


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
    return {"name": frame.function, "file": frame.file, "line": frame.line}
