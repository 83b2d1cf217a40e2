"""Targets of a run: they are set, missed, and met again."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hoptui.domain.targets import Target
from hoptui.presentation import targets
from hoptui.presentation.sentences.template import Entry, Fields, Write


def _target(fields: Fields) -> Target:
    return msgspec.convert(fields["target"], Target, strict=False)


def _goal(fields: Fields) -> str:
    return targets.goal(_target(fields))


def _found(fields: Fields) -> str:
    """`busy 71 % on GPU 3 over 34 s of training; the target is ≥ 90 %`."""
    target = _target(fields)
    where = f" on GPU {fields['gpu']}" if "gpu" in fields else ""
    mean = targets.value_of(target, fields["mean"])
    over = f"over {fields['seconds']:.0f} s of training"
    return f"{targets.name_of(target)} {mean}{where} {over}; the target is {targets.bound(target)}"


def _set(fields: Fields, _: Write) -> str:
    return f"target set by {fields['by']}: {_goal(fields)}"


def _removed(fields: Fields, _: Write) -> str:
    return f"target removed by {fields['by']}: {_goal(fields)}"


def _missed(fields: Fields, _: Write) -> str:
    return f"target missed: {_found(fields)}"


def _met(fields: Fields, _: Write) -> str:
    return f"target met again: {_found(fields)}"


SENTENCES: Mapping[str, Entry] = {
    "target.set": _set,
    "target.removed": _removed,
    "target.missed": _missed,
    "target.met": _met,
    "target.no_live_run": "no live run has the id {run:quoted}",
    "target.invalid": "{reading:quoted} with this value is no target",
    "target.too_many": "a run has at most {most} targets",
    "target.none": "{run} has no target for {reading}",
}
