"""What memory a run holds, and when that asks for a smaller size although nothing is tried: others have taken some, or rare peaks
come near the limit."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hoptui.domain.knobs import KnobValue
from hoptui.tuner.observation import Memory, Scene
from hoptui.tuner.search.memory_model import Neighbours
from hoptui.tuner.search.parameter_history import DEAR, FARTHEST, OFTEN, Tracks
from hoptui.tuner.search.space import Candidate

FULL = 0.95
"""Memory that is fuller than this is about to run out."""
READING_NS = 900_000_000
"""Memory is read about once a second: more often, the same peak would be seen again."""


class Room:
    """Watches the memory of a run; `tracks` learn what its sizes take. `peak` is the most bytes held outside of trials."""

    def __init__(self, tracks: Tracks) -> None:
        self.peak = 0
        self._tracks = tracks
        self._neighbours: dict[str, Neighbours] = {}
        self._due = 0

    def watch(self, scene: Scene) -> None:
        """Take note of what others hold on each GPU: where they have given some back, what was too much may be tried again."""
        freed = [self._beside(memory).freed(memory) for memory in scene.memories]
        if any(freed):
            self._tracks.freed()

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
            self._tracks.saw(scene, scene.memory.used, tried)

    def made(self, scene: Scene, frozen: Collection[str], *, seen: bool) -> tuple[Candidate, str] | None:
        """A smaller size and why it is taken, before memory runs out; None where there is no need, or none is known.

        `seen` says that iterations with the values in effect have been.
        """
        memory = scene.memory
        if memory is None:
            return None
        watch = self._beside(memory)
        taken = watch.taken(memory)
        if taken and (scene.taken >= FULL or self._tight(scene)):
            tried = self._smaller(scene, frozen)
            why = f"other processes have taken {taken / 2**30:.1f} GiB of the memory: room is made before it runs out"
        elif not watch.growing and seen:
            tried = self._safer(scene, frozen)
            why = "its rare peaks of memory come near the limit: a size that they do not reach, before it runs out"
        else:
            return None
        if tried is None:
            return None
        watch.settle(memory)
        for lever, _ in tried.settings:
            self._tracks.ceiling(lever, lever.size, scene.t, held=True)
        return tried, why

    def gave_way(self, scene: Scene, before: Mapping[str, KnobValue], theirs: Collection[str]) -> bool:
        """Whether the run has made a batch smaller than it was `before`, because it could not hold it: then that is its ceiling.

        A knob of `theirs` has the value that a person wants.
        """
        gave = False
        for lever in self._tracks.levers(scene, theirs):
            size = lever.size_of(before.get(lever.name, lever.knob.value))
            if lever.family == "batch" and lever.ordered and lever.size < size:
                self._tracks.ceiling(lever, size, scene.t, held=True)
                gave = True
        return gave

    def _smaller(self, scene: Scene, frozen: Collection[str]) -> Candidate | None:
        """What makes room for other processes: the first batch that memory is known of, cut so that it fits again, if it can be to a
        size that is compiled already."""
        for lever in self._tracks.batches(scene, frozen):
            shapes = self._tracks.of(lever).shapes
            below = [v for v in lever.finer() if lever.size_of(v) < lever.size]
            fits = [v for v in below if self._tracks.fits(lever, v, scene)]
            known = [
                v
                for v in fits
                if lever.size_of(v) in shapes and FARTHEST * lever.size_of(v) >= lever.size_of(fits[-1])
            ]
            rungs = [v for v in fits if v in lever.rungs()]
            if below:
                return Candidate(((lever, (known or rungs or below[:1])[-1]),), -1, "")
        return None

    def _tight(self, scene: Scene) -> bool:
        """Whether what a batch takes now and then does not fit any more."""
        return scene.memory is not None and any(
            not self._tracks.of(lever).memory.expects(lever.size, scene.memory)
            for lever in self._tracks.batches(scene, set())
        )

    def _safer(self, scene: Scene, frozen: Collection[str]) -> Candidate | None:
        """What takes a batch out of the reach of its rare peaks, where that costs little speed or they are not that rare."""
        assert scene.memory is not None
        for lever in self._tracks.batches(scene, frozen):
            track = self._tracks.of(lever)
            if track.memory.holds(lever.size, scene.memory):
                continue
            pressed = not track.memory.holds(lever.size, scene.memory, often=OFTEN)
            for value in reversed([v for v in lever.finer() if lever.size_of(v) < lever.size]):
                size = lever.size_of(value)
                known = track.gain(lever.size, size, falling=True)
                loss = 1 - size / lever.size if known is None else -known
                may = track.compiled(size) and (loss <= DEAR or pressed)
                if may and track.memory.holds(size, scene.memory):
                    return Candidate(((lever, value),), -1, "")
        return None

    def _beside(self, memory: Memory) -> Neighbours:
        """Who else is on that GPU."""
        return self._neighbours.setdefault(memory.gpu, Neighbours())
