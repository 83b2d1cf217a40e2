"""The knobs that the tuner may turn, the knobs that follow them, and the few values it would try: rungs about
√2 apart."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

from hoptui.diagnosis.knob_roles import NAMES, OFF, Role
from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.facts import Fact
from hoptui.domain.knobs import KnobError, KnobSpec, KnobState, KnobValue, check_value, relations
from hoptui.domain.tuning import Change, Limits, may_turn

Family = Literal["batch", "input", "env", "mode", "other"]
"""What a knob is about: how a batch is cut, how data are read, how environments are played, how a batch is
computed, or something that only the run knows."""
FAMILIES: dict[Role, Family] = {
    "workers": "input", "prefetch": "input", "pin": "input", "env_workers": "env", "compile": "mode",
    "graphs": "mode", "precision": "mode", "recompute": "mode",
}  # fmt: skip

READERS: tuple[Family, ...] = ("input", "env")
"""Families of processes that deliver data to the trainer. They use no GPU memory."""

SURE = 0.5
"""A diagnosis with a lower confidence is ignored here."""
SIZES_FIRST: tuple[Family, ...] = ("batch", "other", "mode")
WORTH_TRYING: Mapping[str, tuple[Family, ...]] = {
    "launch-bound": SIZES_FIRST,
    "host-bound": SIZES_FIRST,
    "compute-bound": SIZES_FIRST,
    "memory-bandwidth-bound": SIZES_FIRST,
    "memory-latency-bound": SIZES_FIRST,
    "memory-unused": SIZES_FIRST,
    "power-limited": SIZES_FIRST,
    "communication-bound": ("batch", "other"),
    "data-bound": ("input", "other"),
    "transfer-bound": ("input", "other"),
    "env-bound": ("env", "other"),
    "save-bound": ("other",),
    "heat-limited": (),
    "compiling": (),
    "wrong-device": (),
    "straggler": (),
}
"""The families that help against each limit, the likeliest first. A batch is never raised while the GPU waits
for data. Otherwise sizes come first: a GPU that is busy with small pieces looks like one that computes. With
"other", ways of computing are included whose names say nothing: they may be about anything."""
ANYTHING: tuple[Family, ...] = ("batch", "input", "env", "other", "mode")
NEAR = 1.2
"""Two values closer than this factor are one rung. Each value costs a compilation, and the memory of a
graph."""
FINEST = 8
"""Tensor cores work best with multiples of this."""
STANDSTILL_S = {"free": 0.0, "shape": 2.0, "rebuild": 40.0, "restart": float("inf")}
"""The assumed cost of a change before the run has reported one. A compilation is a rebuild, 5 to 32 s on a
GPU (docs/internals/benchmark_log.md)."""
CHEAP_S = 5.0
"""A change that takes no longer is tried before those that do."""
OFF_S = 5.0
"""The same for returning to off: nothing is compiled."""
READERS_S = 5.0
"""The same for a rebuild of the data readers."""
PIECES = frozenset(("pieces", "parts", "split", "splits"))
"""Last words of the names of knobs that say into how many pieces a batch is cut."""
AUTOMATIC = "auto"
"""The word of a choice that leaves it to the run which of the others holds."""
_LARGEST = 1 << 40


@dataclass(frozen=True)
class Lever:
    """A knob that may be turned, with the knob that follows so that their product stays constant.

    `size` is the quantity that memory grows with. Fewer pieces of a batch (`grad_accum`) are a larger size.
    `learning`: a change affects what is learned.
    """

    knob: KnobState
    partner: KnobState | None
    family: Family
    learning: bool

    @property
    def name(self) -> str:
        return self.knob.spec.name

    @property
    def names(self) -> tuple[str, ...]:
        """All knobs that it turns."""
        return (self.name,) if self.partner is None else (self.name, self.partner.spec.name)

    @property
    def size(self) -> float:
        return self.size_of(self.knob.value)

    @property
    def ordered(self) -> bool:
        """Whether its values have an order to climb, starting at the value in effect."""
        return self.sized(self.knob.value)

    @property
    def off(self) -> bool:
        """Whether it is a way of computing that is switched off. The number 0 does not count as off."""
        return not self.ordered and self.knob.value in OFF

    @property
    def has_role(self) -> bool:
        """Whether its name says what it is about."""
        return _role(self.name) is not None

    @property
    def recomputes(self) -> bool:
        """Whether it is about recomputing activations, by its name: that saves memory and takes time."""
        return self.name.lower() in NAMES["recompute"]

    def size_of(self, value: KnobValue) -> float:
        """How much is computed at once with `value`, in the knob's own unit. 0 for a value that is not a
        number, or is negative."""
        if isinstance(value, str | bool) or value < 0:
            return 0.0
        return 1.0 / max(value, 0.5) if _counts_pieces(self.name) else max(value, 0.5)

    def sized(self, value: KnobValue) -> bool:
        """Whether `value` is a size. Negative numbers have a special meaning (−1: automatic), so choices with
        one have no order."""
        spec = self.knob.spec
        numbers = spec.kind in ("int", "float") and all(self.size_of(choice) > 0 for choice in spec.choices)
        return numbers and self.size_of(value) > 0

    def rungs(self) -> list[KnobValue]:
        """The values to choose from, including the one in effect, by increasing size. Empty for a way of
        computing."""
        return list(self._rungs)

    def alternatives(self) -> list[KnobValue]:
        """The values of a way of computing, without the one in effect, in the order of their declaration.
        Empty for a size. `auto` stands for one of the others, so it is left out beside two of them."""
        spec = self.knob.spec
        if self.ordered:
            return []
        values: tuple[KnobValue, ...] = (False, True) if spec.kind == "bool" else spec.choices
        chosen = [value for value in values if value != AUTOMATIC]
        return [value for value in (chosen if len(chosen) > 1 else values) if value != self.knob.value]

    def finer(self) -> list[KnobValue]:
        """The rungs and, between whole ones, quarters of the steps in multiples of eight, by increasing size.

        They serve sizes that are limited by memory. Each is one more shape to compile, so other searches do
        not use them. Values near the one in effect are included, so that the search can return to them.
        """
        return list(self._finer)

    def changes(self, value: KnobValue) -> tuple[Change, ...]:
        """The changes, at one boundary, that give the knob `value` and preserve its product."""
        made = [Change(knob=self.name, before=self.knob.value, value=value)]
        if self.partner is not None:
            follows = _product(self.knob, self.partner) // _whole(value)
            made.append(Change(knob=self.partner.spec.name, before=self.partner.value, value=follows))
        return tuple(made)

    @cached_property
    def _rungs(self) -> tuple[KnobValue, ...]:
        found = list(self._here)
        for value in self._steps:
            # The value in effect comes first: a nearly equal value would be another shape without a benefit.
            # Choices are few, and their author wants them all.
            chosen = self.knob.spec.choices and value not in found
            if chosen or all(_apart(value, known) for known in found):
                found.append(value)
        return tuple(sorted(found, key=self.size_of))

    @cached_property
    def _finer(self) -> tuple[KnobValue, ...]:
        coarse = sorted({*self._here, *self._steps}, key=self.size_of)
        found = set(coarse)
        for low, high in pairwise(coarse):
            if self.knob.spec.scale == "pow2" or not (isinstance(low, int) and isinstance(high, int)):
                continue
            quarters = ((low + part * (high - low) // 4) // FINEST * FINEST for part in (1, 2, 3))
            found |= {v for v in quarters if low < v < high and self._possible(v)}
        return tuple(sorted(found, key=self.size_of))

    @property
    def _here(self) -> tuple[int | float, ...]:
        """The value in effect, if it is a number to start from."""
        value = self.knob.value
        return () if not self.ordered or isinstance(value, bool | str) else (value,)

    @cached_property
    def _steps(self) -> tuple[int | float, ...]:
        return tuple(self._values()) if self._here else ()

    def _values(self) -> Iterator[int | float]:
        spec, here = self.knob.spec, self.knob.value
        if spec.choices:
            yield from (v for v in spec.choices if not isinstance(v, str) and self._possible(v))
        elif self.partner is not None:
            yield from self._divisors(_product(self.knob, self.partner))
        elif spec.kind == "int":
            yield from (v for v in notches(spec) if _valid(spec, v))
        elif isinstance(here, float) and here > 0:
            for k in range(1, 9):
                yield from (v for v in (here * 2 ** (k / 2), here / 2 ** (k / 2)) if _valid(spec, v))

    def _possible(self, value: int | float) -> bool:
        """Whether it may be set, and the following knob has a valid value too."""
        if not _valid(self.knob.spec, value) or self.partner is None:
            return _valid(self.knob.spec, value)
        if value < 1:
            return False
        follows, rest = divmod(_product(self.knob, self.partner), value)
        return not rest and _valid(self.partner.spec, int(follows))

    def _divisors(self, product: int) -> Iterator[int]:
        """Values that divide the product, each the nearest to a rung of the ladder, and the largest one."""
        spec = self.knob.spec
        low, high = (int(b) if b is not None else d for b, d in ((spec.min, 1), (spec.max, _LARGEST)))
        divisors = [v for v in _divisors_of(product) if low <= v <= high and self._possible(v)]
        for notch in notches(spec):
            near = [v for v in divisors if not _apart(v, notch)]
            if near:
                yield min(near, key=lambda v: max(v / notch, notch / v))
        yield from divisors[-1:]  # the whole at once


@dataclass(frozen=True)
class Candidate:
    """A trial to propose: levers and their values, the direction of size (1, −1; 0: neither), the reasons,
    and the expected gain (None: unknown; 0: in doubt). `advised`: the diagnosis or an earlier run speaks for
    it."""

    settings: tuple[tuple[Lever, KnobValue], ...]
    way: int
    why: tuple[Fact, ...] = ()
    gain: float | None = None
    advised: bool = False

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(c for lever, value in self.settings for c in lever.changes(value))

    @property
    def standstill(self) -> float:
        """Seconds that the run is expected to pause for it."""
        return sum(standstill(lever) for lever, _ in self.settings)

    @property
    def way_back(self) -> float:
        """Seconds that the run is expected to pause if it is reverted."""
        return sum(
            min(OFF_S, standstill(lever)) if lever.off else standstill(lever) for lever, _ in self.settings
        )


def notches(spec: KnobSpec) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24 …: steps of about √2, multiples of 8 from 16 on. On a `pow2` scale only
    powers of two."""
    highest = min(spec.max if spec.max is not None else _LARGEST, _LARGEST)
    power = 1
    while power <= highest:
        yield power
        between = power * 3 // 2
        if spec.scale != "pow2" and power > 1 and between <= highest:
            yield between
        power *= 2


