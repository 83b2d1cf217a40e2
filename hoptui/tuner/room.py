"""What memory a run holds, and when that asks for a smaller size although nothing is tried: others have taken some, or rare peaks
come near the limit."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hoptui.tuner.ladder import Candidate
from hoptui.tuner.memory import Neighbours, full
from hoptui.tuner.scene import Memory, Scene
from hoptui.tuner.search import Search
from hoptui.wire.knobs import KnobValue

FULL = 0.95
"""Memory that is fuller than this is about to run out."""
READING_NS = 900_000_000
"""Memory is read about once a second: more often, the same peak would be seen again."""


class Room:
    """Watches the memory of a run; `search` learns what its sizes take. `peak` is the most bytes held outside of trials."""

    def __init__(self, search: Search) -> None:
        self.peak = 0
        self._search = search
        self._neighbours = Neighbours()
        self._due = 0

    def watch(self, memory: Memory) -> None:
        """Take note of what others hold: where they have given some back, what was too much may be tried again."""
        if self._neighbours.freed(memory):
            self._search.freed()

    def learn(self, scene: Scene, tried: Collection[str] | None = None, *, seen: bool) -> None:
        """Take note of what the run holds, in a trial of the levers `tried` if there is one.

        `seen` says that iterations with the values in effect have been: before, it may be on its way to them still.
        """
        if scene.memory is None:
            return
        if tried is None:
            self.peak = max(self.peak, scene.memory.used)
        if seen and scene.t >= self._due:
            self._due = scene.t + READING_NS
            self._search.saw(scene, scene.memory.used, tried)

    def made(self, scene: Scene, frozen: set[str], *, seen: bool) -> tuple[Candidate, str] | None:
        """A smaller size and why it is taken, before memory runs out; None where there is no need, or none is known.

        `seen` says that iterations with the values in effect have been.
        """
        memory, watch = scene.memory, self._neighbours
        if memory is None:
            return None
        taken = watch.taken(memory)
        if taken and (full(memory) >= FULL or self._search.tight(scene)):
            tried = self._search.smaller(scene, frozen)
            why = f"other processes have taken {taken / 2**30:.1f} GiB of the memory: room is made before it runs out"
        elif not watch.growing and seen:
            tried = self._search.safer(scene, frozen)
            why = "its rare peaks of memory come near the limit: a size that they do not reach, before it runs out"
        else:
            return None
        if tried is None:
            return None
        watch.settle(memory)
        for lever, _ in tried.settings:
            self._search.ceiling(lever, lever.size, scene.t, held=True)
        return tried, why

    def gave_way(self, scene: Scene, before: Mapping[str, KnobValue], theirs: set[str]) -> bool:
        """Whether the run has made a batch smaller than it was `before`, because it could not hold it: then that is its ceiling.

        A knob of `theirs` has the value that a person wants.
        """
        gave = False
        for lever in self._search.levers(scene, theirs):
            size = lever.size_of(before.get(lever.name, lever.knob.value))
            if lever.family == "batch" and lever.size < size:
                self._search.ceiling(lever, size, scene.t, held=True)
                gave = True
        return gave
