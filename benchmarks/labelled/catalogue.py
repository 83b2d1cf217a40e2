"""The labelled loads: their verdicts, and the lot that each belongs to.

A load is a function `load(run, device)` that trains until it is stopped. `# here` marks the line that holds
it back. Labels come from how a load is made, not from what hoptui says of it.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Literal, NamedTuple

import hoptui

Loop = Callable[[hoptui.Run, str], None]
Lot = Literal["development", "test"]
MARK = "# here"
SEED = 24
"""Of the drawing of lots. Thresholds may only be set on the development lot."""


class LabelledLoad(NamedTuple):
    """A load, and its right verdicts on a GPU and without one; empty where it cannot run.

    `ranks` processes work together.
    """

    name: str
    loop: Loop
    gpu: tuple[str, ...]
    cpu: tuple[str, ...]
    ranks: int = 1

    @property
    def lines(self) -> tuple[tuple[str, int], ...]:
        """The marked lines, as file and line."""
        source, first = inspect.getsourcelines(inspect.unwrap(self.loop))
        file = inspect.getsourcefile(self.loop) or ""
        marked = [(file, first + i) for i, text in enumerate(source) if MARK in text]
        for helper in HELPERS.get(self.name, ()):
            source, first = inspect.getsourcelines(helper)
            marked += [(file, first + i) for i, text in enumerate(source) if MARK in text]
        return tuple(marked)


LOADS: dict[str, LabelledLoad] = {}
HELPERS: dict[str, tuple[Callable[..., object] | type, ...]] = {}
"""Functions and classes beside a load that have marked lines."""


def labelled(
    *, gpu: str = "", cpu: str = "", ranks: int = 1, helpers: tuple[Callable[..., object] | type, ...] = ()
) -> Callable[[Loop], Loop]:
    """Enter a load. Several verdicts that are right are separated by spaces."""

    def enter(loop: Loop) -> Loop:
        name = loop.__name__
        LOADS[name] = LabelledLoad(name, loop, tuple(gpu.split()), tuple(cpu.split()), ranks)
        HELPERS[name] = helpers
        return loop

    return enter


def lot_of(name: str) -> Lot:
    """Return the lot of a load: half of all loads, drawn by their names."""
    names = sorted(LOADS)
    drawn = random.Random(SEED).sample(names, len(names) // 2)
    return "development" if name in drawn else "test"


def all_loads() -> dict[str, LabelledLoad]:
    """Return every load by its name."""
    from benchmarks.labelled import device_loads, gpu_loads, host_loads, input_loads, rank_loads  # noqa: F401

    return LOADS