def levers(knobs: Sequence[KnobState], limits: Limits, frozen: Collection[str]) -> list[Lever]:
    """The knobs of a run that may be turned within `limits`, in the order of their declaration.

    A knob is left out if turning it would break the product that it keeps, or if it could not be reverted.
    """
    known = {k.spec.name: k for k in knobs}
    found: list[Lever] = []
    taken: set[str] = set()
    # Of two knobs that keep a product, the one that does not count pieces leads.
    for knob in sorted(knobs, key=lambda k: _counts_pieces(k.spec.name)):
        spec = knob.spec
        partner, clear = _partner(knob, known)
        pair = [knob] if partner is None else [knob, partner]
        names = {k.spec.name for k in pair}
        if (
            not clear
            or names & taken
            or names & set(frozen)
            or not all(may_turn(k.spec, limits) and _finite(k.value) for k in pair)
        ):
            continue
        if partner is not None and not all(_countable(k) for k in pair):
            continue
        taken |= names
        found.append(Lever(knob, partner, _family(spec), spec.effect == "learning"))
    order = [k.spec.name for k in knobs]
    return sorted(found, key=lambda lever: order.index(lever.name))


def ranked(found: Sequence[Lever], diagnosis: Diagnosis | None) -> list[Lever]:
    """The levers worth trying, in order: those that the diagnosis names, then those that help against it. All
    of them if it is unknown."""
    known = decisive(diagnosis)
    families = WORTH_TRYING.get(known.verdict, ANYTHING) if known else ANYTHING
    advised = [a.knob for a in known.advice if a.knob] if known else []
    first = [lever for name in advised for lever in found if name in lever.names]
    rest = [lever for family in families for lever in found if lever.family == family]
    if "other" in families:
        rest += [lever for lever in found if lever.family == "mode" and not lever.has_role]
    # What changes only the speed comes first, and then what costs no time: much can be tried instead.
    # What somebody has switched on comes last.
    rest.sort(key=lambda lever: (lever.learning, lever.knob.value is True, _dear(lever)))
    return list({lever.name: lever for lever in (*first, *rest)}.values())


