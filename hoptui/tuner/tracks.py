"""What is known of all levers of a run: what each of them takes and brings, and what became of what was tried."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

from hoptui.tuner.ladder import READERS, Candidate, Lever, levers
from hoptui.tuner.memory import NOTICED
from hoptui.tuner.scene import Scene
from hoptui.tuner.track import CEILING_S, GAVE_WAY_S, LEFT_S, Track
from hoptui.wire.knobs import KnobValue
from hoptui.wire.measured import Measured
from hoptui.wire.tuning import Limits

MIXED = 5
"""So many readings, one a second, what others held is looked back at: longer than peaks of memory are."""


Settings = Sequence[tuple[Lever, KnobValue]]


class Tracks:
    """A track for each lever, by its name."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._tracks: dict[str, Track] = {}
        self._others: deque[int] = deque(maxlen=MIXED)
        self._in_vain: set[frozenset[tuple[str, KnobValue]]] = set()
        self._beside: dict[str, KnobValue] = {}  # the values that `sway` was last told of

    def of(self, lever: Lever) -> Track:
        return self._tracks.setdefault(lever.name, Track())

    def levers(self, scene: Scene, frozen: set[str]) -> list[Lever]:
        return levers(scene.knobs, self.limits, frozen)

    def batches(self, scene: Scene, frozen: set[str]) -> Iterator[Lever]:
        """The levers that memory grows with, where it is known how."""
        for lever in self.levers(scene, frozen):
            if lever.family == "batch" and self.of(lever).memory.fitted:
                yield lever

    def in_vain(self, settings: Settings) -> bool:
        """Whether these values were tried together, and taken back."""
        return _named(settings) in self._in_vain

    def fits(self, lever: Lever, value: KnobValue, scene: Scene) -> bool:
        """Whether a value may be tried; nothing larger while more than the limit is taken already, whatever was seen before."""
        size, memory, most = lever.size_of(value), scene.memory, self.limits.memory
        if memory is None or (size > lever.size and scene.taken > most):
            return False
        return self.of(lever).fits(lever.size, size, memory, most)

    def saw(self, scene: Scene, used: int, names: Collection[str] | None = None) -> None:
        """The run held `used` bytes with the values that it has; a change of the levers `names` alone is what it was for.

        While others take or give back memory nobody knows whose it is: what processes hold is read at other moments than all
        that is held, of which the most in a few seconds counts.
        """
        apart = self._others_stand_still(scene)
        for lever in self.levers(scene, set()):
            if lever.ordered and (names is None or lever.name in names):
                track = self.of(lever)
                track.shapes.add(lever.size)
                if apart:
                    track.memory.saw(lever.size, used)
                else:
                    track.memory.doubt()

    def sway(self, values: Mapping[str, KnobValue], level: float, t: int) -> bool:
        """`values` bring `level` at `t` (monotonic ns); whether something was refused when the same ones brought another speed."""
        if self._beside != values:
            self._beside = dict(values)
            for track in self._tracks.values():
                track.sway.refused(None)
        swayed = [track for track in self._tracks.values() if track.sways(level, t)]
        return bool(swayed)

    # what became of what was tried ---------------------------------------------------------------------------------------

    def kept(self, tried: Candidate, found: Measured) -> None:
        """It is in effect. What memory does with the other levers has to be seen anew."""
        names = {lever.name for lever, _ in tried.settings}
        for name, track in self._tracks.items():
            if name not in names:
                track.memory.clear()
            if len(names) > 1 or name not in names:
                track.outdated = "another knob has been turned since"
            track.sway.believed = 0
        self._rated(tried, found)
        for lever, _ in tried.settings:
            if tried.way:
                self.of(lever).closed.add(-tried.way)
                self.of(lever).slower = tried.way < 0

    def dropped(self, tried: Candidate, found: Measured) -> None:
        """It was taken back. Of several levers nobody knows which of them it was."""
        self._rated(tried, found)
        if len(tried.settings) > 1:
            self._in_vain.add(_named(tried.settings))
            return
        for lever, value in tried.settings:
            self.of(lever).dropped(value, tried.way, tried.gain, found)

    def failed(self, tried: Candidate, t: int, knob: str = "") -> None:
        """The run could not hold it, or refused it: a ceiling, for a time that doubles.

        Of several levers it is that of `knob`, which the run named, or else those that take memory.
        """
        settings = tried.settings
        if len(settings) > 1:
            self._in_vain.add(_named(settings))
        named = [(lever, value) for lever, value in settings if knob in lever.names]
        grown = [(lever, value) for lever, value in settings if lever.family not in READERS]
        for lever, value in named or grown or settings:
            track = self.of(lever)
            track.refused.add(value)
            track.stride = 1
            if lever.sized(value) and tried.way >= 0:
                self.ceiling(lever, lever.size_of(value), t)
            elif tried.way:
                track.closed.add(tried.way)

    def ignored(self, tried: Candidate) -> None:
        """The run reads back what was in effect before: beside its other knobs, that is all it can do."""
        for lever, value in tried.settings:
            self.of(lever).refused.add(value)
            if tried.way:
                self.of(lever).closed.add(tried.way)

    def ceiling(self, lever: Lever, size: float, t: int, *, held: bool = False) -> None:
        """`size` was too much at `t` (monotonic ns); `held` says that it had gone well before: then it may soon again, sooner still
        where the run has given way to less already."""
        seconds = CEILING_S if not held else GAVE_WAY_S if lever.size < size else LEFT_S
        self.of(lever).bound(size, t, seconds)

    def expire(self, t: int) -> None:
        """Ceilings whose time is over are tried once more."""
        for track in self._tracks.values():
            track.expire(t)

    def freed(self) -> None:
        """Others gave memory back: no ceiling holds any more."""
        for track in self._tracks.values():
            track.lift()

    def reopen(self) -> None:
        """The run is not what it was: everything may be tried again."""
        self._in_vain.clear()
        for track in self._tracks.values():
            track.reopen()

    def forget_memory(self) -> None:
        """Another process: what the one before held says nothing."""
        for track in self._tracks.values():
            track.memory.clear()
            track.shapes.clear()

    def _others_stand_still(self, scene: Scene) -> bool:
        """Whether what others hold has hardly changed in the last readings."""
        if scene.memory is None:
            return True
        self._others.append(scene.memory.others)
        return max(self._others) - min(self._others) <= NOTICED * scene.memory.total

    def _rated(self, tried: Candidate, found: Measured) -> None:
        """What was measured of one lever. The gain, not the median of all iterations after: where these scatter they do not agree."""
        if len(tried.settings) == 1 and found.before is not None and found.gain is not None:
            (lever, value) = tried.settings[0]
            rates = {lever.knob.value: found.before, value: found.before * (1 + found.gain)}
            self.of(lever).rates |= {lever.size_of(v): rate for v, rate in rates.items() if lever.sized(v)}


def _named(settings: Settings) -> frozenset[tuple[str, KnobValue]]:
    return frozenset((lever.name, value) for lever, value in settings)
