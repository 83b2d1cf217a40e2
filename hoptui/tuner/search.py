"""What to try next: a ladder climbed one lever after another, in the order that the diagnosis gives."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from hoptui.tuner.ladder import Candidate, Lever, advised, levers, ranked
from hoptui.tuner.memory import MemoryModel
from hoptui.tuner.scene import Known, Scene
from hoptui.tuner.trial import WORTH
from hoptui.wire.knobs import KnobError, KnobValue, check_value, shown
from hoptui.wire.measured import Measured
from hoptui.wire.tuning import Limits

CEILING_S = 1800.0
"""What failed is not tried again for so long; the second time for twice as long, and so on."""
SHAPES = 8
"""Sizes of one process: torch.compile makes so many variants of a function, and then computes it eagerly for good."""
HELD = 1 / 6
"""For a share of that, where the run had gone well with it: memory runs out in rare steps as well."""
FARTHEST = 2.0
"""No step is larger than this factor: memory is not extrapolated farther."""
OTHER_WAY = 1.5
"""How memory changes with another way of computing nobody knows: half as much again must fit."""


@dataclass
class Track:
    """What is known of one lever."""

    memory: MemoryModel = field(default_factory=MemoryModel)
    rates: dict[float, float] = field(default_factory=dict)
    refused: set[KnobValue] = field(default_factory=set)
    shapes: set[float] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)
    slower: bool = False  # a larger size surely was
    stride: int = 2
    ceiling: float = float("inf")
    until: int = 0
    ttl: float = CEILING_S

    def compiled(self, size: float) -> bool:
        """Whether a size costs no variant more than there may be."""
        return size in self.shapes or len(self.shapes) < SHAPES

    def gain(self, here: float, there: float, *, falling: bool) -> float | None:
        """The gain that a step is expected to bring, from what was measured; None while only one size was.

        A sample costs what it costs, and a share of what each piece costs: 1/rate = c + a/size. With `falling` the
        larger may also be the slower.
        """
        near = sorted(self.rates, key=lambda s: max(s / here, here / s))[:3]
        if len(near) < 2:
            return None
        x, y = [1 / s for s in near], [1 / self.rates[s] for s in near]
        mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
        spread = sum((v - mean_x) ** 2 for v in x)
        a = sum((v - mean_x) * (w - mean_y) for v, w in zip(x, y, strict=True)) / spread
        a = a if falling else max(a, 0.0)
        c = max(mean_y - a * mean_x, 1e-3 * mean_y)
        now, then = c + a / here, c + a / there
        return now / then - 1 if now > 0 and then > 0 else 0.0


class Search:
    """Where the search stands, over all levers of a run."""

    def __init__(self, limits: Limits, known: Known | None) -> None:
        self._limits = limits
        self._known = known
        self._tracks: dict[str, Track] = {}

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
        """What makes room for other processes: the first batch that memory is known of, cut so that it fits again."""
        for lever in self.levers(scene, frozen):
            track, below = self.track(lever), [v for v in lever.rungs() if lever.size_of(v) < lever.size]
            if lever.family != "batch" or not below or not track.memory.fitted:
                continue
            fits = [v for v in below if self._fits(lever, v, scene)]
            return Candidate(((lever, fits[-1] if fits else below[0]),), -1, "")
        return None

    def saw(self, scene: Scene, used: int, names: Collection[str] | None = None) -> None:
        """The run held `used` bytes with the values that it has; a change of the levers `names` alone is what it was for."""
        for lever in self.levers(scene, set()):
            if lever.ordered and (names is None or lever.name in names):
                track = self.track(lever)
                track.memory.saw(lever.size, used)
                track.shapes.add(lever.size)

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
        lost = found.gain is None or found.interval is None or found.gain + found.interval < 0
        if found.before is not None and found.after is not None:
            self._rated(tried, found.before, found.after)
        for lever, value in tried.settings:
            track = self.track(lever)
            track.refused.add(value)
            track.slower |= tried.way > 0 and lost
            if tried.way > 0 and lost and track.stride > 1:
                track.stride = 1  # the best may lie between
            elif tried.way:
                track.closed.add(tried.way)

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
        """`size` was too much at `t` (monotonic ns); `held` says that it had gone well before: then it may soon again."""
        track = self.track(lever)
        track.ceiling = min(size, track.ceiling)
        track.until = t + round((HELD * track.ttl if held else track.ttl) * 1e9)
        track.ttl *= 2

    def expire(self, t: int) -> None:
        """Ceilings whose time is over are tried once more."""
        for track in self._tracks.values():
            if track.ceiling < float("inf") and t >= track.until:
                self._lift(track)

    def freed(self) -> None:
        """Others gave memory back: no ceiling holds any more."""
        for track in self._tracks.values():
            self._lift(track)

    def reopen(self) -> None:
        """The run is not what it was: everything may be tried again."""
        for track in self._tracks.values():
            track.rates.clear()
            track.refused.clear()
            track.closed.clear()
            track.slower = False
            track.stride = 2

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
            up = [] if over else self._above(lever)
            fits = [v for v in up if lever.family == "input" or self._fits(lever, v, scene)]
            fits = fits if track.stride > 1 else fits[:1]
            if fits:
                value = fits[-1]
                gain = track.gain(here, lever.size_of(value), falling=False)
                if gain is None or gain >= WORTH or track.stride == 1:
                    return Candidate(((lever, value),), 1, self._why(lever, scene, value))
            elif over:
                blocked = over
            elif up:
                blocked = self._no_room(lever, up[0], scene)
        if -1 not in track.closed and (
            way < 0 or (way == 0 and self._down(lever, track, known=scene.memory is not None))
        ):
            below = [v for v in lever.rungs() if here / FARTHEST <= lever.size_of(v) < here]
            below = [v for v in below if track.compiled(lever.size_of(v))]
            if below:
                return Candidate(((lever, below[-1]),), -1, self._why(lever, scene, below[-1]))
        return blocked

    def _above(self, lever: Lever) -> list[KnobValue]:
        track, here = self.track(lever), lever.size
        return [
            v
            for v in lever.rungs()
            if here < lever.size_of(v) <= FARTHEST * here * 1.001
            and lever.size_of(v) < track.ceiling
            and track.compiled(lever.size_of(v))
            and v not in track.refused
        ]

    def _down(self, lever: Lever, track: Track, *, known: bool) -> bool:
        """Whether a smaller size is worth a trial: it was seen that larger is slower, or nothing larger could be tried."""
        if lever.family == "input" or lever.learning:
            return False
        here = lever.size
        gain = track.gain(here, here / 1.4, falling=True)
        if gain is None:
            return lever.family == "batch" and known
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

    # limits ----------------------------------------------------------------------------------------------------------------

    def _fits(self, lever: Lever, value: KnobValue, scene: Scene) -> bool:
        size = lever.size_of(value)
        return self.track(lever).memory.allows(size, scene.memory, self._limits.memory)

    def _no_room(self, lever: Lever, value: KnobValue, scene: Scene) -> str:
        if scene.memory is None:
            return "how much memory the run takes is unknown: nothing is made larger"
        peak = self.track(lever).memory.predicted(lever.size_of(value)) or 0.0
        need = (peak + scene.memory.others) / scene.memory.total
        return f"{lever.name} {shown(value)} may take {need:.0%} of the memory, the limit is {self._limits.memory:.0%}"

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
        return f"{why}; expected to take {(peak + scene.memory.others) / scene.memory.total:.0%} of the memory at most"

    def _rated(self, tried: Candidate, before: float, after: float) -> None:
        if len(tried.settings) == 1:
            (lever, value) = tried.settings[0]
            track = self.track(lever)
            track.rates[lever.size], track.rates[lever.size_of(value)] = before, after

    def _lift(self, track: Track) -> None:
        track.ceiling = float("inf")
        track.refused.clear()
        track.closed.discard(1)