def advised(lever: Lever, diagnosis: Diagnosis | None) -> tuple[int, KnobValue | None]:
    """The direction of size (1, −1; 0: no advice) in which a diagnosis would turn a lever, and the value that
    it advises for the first knob."""
    known = decisive(diagnosis)
    for advice in known.advice if known else ():
        if advice.knob == lever.name:
            way = {"up": 1, "down": -1}.get(advice.direction, 0)
            return (-way if _counts_pieces(lever.name) else way), advice.value
        if advice.knob in lever.names:  # the following knob moves in the other direction
            return {"up": -1, "down": 1}.get(advice.direction, 0), None
    return 0, None


def decisive(diagnosis: Diagnosis | None) -> Diagnosis | None:
    """The diagnosis, if its confidence suffices for decisions here."""
    return diagnosis if diagnosis is not None and diagnosis.confidence >= SURE else None


def standstill(lever: Lever) -> float:
    """Seconds that a run pauses for a change of it: the last measured time, otherwise its declared cost."""
    known = [k.took_s for k in (lever.knob, lever.partner) if k is not None and k.took_s is not None]
    if known:
        return sum(known)
    cost = lever.knob.spec.cost
    return READERS_S if cost == "rebuild" and lever.family == "input" else STANDSTILL_S[cost]


