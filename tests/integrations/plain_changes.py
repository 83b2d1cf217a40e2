"""The changes of a live training again, made by plain code in a training that hoptui has no part in."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hoptui.protocol.messages import CommandRecord

LIMIT_S = 200.0


class PlainChanges:
    """The changes that a training of a rank makes by plain code, by the number of steps before them.

    Args:
        training: Has `repeats`, the name of the live training, and `without`, a knob whose changes are left
            out, or neither.
        folder: Where `leave` has put the changes of the live training.
    """

    def __init__(self, training: Mapping[str, Any], folder: Path) -> None:
        self._changes: list[list[Any]] = []
        if (name := training.get("repeats")) is None:
            return
        file = folder / f"{name}.changes"
        end = time.monotonic() + LIMIT_S
        while not file.exists():
            if time.monotonic() > end:
                raise TimeoutError(file)
            time.sleep(0.01)
        self._changes = [one for one in json.loads(file.read_text()) if one[1] != training.get("without")]

    def due(self, steps: int) -> list[tuple[str, Any]]:
        """Return the knobs that change after so many steps, each with its value."""
        return [(knob, value) for at, knob, value in self._changes if at == steps]


def leave(name: str, folder: Path, outcomes: Mapping[str, Sequence[CommandRecord]]) -> None:
    """Leave the changes that were applied to a live training to those that repeat them."""
    changes = [
        (record.step, record.knob, record.effective)
        for records in outcomes.values()
        for record in records
        if record.verb == "set" and record.stage == "applied"
    ]
    new = folder / f"{name}.changes.new"
    new.write_text(json.dumps(changes))
    new.rename(folder / f"{name}.changes")


def change_optimizer(optimizer: Any, knob: str, value: float) -> None:
    """Change a coefficient of AdamW in its first parameter group, and a beta in all groups."""
    first, *_ = optimizer.param_groups
    if knob == "weight_decay":
        first["weight_decay"] = value
    elif knob == "beta1":
        for group in optimizer.param_groups:
            group["betas"] = (value, group["betas"][1])
    elif knob == "beta2":
        for group in optimizer.param_groups:
            group["betas"] = (group["betas"][0], value)
    else:
        raise ValueError(knob)
