"""What to try next: a ladder climbed one lever after another, in the order that the diagnosis gives."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence

from hoptui.tuner.ladder import Candidate, Lever, advised, levers, ranked
from hoptui.tuner.memory import NOTICED, full
from hoptui.tuner.scene import Known, Scene
from hoptui.tuner.track import CEILING_S, DEAR, GAVE_WAY_S, LEFT_S, OFTEN, Track
from hoptui.tuner.trial import WORTH
from hoptui.wire.knobs import KnobError, KnobValue, check_value, shown
from hoptui.wire.measured import Measured
from hoptui.wire.tuning import Limits

FARTHEST = 2.0
"""No step is larger than this factor: memory is not extrapolated farther."""
MIXED = 5
"""So many readings, one a second, what others held is looked back at: longer than peaks of memory are."""
OTHER_WAY = 1.5
"""How memory changes with another way of computing nobody knows: half as much again must fit."""


class Search:
    """Where the search stands, over all levers of a run."""

    def __init__(self, limits: Limits, known: Known | None) -> None:
        self._limits = limits
        self._known = known
        self._tracks: dict[str, Track] = {}
        self._others: deque[int] = deque(maxlen=MIXED)

    def track(self, lever: Lever) -> Track:
        return self._tracks.setdefault(lever.name, Track())

    def levers(self, scene: Scene, frozen: set[str]) -> list[Lever]:
        return levers(scene.knobs, self._limits, frozen)

    def next(self, scene: Scene, frozen: set[str]) -> Candidate | str:
        """What to try, or in a few words why nothing."""
        found = self.levers(scene, frozen)
        if not found:
            return "the run has no knob that it may turn"
        if start := self._start(scene, found):
            return start
        order = ranked(found, scene.diagnosis)
        verdict = scene.diagnosis.verdict if scene.diagnosis else "unknown"
        if not order:
            return f"the run is {verdict}, against which none of its knobs helps"
        reasons: list[str] = []
        for lever in order:
            tried = self._climb(lever, scene) if lever.ordered else self._choose(lever, scene)
            if isinstance(tried, Candidate):
                return tried
            if tried:
                reasons.append(tried)
        return reasons[0] if reasons else "nothing is left to try"

    def smaller(self, scene: Scene, frozen: set[str]) -> Candidate | None:
        """What makes room for other processes: the first batch that memory is known of, cut so that it fits again, if it can be to a
        size that is compiled already."""
        for lever in self._batches(scene, frozen):
            shapes = self.track(lever).shapes
            below = [v for v in lever.finer() if lever.size_of(v) < lever.size]
            fits = [v for v in below if self._fits(lever, v, scene)]
            known = [
                v
                for v in fits
                if lever.size_of(v) in shapes and FARTHEST * lever.size_of(v) >= lever.size_of(fits[-1])
            ]
            rungs = [v for v in fits if v in lever.rungs()]
            if below:
                return Candidate(((lever, (known or rungs or below[:1])[-1]),), -1, "")
        return None

    def tight(self, scene: Scene) -> bool:
        """Whether what a batch takes now and then does not fit any more."""
        return scene.memory is not None and any(
            not self.track(lever).memory.expects(lever.size, scene.memory)
            for lever in self._batches(scene, set())
        )

    def safer(self, scene: Scene, frozen: set[str]) -> Candidate | None:
        """What takes a batch out of the reach of its rare peaks, where that costs little speed or they are not that rare."""
        assert scene.memory is not None
        for lever in self._batches(scene, frozen):
            track = self.track(lever)
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

    def saw(self, scene: Scene, used: int, names: Collection[str] | None = None) -> None:
        """The run held `used` bytes with the values that it has; a change of the levers `names` alone is what it was for.

        While others take or give back memory nobody knows whose it is: what processes hold is read at other moments than all
        that is held, of which the most in a few seconds counts.
        """
        apart = self._others_stand_still(scene)
        for lever in self.levers(scene, set()):
            if lever.ordered and (names is None or lever.name in names):
                track = self.track(lever)
                track.shapes.add(lever.size)
                if apart:
                    track.memory.saw(lever.size, used)
                else:
                    track.memory.doubt()

    def made(self) -> None:
        """Something is tried now."""
        self._known = None

    # what became of it ---------------------------------------------------------------------------------------------------

    def kept(self, tried: Candidate, found: Measured) -> None:
        """It is in effect. What memory does with the other levers has to be seen anew."""
        names = {lever.name for lever, _ in tried.settings}
        for name, track in self._tracks.items():
            if name not in names:
                track.memory.clear()
        if found.before is not None and found.after is not None:
            self._rated(tried, found.before, found.after)
        for lever, _ in tried.settings:
            if tried.way:
                self.track(lever).closed.add(-tried.way)
                self.track(lever).slower = tried.way < 0

    def dropped(self, tried: Candidate, found: Measured) -> None:
        """It was taken back."""
        if found.before is not None and found.after is not None:
            self._rated(tried, found.before, found.after)
        for lever, value in tried.settings:
            self.track(lever).dropped(value, tried.way, tried.gain, found)

    def failed(self, tried: Candidate, t: int) -> None:
        """The run could not hold it, or refused it: a ceiling, for a time that doubles."""
        for lever, value in tried.settings:
            track = self.track(lever)
            track.refused.add(value)
            track.stride = 1
            if lever.ordered and tried.way >= 0:
                self.ceiling(lever, lever.size_of(value), t)
            elif tried.way:
                track.closed.add(tried.way)

    def ceiling(self, lever: Lever, size: float, t: int, *, held: bool = False) -> None:
        """`size` was too much at `t` (monotonic ns); `held` says that it had gone well before: then it may soon again, sooner still
        where the run has given way to less already."""
        seconds = CEILING_S if not held else GAVE_WAY_S if lever.size < size else LEFT_S
        self.track(lever).bound(size, t, seconds)

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
        for track in self._tracks.values():
            track.reopen()

    def forget_memory(self) -> None:
        """Another process: what the one before held says nothing."""
        for track in self._tracks.values():
            track.memory.clear()
            track.shapes.clear()

    # the next step ---------------------------------------------------------------------------------------------------------

    def _climb(self, lever: Lever, scene: Scene) -> Candidate | str:
        track, here = self.track(lever), lever.size
        way, _ = advised(lever, scene.diagnosis)
        blocked = ""
        if way >= 0 and 1 not in track.closed:
            over = self._over_power(scene)
            up = [] if over else self._above(lever, self._values(lever, scene))
            fits = [v for v in up if lever.family == "input" or self._fits(lever, v, scene)]
            if fits:
                value = fits[-1] if track.stride > 1 else fits[(len(fits) - 1) // 2]
                gain = track.gain(here, lever.size_of(value), falling=False)
                if gain is None or gain >= WORTH or track.stride == 1:
                    expected = 0.0 if value in track.doubted else gain
                    return Candidate(((lever, value),), 1, self._why(lever, scene, value), expected)
            elif over:
                blocked = over
            elif up:
                blocked = self._no_room(lever, up[0], scene)
        if -1 not in track.closed and (way < 0 or (way == 0 and self._down(lever, track))):
            below = [v for v in lever.rungs() if here / FARTHEST <= lever.size_of(v) < here]
            below = [v for v in below if track.compiled(lever.size_of(v))]
            if below:
                return Candidate(((lever, below[-1]),), -1, self._why(lever, scene, below[-1]))
        return blocked

    def _above(self, lever: Lever, values: Sequence[KnobValue]) -> list[KnobValue]:
        """Those of `values` that may be tried next, but for memory."""
        track, here = self.track(lever), lever.size
        return [
            v
            for v in values
            if here < lever.size_of(v) <= FARTHEST * here * 1.001
            and lever.size_of(v) < track.ceiling
            and track.compiled(lever.size_of(v))
            and v not in track.refused
        ]

    def _values(self, lever: Lever, scene: Scene) -> list[KnobValue]:
        """What to climb by: rungs and what is compiled already; what lies between them only where memory is in the way."""
        rungs, track = lever.rungs(), self.track(lever)
        if lever.family != "batch":
            return rungs
        shy = track.ceiling < math.inf or self._shy(lever, scene)
        return [v for v in lever.finer() if shy or v in rungs or lever.size_of(v) in track.shapes]

    def _shy(self, lever: Lever, scene: Scene) -> bool:
        """Whether a rung that was held before, or that only rare peaks do not fit, cannot be tried next: what lies below it may do."""
        track, memory, here = self.track(lever), scene.memory, lever.size
        for value in lever.rungs():
            size = lever.size_of(value)
            near = here < size <= FARTHEST * here * 1.001
            if memory is None or not near or (size < track.ceiling and self._fits(lever, value, scene)):
                continue
            if size <= track.memory.largest or track.memory.expects(size, memory, self._limits.memory):
                return True
        return False

    def _down(self, lever: Lever, track: Track) -> bool:
        """Whether a smaller size is worth a trial: it was seen that larger is slower, or nothing larger could be tried."""
        if lever.family == "input" or lever.learning:
            return False
        here = lever.size
        gain = track.gain(here, here / 1.4, falling=True)
        if gain is None:
            return (
                lever.family == "batch" and track.memory.largest > 0
            )  # without readings, nobody knows why not
        return track.slower and gain >= WORTH

    def _choose(self, lever: Lever, scene: Scene) -> Candidate | str:
        """A choice has no order to climb: only what the diagnosis names is tried."""
        _, value = advised(lever, scene.diagnosis)
        if value is None or value == lever.knob.value or value in self.track(lever).refused:
            return ""
        try:
            value = check_value(lever.knob.spec, value)
        except KnobError:
            return ""
        memory = scene.memory
        if memory is None or OTHER_WAY * memory.used + memory.others > self._limits.memory * memory.total:
            return f"too little memory is free to try {lever.name} {shown(value)}"
        return Candidate(((lever, value),), 0, self._why(lever, scene, value))

    def _start(self, scene: Scene, found: Sequence[Lever]) -> Candidate | None:
        """What served a run of the same kind, before anything else was tried."""
        known, memory = self._known, scene.memory
        if (
            known is None
            or memory is None
            or (known.peak or 0) + memory.others > self._limits.memory * memory.total
        ):
            return None
        settings = [
            (lever, value)
            for lever in ranked(found, scene.diagnosis)
            for value in self._exact(lever, known.values.get(lever.name, lever.knob.value))
            if value != lever.knob.value and (known.peak is not None or self._fits(lever, value, scene))
        ]
        return (
            Candidate(tuple(settings), 1, "what served the last run of this kind best") if settings else None
        )

    def _exact(self, lever: Lever, value: KnobValue) -> tuple[KnobValue, ...]:
        """The value itself, if it may be set: another run need not have stood on the same rungs."""
        try:
            value = check_value(lever.knob.spec, value)
            if lever.partner is not None:
                own, other = lever.knob.value, lever.partner.value
                if not (isinstance(own, int) and isinstance(other, int) and isinstance(value, int)):
                    return ()
                if value < 1 or own * other % value:
                    return ()
                check_value(lever.partner.spec, own * other // value)
        except KnobError:
            return ()
        return (value,)

    def _batches(self, scene: Scene, frozen: set[str]) -> Iterator[Lever]:
        """The levers that memory grows with, where it is known how."""
        for lever in self.levers(scene, frozen):
            if lever.family == "batch" and self.track(lever).memory.fitted:
                yield lever

    # limits ----------------------------------------------------------------------------------------------------------------

    def _fits(self, lever: Lever, value: KnobValue, scene: Scene) -> bool:
        size, memory = lever.size_of(value), scene.memory
        return memory is not None and self.track(lever).fits(lever.size, size, memory, self._limits.memory)

    def _no_room(self, lever: Lever, value: KnobValue, scene: Scene) -> str:
        memory, most = scene.memory, self._limits.memory
        peak = self.track(lever).memory.predicted(lever.size_of(value))
        if memory is None or peak is None:
            return "how much memory the run takes is unknown: nothing is made larger"
        if full(memory) > most:
            return f"{full(memory):.0%} of the memory is taken already, the limit is {most:.0%}"
        need = (peak + memory.others) / memory.total
        if need <= most:
            return f"{lever.name} {shown(value)} takes {need:.0%} of the memory, and its rare peaks may take more than there is"
        return f"{lever.name} {shown(value)} may take {need:.0%} of the memory, the limit is {most:.0%}"

    def _over_power(self, scene: Scene) -> str:
        most = self._limits.power_w
        if most is None or (scene.power_w is not None and scene.power_w < most):
            return ""
        now = "unknown" if scene.power_w is None else f"{scene.power_w:.0f} W"
        return f"the power drawn is {now}, the limit is {most:.0f} W"

    def _why(self, lever: Lever, scene: Scene, value: KnobValue) -> str:
        diagnosis = scene.diagnosis
        if diagnosis is None or diagnosis.verdict in ("unknown", "healthy"):
            why = "what limits the run is not clear: one step is tried"
        else:
            why = ": ".join((f"the run is {diagnosis.verdict}", *diagnosis.evidence[:1]))
        peak = self.track(lever).memory.predicted(lever.size_of(value)) if lever.ordered else None
        if scene.memory is None or peak is None or lever.family == "input":
            return why
        return f"{why}; expected to take {(peak + scene.memory.others) / scene.memory.total:.0%} of the memory, rare peaks aside"

    def _others_stand_still(self, scene: Scene) -> bool:
        """Whether what others hold has hardly changed in the last readings."""
        if scene.memory is None:
            return True
        self._others.append(scene.memory.others)
        return max(self._others) - min(self._others) <= NOTICED * scene.memory.total

    def _rated(self, tried: Candidate, before: float, after: float) -> None:
        if len(tried.settings) == 1:
            (lever, value) = tried.settings[0]
            track = self.track(lever)
            track.rates[lever.size], track.rates[lever.size_of(value)] = before, after
