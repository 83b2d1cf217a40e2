"""What is worth telling of a GPU: Xids, throttling, ECC errors, slow clocks, lost and back. Pure: rows in,
events out."""

from __future__ import annotations

from collections.abc import Mapping

from hoptui.domain.devices import IDLE, REASONS, SLOWDOWN, SLOWDOWN_CAUSES, Happened, Level
from hoptui.domain.facts import Fact, fact
from hoptui.telemetry.nvml_errors import SECOND_NS

XIDS: dict[int, Level] = {
    13: "warning",
    31: "warning",
    43: "warning",
    45: "warning",
    48: "alarm",
    61: "alarm",
    62: "alarm",
    63: "warning",
    64: "alarm",
    69: "warning",
    74: "alarm",
    79: "alarm",
    92: "warning",
    94: "alarm",
    95: "alarm",
    119: "alarm",
    120: "alarm",
    121: "warning",
    140: "alarm",
}
"""How bad an Xid is. `hoptui.presentation.sentences.hardware` explains each."""


def level_of(number: int) -> Level:
    """Return how bad an Xid is."""
    return XIDS.get(number, "warning")


QUIET_NS = 10 * SECOND_NS
"""Events of one kind and cause are reported at most once in this time. Those in between are counted."""
LEAVE_NS = 10 * SECOND_NS
HOLD_NS = 5 * SECOND_NS
"""A condition that is not an alarm must last this long before it is reported."""
FLICKER_NS = SECOND_NS
"""A reason counts as gone only after this time. The power cap comes and goes many times a second."""
MISSED = 2.5
"""If rows are far apart, a reason counts as gone only after this many periods without it."""
UNDER_LOAD = 50.0
SLOW_CLOCK = 0.75
SLOW_NS = 10 * SECOND_NS
_TOLD = tuple(reason for reason in REASONS if reason.event)
_TOLD_MASK = sum(reason.bit for reason in _TOLD)

_COUNTERS: dict[str, Level] = {
    "ecc_uncorrected": "alarm",
    "ecc_corrected": "warning",
    "remapped_rows": "warning",
}


