"""What to try next: the levers are climbed one after another, in the order that the diagnosis gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import combinations, product
from typing import NamedTuple

from hoptui.domain.diagnosis import Diagnosis, Verdict
from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobError, KnobValue, check_value
from hoptui.tuner.effect import WORTH
from hoptui.tuner.observation import Observation, PriorResult
from hoptui.tuner.search.parameter_history import (
    DEAR,
    FARTHEST,
    FROM_NONE,
    ParameterHistories,
    ParameterHistory,
    Settings,
)
from hoptui.tuner.search.space import READERS, Candidate, Lever, advised, decisive, ranked

NOT_SMALLER: tuple[Verdict, ...] = (
    "launch-bound", "host-bound", "compute-bound", "memory-unused", "power-limited",
)  # fmt: skip
"""A smaller size does not help against these."""
OTHER_WAY, NOT_RECOMPUTED = 1.5, 4.0
"""The effect of another way of computing on memory is unknown, so this many times the present use must fit.
The second is for activations that are no longer recomputed."""


class NoCandidate(NamedTuple):
    """Why nothing is tried. With `yet`, that may change once more is known about the run with its present
    values."""

    why: Fact
    yet: bool = False


class Search:
    """Chooses among the levers of a run by their histories in `tracks`. `known` is the prior result of a run
    of the same kind.

    `owed`: `known` is still to be tried, once the budget affords it, or is being tried.
    """

    def __init__(self, tracks: ParameterHistories, known: PriorResult | None) -> None:
        self._tracks = tracks
        self._limits = tracks.limits
        self._known = known
        self.owed = False
        self._passed_over = False
        self._pair: dict[str, KnobValue] = {}  # of the newest trial of two sizes
        self._proposed: dict[str, KnobValue] = {}  # the same of the newest candidate
        self._frozen: Collection[str] = ()

    def next(
        self,
        observation: Observation,
        frozen: Collection[str],
        affords: Callable[[Candidate], bool] = lambda _: True,
    ) -> Candidate | NoCandidate:
        """The next candidate, or why there is none. Those for which `affords` is false are skipped, unless no
        other is left."""
        found, self._frozen = self._tracks.levers(observation, frozen), frozen
        self._proposed = {}
        if not found:
            return NoCandidate(fact("search.no_knob"))
        start = self._start(observation, found)
        self.owed = start is not None
        self._passed_over = start is not None and not affords(start)
        if start is not None and not self._passed_over:
            return start
        order, verdict = ranked(found, observation.diagnosis), observation.diagnosis
        for lever in order:
            # The cause of a wait comes before a change that would only hide the wait.
            if lever.family in READERS and advised(lever, verdict)[0]:
                self._reopen(lever)
        more = self._two_sizes(self._raised(order), observation)
        if more is not None and affords(more):
            return more
        tried = self._first(order, observation, affords)
        if isinstance(tried, Candidate) and self._crowds(tried, observation):
            ways = self._first([lever for lever in order if not lever.ordered], observation, affords)
            tried = ways if isinstance(ways, Candidate) and affords(ways) else tried
        if isinstance(tried, Candidate) and affords(tried):
            return tried
        dear = tried if isinstance(tried, Candidate) else None
        if verdict is not None and verdict.stale:
            return NoCandidate(fact("search.limit_unseen"), yet=True)
        if any(self._unread(lever, observation) for lever in order):
            return NoCandidate(fact("search.memory_unseen"), yet=True)
        if not order:
            limit = verdict.verdict if verdict else "unknown"
            return NoCandidate(fact("search.no_remedy", verdict=limit))
        again = self._first([lever for lever in order if self._reopen(lever)], observation, affords)
        if isinstance(again, Candidate) and (affords(again) or dear is None):
            return again
        both = self._both(order, found, observation)
        if both is not None and (affords(both) or dear is None):
            return both
        sizes = self._two_sizes(order, observation)
        if sizes is not None and (affords(sizes) or dear is None):
            return sizes
        return tried if isinstance(tried, Candidate) else NoCandidate(tried)

    def made(self) -> None:
        """Record that the newest candidate is being tried."""
        if not self._passed_over:
            self._known = None
        self._pair = self._proposed or self._pair

    # the next step ------------------------------------------------------------------------------------------

    def _first(
        self, order: Sequence[Lever], observation: Observation, affords: Callable[[Candidate], bool]
    ) -> Candidate | Fact:
        """The first candidate of these levers that can be afforded, or else the first, or why there is
        none. Those in doubt come last."""
        reasons: list[Fact] = []
        dear: Candidate | None = None
        doubted: Candidate | None = None
        for lever in order:
            tried = self._climb(lever, observation) if lever.ordered else self._choose(lever, observation)
            if isinstance(tried, Candidate) and affords(tried):
                if tried.gain != 0.0:
                    return tried
                doubted = doubted or tried
            elif isinstance(tried, Candidate):
                dear = dear or tried
            elif tried is not None:
                reasons.append(tried)
        return doubted or dear or (reasons[0] if reasons else fact("search.exhausted"))

    def _both(
        self, order: Sequence[Lever], found: Sequence[Lever], observation: Observation
    ) -> Candidate | None:
        """Raise the samples at once and the readers together. Neither helps alone if each limits the other.

        A shortage of readers shows only after there is more to read. So readers need not be in `order`.
        """
        if self._over_power(observation):
            return None
        batches = [
            (lever, value)
            for lever in order
            if lever.family == "batch"
            for value in reversed(self._within_reach(lever, lever.rungs()))
            if self._tracks.fits(lever, value, observation)
        ]
        readers = [
            (lever, value)
            for lever in (*order, *found)
            if lever.family in READERS
            for value in reversed(self._within_reach(lever, lever.rungs()))
        ]
        both = (*batches[:1], *readers[:1])
        if len(both) < 2 or self._tracks.in_vain(both):
            return None
        return Candidate(both, 1, (fact("trial.both"),))

    def _two_sizes(self, order: Sequence[Lever], observation: Observation) -> Candidate | None:
        """Raise two sizes at once. Neither helps alone where an iteration takes as long as the slower of two
        parts, such as environments and a model.

        A size that was clearly slower alone is left out.
        """
        if self._over_power(observation):
            return None
        sizes = [lever for lever in order if lever.family == "batch" and not self._tracks.of(lever).slower]
        for one, other in combinations(sizes, 2):
            both = next(self._fitting(one, other, observation), None)
            if both is not None and not self._tracks.in_vain(both):
                self._proposed = {lever.name: value for lever, value in both}
                return Candidate(tuple(both), 1, (fact("trial.both"),))
        return None

    def _raised(self, order: Sequence[Lever]) -> list[Lever]:
        """The two sizes that were raised together last, if they have kept the values of that trial."""
        found = [lever for lever in order if self._pair.get(lever.name) == lever.knob.value]
        return found if len(found) == 2 else []

    def _fitting(self, one: Lever, other: Lever, observation: Observation) -> Iterator[Settings]:
        """Larger values of two sizes whose memory fits together, the largest first.

        What takes memory may grow with both, as a batch of rows and columns does. So more is expected than
        what each takes alone.
        """
        memory = observation.memory
        if memory is None or memory.used <= 0:
            return
        ways = [
            [
                (lever, value, peak)
                for value in reversed(self._within_reach(lever, lever.rungs()))
                if self._tracks.fits(lever, value, observation)
                and (peak := self._tracks.of(lever).memory.predicted(lever.size_of(value))) is not None
            ]
            for lever in (one, other)
        ]
        for (first, a, peak), (second, b, beside) in product(*ways):
            more, also = max(0.0, peak - memory.used), max(0.0, beside - memory.used)
            by, times = (lever.size_of(v) / lever.size - 1 for lever, v in ((first, a), (second, b)))
            need = memory.used + more + also + min(more * times, also * by)
            if need + memory.others <= self._limits.memory * memory.total:
                yield (first, a), (second, b)

    def _crowds(self, tried: Candidate, observation: Observation) -> bool:
        """Whether a larger size would leave too little memory to try another way of computing."""
        memory = observation.memory
        if tried.way <= 0 or memory is None:
            return False
        models = [(self._tracks.of(lever).memory, lever.size_of(value)) for lever, value in tried.settings]
        # With one known size, the prediction is the most that it may take, and far too high.
        peaks = (model.predicted(size) for model, size in models if model.known)
        most = max((peak for peak in peaks if peak is not None), default=0.0)
        return OTHER_WAY * most + memory.others > self._limits.memory * memory.total

    def _reopen(self, lever: Lever) -> bool:
        """Let an outdated lever be turned once more. Another lever was turned or the run's speed has
        changed, so its best value may have changed."""
        track = self._tracks.of(lever)
        if track.outdated:
            track.once_more()
            return True
        return False

    def _unread(self, lever: Lever, observation: Observation) -> bool:
        """Whether the memory need of a lever's size will soon be known."""
        if (
            lever.family == "input"
            or not lever.ordered
            or observation.memory is None
            or observation.memory.used <= 0
        ):
            return False
        return not self._tracks.of(lever).memory.largest

    def _climb(self, lever: Lever, observation: Observation) -> Candidate | Fact | None:
        track, here = self._tracks.of(lever), lever.size
        way, wanted = advised(lever, observation.diagnosis)
        blocked: Fact | None = None
        if way >= 0 and 1 not in track.closed:
            over = self._over_power(observation)
            up = [] if over else self._above(lever, self._values(lever, observation), wanted)
            fits = [v for v in up if lever.family == "input" or self._tracks.fits(lever, v, observation)]
            if fits:
                far = track.stride > 1
                value = self._lasting(lever, fits, observation) if far else fits[(len(fits) - 1) // 2]
                doubted = value in track.doubted
                if doubted:
                    value = self._farther(lever, value, observation)
                gain = track.gain(here, lever.size_of(value), falling=False)
                if gain is None or gain >= WORTH or track.stride == 1:
                    expected = 0.0 if doubted else gain
                    why = self._why(lever, observation, value)
                    return Candidate(((lever, value),), 1, why, expected, advised=way > 0)
            elif over:
                blocked = over
            elif up:
                blocked = self._no_room(lever, up[0], observation)
        if -1 not in track.closed and (
            way < 0 or (way == 0 and self._down(lever, track, observation.diagnosis))
        ):
            below = [v for v in lever.rungs() if lever.size_of(v) < here]
            below = [v for v in below[-1:] if track.compiled(lever.size_of(v)) and v not in track.refused]
            if below and self._holds_below(lever, below[0], observation):
                why = self._why(lever, observation, below[0])
                gain = track.gain(here, lever.size_of(below[0]), falling=True)
                return Candidate(((lever, below[0]),), -1, why, gain, advised=way < 0)
        return blocked

    def _lasting(self, lever: Lever, fits: Sequence[KnobValue], observation: Observation) -> KnobValue:
        """The largest of the values that fit. If its rare peaks do not fit, as is known of a size that was
        held, it is the largest below it whose peaks do, if that costs little speed."""
        track, memory, most = self._tracks.of(lever), observation.memory, fits[-1]
        largest = lever.size_of(most)
        if memory is None or not track.known(largest) or track.memory.holds(largest, memory):
            return most
        for value in reversed(fits[:-1]):
            size = lever.size_of(value)
            loss = track.gain(largest, size, falling=True)
            if loss is not None and -loss <= DEAR and track.memory.holds(size, memory):
                return value
        return most

    def _farther(self, lever: Lever, value: KnobValue, observation: Observation) -> KnobValue:
        """The value to try in place of one that was unclear: the largest within a step above it, or itself.

        Two steps gain more than one, so their gain is easier to tell from noise. The memory that the unclear
        value took has been read, so that of the next one is not extrapolated any farther.
        """
        track, size = self._tracks.of(lever), lever.size_of(value)
        if lever.family in READERS or size > track.memory.largest:
            return value
        above = [v for v in lever.rungs() if size < lever.size_of(v) <= FARTHEST * size * 1.001]
        fits = [
            v
            for v in above
            if lever.size_of(v) < track.ceiling
            and v not in track.refused
            and track.compiled(lever.size_of(v))
            and self._tracks.fits(lever, v, observation)
        ]
        return fits[-1] if fits else value

    def _above(self, lever: Lever, values: Sequence[KnobValue], wanted: KnobValue | None) -> list[KnobValue]:
        """Those of `values` that may be tried next, apart from memory. `wanted`: the value that the
        diagnosis advises."""
        refused = self._tracks.of(lever).refused
        return [v for v in self._within_reach(lever, values, wanted) if v not in refused]

    def _within_reach(
        self, lever: Lever, values: Sequence[KnobValue], wanted: KnobValue | None = None
    ) -> list[KnobValue]:
        """Those of `values` that are one step above, and not known to be too large. A size that was left for
        memory alone may be farther away, and so may readers that the diagnosis advises."""
        track, farthest = self._tracks.of(lever), _farthest(lever, values)
        if lever.family in READERS and wanted is not None:
            farthest = max(FARTHEST * lever.size, lever.size_of(wanted))
        return [
            v
            for v in values
            if lever.size < lever.size_of(v)
            and (lever.size_of(v) <= farthest or track.known(lever.size_of(v)))
            and lever.size_of(v) < track.ceiling
            and track.compiled(lever.size_of(v))
        ]

    def _values(self, lever: Lever, observation: Observation) -> list[KnobValue]:
        """The values to climb by: rungs and sizes that are compiled already. Values between them are added
        only if memory is a limit."""
        rungs, track = lever.rungs(), self._tracks.of(lever)
        if lever.family != "batch":
            return rungs
        shy = track.ceiling < math.inf or self._shy(lever, observation)
        return [v for v in lever.finer() if shy or v in rungs or lever.size_of(v) in track.shapes]

    def _shy(self, lever: Lever, observation: Observation) -> bool:
        """Whether the next rung is blocked although it was held before, or only its rare peaks do not fit. A
        smaller value may then work."""
        track, memory, here = self._tracks.of(lever), observation.memory, lever.size
        for value in lever.rungs():
            size = lever.size_of(value)
            near = here < size <= _farthest(lever, lever.rungs())
            if (
                memory is None
                or not near
                or (size < track.ceiling and self._tracks.fits(lever, value, observation))
            ):
                continue
            if size <= track.memory.largest or track.memory.expects(size, memory, self._limits.memory):
                return True
        return False

    def _down(self, lever: Lever, track: ParameterHistory, diagnosis: Diagnosis | None) -> bool:
        """Whether a smaller size is worth a trial: a larger one was slower, or nothing larger could be tried
        and the diagnosis does not ask for more at once."""
        if lever.family == "input" or lever.learning:
            return False
        here = lever.size
        gain = track.gain(here, here / 1.4, falling=True)
        if gain is None and lever.family == "other":  # which direction is faster is unknown
            return track.memory.largest > 0
        if gain is None:  # without readings of memory, the reason for a lack of larger trials is unknown
            known = decisive(diagnosis)
            larger = known is not None and known.verdict in NOT_SMALLER
            return lever.family == "batch" and track.memory.largest > 0 and not larger
        return track.slower and gain >= WORTH

    def _holds_below(self, lever: Lever, value: KnobValue, observation: Observation) -> bool:
        """Whether a smaller size fits. A number may count pieces, so that a smaller one needs more memory."""
        if lever.family in ("batch", "input", "env") or self._tracks.of(lever).memory.grows:
            return True
        return _room_for(lever.size / lever.size_of(value), observation, self._limits.memory)

    def _choose(self, lever: Lever, observation: Observation) -> Candidate | Fact | None:
        """Choose a way of computing: the one that the diagnosis names, else the next that was not tried."""
        values = self._ways(lever, observation)
        if not values:
            return None
        value = values[0]
        if observation.memory is None:
            return fact("memory.unknown_choice", knob=lever.name, value=value)
        if not _room_for(_growth(lever), observation, self._limits.memory):
            smaller = self._beside_smaller(lever, value, observation)
            return smaller or fact("memory.too_little", knob=lever.name, value=value)
        named = value == advised(lever, observation.diagnosis)[1]
        return Candidate(((lever, value),), 0, self._why(lever, observation, value), advised=named)

    def _beside_smaller(self, lever: Lever, value: KnobValue, observation: Observation) -> Candidate | None:
        """A way of computing together with a smaller size, which leaves enough memory for it."""
        memory = observation.memory
        for other in self._tracks.batches(observation, (*self._frozen, *lever.names)):
            model, settings = self._tracks.of(other).memory, None
            for below in other.rungs():
                size = other.size_of(below)
                peak = model.predicted(size)
                if size >= other.size or peak is None or memory is None:
                    break
                if _growth(lever) * peak + memory.others <= self._limits.memory * memory.total:
                    settings = (lever, value), (other, below)
            if settings is not None and not self._tracks.in_vain(settings):
                return Candidate(settings, 0, (fact("trial.room_for", knob=lever.name),))
        return None

    def _ways(self, lever: Lever, observation: Observation) -> list[KnobValue]:
        """The ways of computing to try, the one that the diagnosis names first.

        What changes learning is not tried without advice, however much it is allowed. Nor is it to recompute
        activations: that alone is always slower.
        """
        track = self._tracks.of(lever)
        _, value = advised(lever, observation.diagnosis)
        values = [] if lever.learning or (lever.recomputes and lever.off) else lever.alternatives()
        if value is not None:
            with suppress(KnobError):
                values.insert(0, check_value(lever.knob.spec, value))
        tried = track.refused | track.worse | {lever.knob.value}
        return [value for value in dict.fromkeys(values) if value not in tried]

    def _start(self, observation: Observation, found: Sequence[Lever]) -> Candidate | None:
        """The parts of the prior result that are not in effect. None if there are none or they would not
        fit."""
        known, memory = self._known, observation.memory
        if (
            known is None
            or memory is None
            or (known.peak or 0) + memory.others > self._limits.memory * memory.total
        ):
            return None
        settings = [
            (lever, value)
            for lever in ranked(found, observation.diagnosis)
            for value in self._exact(lever, known.values.get(lever.name, lever.knob.value))
            if value != lever.knob.value
            and (known.peak is not None or self._tracks.fits(lever, value, observation))
        ]
        why = (fact("trial.prior_result"),)
        return Candidate(tuple(settings), 1, why, advised=True) if settings else None

    def _exact(self, lever: Lever, value: KnobValue) -> tuple[KnobValue, ...]:
        """The value itself, if it may be set. It need not be on the rungs of this run."""
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

    # limits -------------------------------------------------------------------------------------------------

    def _no_room(self, lever: Lever, value: KnobValue, observation: Observation) -> Fact:
        memory, most = observation.memory, self._limits.memory
        peak = self._tracks.of(lever).memory.predicted(lever.size_of(value))
        if memory is None or peak is None:
            return fact("memory.unknown")
        if observation.taken > most:
            return fact("memory.taken", share=observation.taken, limit=most)
        need = (peak + memory.others) / memory.total
        if need <= most:
            return fact("memory.rare_peaks", knob=lever.name, value=value, need=need)
        return fact("memory.limit", knob=lever.name, value=value, need=need, limit=most)

    def _over_power(self, observation: Observation) -> Fact | None:
        most = self._limits.power_w
        if most is None or (observation.power_w is not None and observation.power_w < most):
            return None
        return fact("power.limit", power_w=observation.power_w, limit_w=most)

    def _why(self, lever: Lever, observation: Observation, value: KnobValue) -> tuple[Fact, ...]:
        diagnosis = observation.diagnosis
        if diagnosis is None or diagnosis.verdict in ("unknown", "healthy"):
            why = [fact("trial.no_clear_limit")]
        else:
            evidence = diagnosis.facts[:1]
            why = [fact("trial.limit", verdict=diagnosis.verdict, stale=diagnosis.stale, evidence=evidence)]
        track, size = self._tracks.of(lever), lever.size_of(value)
        reason = track.again.get(value)
        if reason is None and any(
            lever.size < lever.size_of(v) < lever.size_of(value) for v in track.doubted
        ):
            reason = fact("again.farther")
        if reason is not None:
            why.append(fact("trial.again", why=reason))
        peak = track.memory.predicted(size) if lever.ordered else None
        if observation.memory is None or peak is None or lever.family == "input":
            return tuple(why)
        share = (peak + observation.memory.others) / observation.memory.total
        code = "trial.memory_at_most" if track.memory.worst_case else "trial.memory_expected"
        return *why, fact(code, share=share)


def _growth(lever: Lever) -> float:
    """How many times the memory another way of computing may take."""
    return NOT_RECOMPUTED if lever.recomputes and not lever.off else OTHER_WAY


def _room_for(times: float, observation: Observation, share: float) -> bool:
    """Whether `times` the memory that the run holds would stay within `share` of all of it."""
    memory = observation.memory
    return memory is not None and times * memory.used + memory.others <= share * memory.total


def _farthest(lever: Lever, values: Sequence[KnobValue]) -> float:
    """The largest size of one step: the next one, where choices are farther apart."""
    above = (lever.size_of(v) for v in values if lever.size_of(v) > lever.size)
    step = FROM_NONE if lever.knob.value == 0 else FARTHEST * lever.size * 1.001
    return max(step, min(above, default=0.0) if lever.knob.spec.choices else 0.0)