def _dear(lever: Lever) -> bool:
    return lever.family not in READERS and standstill(lever) > CHEAP_S


def _partner(knob: KnobState, known: dict[str, KnobState]) -> tuple[KnobState | None, bool]:
    """The knob that follows (None: none does), and whether that is unambiguous."""
    products = [r for r in relations(knob.spec.keeps) if not r.name and not r.under]
    factors = next((r.over for r in products if knob.spec.name in r.over), ())
    if not factors:
        return None, True  # free text or none: the run keeps it by itself
    others = [known[f] for f in factors if f in known and f != knob.spec.name]
    twins = [k for k in others if k.spec.keeps == knob.spec.keeps]
    found = twins or others
    return (found[0] if len(found) == 1 else None), len(found) <= 1


def _countable(knob: KnobState) -> bool:
    return isinstance(knob.value, int) and not isinstance(knob.value, bool) and knob.value > 0


def _finite(value: KnobValue) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _role(name: str) -> Role | None:
    return next((role for role, names in NAMES.items() if name.lower() in names), None)


def _family(spec: KnobSpec) -> Family:
    role = _role(spec.name)
    if role is not None:
        return FAMILIES.get(role, "batch")
    if spec.kind in ("bool", "str") or any(value < 0 for value in spec.choices if not isinstance(value, str)):
        return "mode"
    return "batch" if spec.keeps or spec.cost == "shape" else "other"


def _counts_pieces(name: str) -> bool:
    """Whether a larger value means smaller pieces, as far as a name tells."""
    name = name.lower()
    return "accum" in name or name.rpartition("_")[2] in PIECES


def _valid(spec: KnobSpec, value: int | float) -> bool:
    try:
        check_value(spec, value)
    except KnobError:
        return False
    return True


def _whole(value: KnobValue) -> int:
    assert isinstance(value, int)
    return value


def _product(knob: KnobState, partner: KnobState) -> int:
    """The product that the two knobs keep."""
    return _whole(knob.value) * _whole(partner.value)


def _apart(a: int | float, b: int | float) -> bool:
    low, high = sorted((float(a), float(b)))
    return high > NEAR * low


def _divisors_of(product: int) -> list[int]:
    small = [d for d in range(1, min(int(product**0.5), 1 << 16) + 1) if product % d == 0]
    return sorted({*small, *(product // d for d in small)})