class Alarms:
    """The events of one GPU.

    Args:
        source: `gpu/<uuid>`.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._spans = {reason.bit: _Span() for reason in _TOLD}
        self._slow = _Span()
        self._counts: dict[str, float] = {}
        self._told_at: dict[str, int] = {}
        self._held: dict[str, tuple[int, Happened]] = {}
        self._throttled = False
        self._lost = False
        self._away = FLICKER_NS

    def read(
        self, t: int, row: Mapping[str, float], period: int, clock_max_mhz: float | None = None
    ) -> tuple[Happened, ...]:
        """The events of one row at `t` (monotonic ns). Values that the row lacks are not judged.

        Args:
            period: between two rows, ns.
        """
        found = []
        self._away = max(FLICKER_NS, int(MISSED * period))
        if "throttle" in row:
            mask = int(row["throttle"])
            if mask & _TOLD_MASK or self._throttled:
                found += self._throttle(t, mask)
            found += self._clocks(t, row, mask, clock_max_mhz)
        if not _COUNTERS.keys().isdisjoint(row):
            found += self._ecc(t, row)
        if not found and not self._held:
            return ()
        return (*self._due(t), *self._quiet(found))

    def xid(self, t: int, number: int) -> tuple[Happened, ...]:
        """The driver has logged an Xid."""
        event = self._event(t, "xid", fact("gpu.xid", number=number), level_of(number))
        return self._quiet([(f"xid {number}", event)])

    def double_bit(self, t: int) -> tuple[Happened, ...]:
        """The driver has met a double-bit ECC error."""
        event = self._event(t, "ecc", fact("gpu.double_bit"), "alarm")
        return self._quiet([("ecc double", event)])

    def lost(self, t: int, problem: Fact) -> tuple[Happened, ...]:
        """The GPU cannot be read any more."""
        if self._lost:
            return ()
        self._lost = True
        return (self._event(t, "gpu", problem, "alarm"),)

    def back(self, t: int) -> tuple[Happened, ...]:
        """The GPU is being read."""
        if not self._lost:
            return ()
        self._lost = False
        return (self._event(t, "gpu", fact("gpu.back"), "info"),)

    def _throttle(self, t: int, mask: int) -> list[tuple[str, Happened]]:
        if mask & SLOWDOWN_CAUSES:  # they are more specific than the general bit
            mask &= ~SLOWDOWN
        found = []
        for reason in _TOLD:
            span, holds = self._spans[reason.bit], bool(mask & reason.bit)
            if not holds and not span.on:
                continue
            change = span.see(t, holds, 0 if reason.level == "alarm" else HOLD_NS, self._away)
            if change is not None:
                what = fact("gpu.throttle", reason=reason.name, active=change)
                event = self._event(t, "throttle", what, reason.level if change else "info")
                found.append((f"throttle {reason.bit} {change}", event))
        self._throttled = any(span.on for span in self._spans.values())
        return found

    def _clocks(
        self, t: int, row: Mapping[str, float], mask: int, clock_max_mhz: float | None
    ) -> list[tuple[str, Happened]]:
        clock = row.get("sm_clock_mhz")
        if clock is None or clock_max_mhz is None:
            return []
        load = max(row.get("sm_active", 0.0), row.get("busy", 0.0))
        slow = load > UNDER_LOAD and clock < SLOW_CLOCK * clock_max_mhz and not mask & ~IDLE
        if not self._slow.see(t, slow, SLOW_NS, self._away):
            return []
        what = fact("gpu.slow_clocks", clock_hz=clock * 1e6, share=clock / clock_max_mhz)
        return [("clocks", self._event(t, "clocks", what, "warning"))]

    def _ecc(self, t: int, row: Mapping[str, float]) -> list[tuple[str, Happened]]:
        """Counters that have risen since their last report. A rise within the quiet time waits for the next
        reading."""
        found = []
        for name, level in _COUNTERS.items():
            count = row.get(name)
            if count is None:
                continue
            before = self._counts.setdefault(name, count)
            if count < before:  # counters begin anew with the driver
                self._counts[name] = count
            elif count > before and not self._is_quiet(name, t):
                self._counts[name] = count
                what = fact("gpu.ecc", counter=name, count=round(count - before))
                found.append((name, self._event(t, "ecc", what, level)))
        return found

    def _is_quiet(self, key: str, t: int) -> bool:
        told = self._told_at.get(key)
        return told is not None and t - told < QUIET_NS

    def _quiet(self, found: list[tuple[str, Happened]]) -> tuple[Happened, ...]:
        """The events that may be reported now. The others are counted and reported as one after the quiet
        time."""
        telling = []
        for key, event in found:
            if self._is_quiet(key, event.t):
                count, _ = self._held.get(key, (0, event))
                self._held[key] = (count + 1, event)
            else:
                self._told_at[key] = event.t
                telling.append(event)
        return tuple(telling)

    def _due(self, t: int) -> list[Happened]:
        telling = []
        for key in [key for key in self._held if not self._is_quiet(key, t)]:
            count, event = self._held.pop(key)
            self._told_at[key] = t
            what = fact("repeated", what=event.what, times=count)
            telling.append(self._event(event.t, event.kind, what, event.level))
        return telling

    def _event(self, t: int, kind: str, what: Fact, level: Level) -> Happened:
        return Happened(source=self._source, t=t, kind=kind, what=what, level=level)


class _Span:
    """A condition that counts once it has held for a while, and has ended once it has been away for a
    while."""

    def __init__(self) -> None:
        self._since: int | None = None
        self._seen = 0
        self.on = False

    def see(self, t: int, holds: bool, hold: int, away: int) -> bool | None:
        """True when it begins to count, False when it has ended, None otherwise.

        Args:
            hold: how long it must last before it counts, ns.
            away: not seen for longer than this, it begins anew, ns.
        """
        if holds:
            if self._since is None or (not self.on and t - self._seen > away):
                self._since = t
            self._seen = t
            if not self.on and t - self._since >= hold:
                self.on = True
                return True
        elif self.on and t - self._seen >= max(LEAVE_NS, away):
            self.on, self._since = False, None
            return False
        return None
