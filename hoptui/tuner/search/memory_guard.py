"""What memory a run holds, and when that asks for a smaller size although nothing is tried: others have taken
some, or rare peaks come near the limit."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobValue
from hoptui.tuner.observation import MemoryReading, Observation
from hoptui.tuner.search.memory_model import Neighbours
from hoptui.tuner.search.parameter_history import DEAR, FARTHEST, OFTEN, ParameterHistories
from hoptui.tuner.search.space import Candidate

FULL = 0.95
"""Memory that is fuller than this is about to run out."""
READING_NS = 900_000_000
"""Memory is read about once a second: more often, the same peak would be seen again."""


class MemoryGuard:
    """Watches the memory of a run; `tracks` learn what its sizes take. `peak` is the most bytes held outside
    of trials."""

    def __init__(self, tracks: ParameterHistories) -> None:
        self.peak = 0
        self._tracks = tracks
        self._neighbours: dict[str, Neighbours] = {}
        self._due = 0

    def watch(self, observation: Observation) -> None:
        """Take note of what others hold on each GPU: where they have given some back, what was too much may
        be tried again."""
        freed = [self._beside(memory).freed(memory) for memory in observation.memories]
        if any(freed):
            self._tracks.freed()

    def learn(self, observation: Observation, tried: Collection[str] | None = None, *, seen: bool) -> None:
        """Take note of what the run holds, in a trial of the levers `tried` if there is one.

        `seen` says that iterations with the values in effect have been: before, it may be on its way to them
        still.
        """
        if observation.memory is None:
            return
        if tried is None:
            self.peak = max(self.peak, observation.memory.used)
        if seen and observation.t >= self._due:
            self._due = observation.t + READING_NS
            self._tracks.saw(observation, observation.memory.used, tried)

    def made(
        self, observation: Observation, frozen: Collection[str], *, seen: bool
    ) -> tuple[Candidate, Fact] | None:
        """A smaller size and why it is taken, before memory runs out; None where there is no need, or none is
        known.

        `seen` says that iterations with the values in effect have been.
        """
        memory = observation.memory
        if memory is None:
            return None
        watch = self._beside(memory)
        taken = watch.taken(memory)
        if taken and (observation.taken >= FULL or self._tight(observation)):
            tried = self._smaller(observation, frozen)
            why = fact("memory.taken_by_others", size_bytes=taken)
        elif not watch.growing and seen:
            tried = self._safer(observation, frozen)
            why = fact("memory.peaks_near_limit")
        else:
            return None
        if tried is None:
            return None
        watch.settle(memory)
        for lever, _ in tried.settings:
            self._tracks.ceiling(lever, lever.size, observation.t, held=True)
        return tried, why

    def gave_way(
        self, observation: Observation, before: Mapping[str, KnobValue], theirs: Collection[str]
    ) -> bool:
        """Whether the run has made a batch smaller than it was `before`, because it could not hold it: then
        that is its ceiling.

        A knob of `theirs` has the value that a user wants.
        """
        gave = False
        for lever in self._tracks.levers(observation, theirs):
            size = lever.size_of(before.get(lever.name, lever.knob.value))
            if lever.family == "batch" and lever.ordered and lever.size < size:
                self._tracks.ceiling(lever, size, observation.t, held=True)
                gave = True
        return gave

    def _smaller(self, observation: Observation, frozen: Collection[str]) -> Candidate | None:
        """What makes room for other processes: the first batch that memory is known of, cut so that it fits
        again, if it can be to a size that is compiled already."""
        for lever in self._tracks.batches(observation, frozen):
            shapes = self._tracks.of(lever).shapes
            below = [v for v in lever.finer() if lever.size_of(v) < lever.size]
            fits = [v for v in below if self._tracks.fits(lever, v, observation)]
            known = [
                v
                for v in fits
                if lever.size_of(v) in shapes and FARTHEST * lever.size_of(v) >= lever.size_of(fits[-1])
            ]
            rungs = [v for v in fits if v in lever.rungs()]
            if below:
                return Candidate(((lever, (known or rungs or below[:1])[-1]),), -1)
        return None

    def _tight(self, observation: Observation) -> bool:
        """Whether what a batch takes now and then does not fit any more."""
        return observation.memory is not None and any(
            not self._tracks.of(lever).memory.expects(lever.size, observation.memory)
            for lever in self._tracks.batches(observation, set())
        )

    def _safer(self, observation: Observation, frozen: Collection[str]) -> Candidate | None:
        """What takes a batch out of the reach of its rare peaks, where that costs little speed or they are
        not that rare."""
        assert observation.memory is not None
        for lever in self._tracks.batches(observation, frozen):
            track = self._tracks.of(lever)
            if track.memory.holds(lever.size, observation.memory):
                continue
            pressed = not track.memory.holds(lever.size, observation.memory, often=OFTEN)
            for value in reversed([v for v in lever.finer() if lever.size_of(v) < lever.size]):
                size = lever.size_of(value)
                known = track.gain(lever.size, size, falling=True)
                loss = 1 - size / lever.size if known is None else -known
                may = track.compiled(size) and (loss <= DEAR or pressed)
                if may and track.memory.holds(size, observation.memory):
                    return Candidate(((lever, value),), -1)
        return None

    def _beside(self, memory: MemoryReading) -> Neighbours:
        """Who else is on that GPU."""
        return self._neighbours.setdefault(memory.gpu, Neighbours())
