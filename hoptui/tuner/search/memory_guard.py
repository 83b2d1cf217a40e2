"""The memory that a run holds, and when it asks for a smaller size outside of a trial: other processes have
taken memory, or rare peaks come near the limit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobValue
from hoptui.tuner.observation import RECENT_NS, MemoryReading, Observation
from hoptui.tuner.search.memory_model import Neighbours
from hoptui.tuner.search.parameter_history import DEAR, FARTHEST, OFTEN, ParameterHistories
from hoptui.tuner.search.space import Candidate

FULL = 0.95
"""Memory that is fuller than this is about to run out."""
READING_NS = 900_000_000
"""Memory is read about once a second. Faster readings would see the same peak again."""


class MemoryGuard:
    """Watches the memory of a run. `tracks` learn how much its sizes need. `peak` is the most bytes held
    outside of trials."""

    def __init__(self, tracks: ParameterHistories) -> None:
        self.peak = 0
        self._tracks = tracks
        self._neighbours: dict[str, Neighbours] = {}
        self._due = self._read_due = 0
        self._reducing, self._reduced = False, -RECENT_NS
        self._settings: dict[str, KnobValue] = {}

    def watch(self, observation: Observation) -> None:
        """Record what other processes hold on each GPU. If they have freed memory, sizes that were too large
        may be tried again."""
        if (settings := observation.settings()) != self._settings:
            self._settings = settings
            if self._reducing:
                self._reducing, self._reduced = False, observation.t
        freed = [self._beside(memory).freed(memory) for memory in observation.memories]
        if any(freed):
            self._tracks.freed()
        if observation.memories and observation.t >= self._read_due:
            self._read_due = observation.t + READING_NS
            for memory in observation.memories:
                self._beside(memory).read(memory)

    def learn(self, observation: Observation, tried: Collection[str] | None = None, *, seen: bool) -> None:
        """Record what the run holds, in a trial of the levers `tried` if there is one.

        `seen`: iterations with the values in effect have completed. Before that, memory may still be
        changing.
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
        """Return a smaller size and its reason, before memory runs out. None if there is no need, or if no
        such size is known.

        `seen`: iterations with the values in effect have completed.
        """
        memory = observation.memory
        if memory is None:
            return None
        watch, soon = self._beside(memory), self._soon(observation)
        taken = watch.taken(memory)
        # until then, a reading may be that of the size before a reduction
        full = soon.taken >= FULL and observation.t - self._reduced > RECENT_NS
        if taken and (full or self._tight(soon)):
            tried = self._smaller(soon, frozen)
            why = fact("memory.taken_by_others", size_bytes=taken)
        elif not watch.growing and seen:
            tried = self._safer(observation, frozen)
            why = fact("memory.peaks_near_limit")
        else:
            return None
        if tried is None:
            return None
        watch.settle(memory)
        self._reducing = True
        for lever, _ in tried.settings:
            self._tracks.ceiling(lever, lever.size, observation.t, held=True)
        return tried, why

    def gave_way(
        self, observation: Observation, before: Mapping[str, KnobValue], theirs: Collection[str]
    ) -> bool:
        """Whether the run has reduced a batch from its size in `before`, because it did not fit. That size
        becomes the ceiling.

        Knobs in `theirs` have a value that a user set, and are ignored.
        """
        gave, rare = False, not any(watch.took for watch in self._neighbours.values())
        for lever in self._tracks.levers(observation, theirs):
            size = lever.size_of(before.get(lever.name, lever.knob.value))
            if lever.family == "batch" and lever.ordered and lever.size < size:
                self._tracks.ceiling(lever, size, observation.t, held=True, rare=rare)
                gave = True
        return gave

    def _smaller(self, observation: Observation, frozen: Collection[str]) -> Candidate | None:
        """A size that makes room for other processes. The first batch with a known memory model is reduced
        until it fits again, if possible to a size that is compiled already."""
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
        """Whether the usual peaks of a batch do not fit any more."""
        return observation.memory is not None and any(
            not self._tracks.of(lever).memory.expects(lever.size, observation.memory)
            for lever in self._tracks.batches(observation, set())
        )

    def _safer(self, observation: Observation, frozen: Collection[str]) -> Candidate | None:
        """A batch size whose rare peaks fit. It is taken if it costs little speed, or if such peaks are not
        that rare."""
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

    def _soon(self, observation: Observation) -> Observation:
        """What will be read next, if other processes continue to take memory. A smaller size takes effect an
        iteration after a reading, so the present one is too late."""
        memories = tuple(
            replace(memory, others=min(memory.total, memory.others + self._beside(memory).coming))
            for memory in observation.memories
        )
        return replace(observation, memories=memories)

    def _beside(self, memory: MemoryReading) -> Neighbours:
        """The other processes on that GPU."""
        return self._neighbours.setdefault(memory.gpu, Neighbours())
