"""What is worth telling of a GPU: Xids, throttling, ECC errors, slow clocks, lost and back. Pure: rows in,
events out."""

from __future__ import annotations

from collections.abc import Mapping

from hoptui.domain.devices import IDLE, REASONS, SLOWDOWN, SLOWDOWN_CAUSES, Happened, Level
from hoptui.telemetry.nvml_errors import SECOND_NS

XIDS: dict[int, tuple[Level, str]] = {
    13: (
        "warning",
        "a kernel raised an exception, often an access out of bounds: a bug of the program, as a rule",
    ),
    31: ("warning", "a program used memory that is not mapped: a bug of the program, as a rule"),
    43: ("warning", "a program's work was stopped after an error of its own; the GPU is not harmed"),
    45: ("warning", "a program ended while its kernels ran: it was killed, or another error came first"),
    48: ("alarm", "a double-bit ECC error: data in memory was lost"),
    61: ("alarm", "a breakpoint in the GPU's firmware; it may need a reset"),
    62: ("alarm", "the GPU's firmware halted; it needs a reset"),
    63: ("warning", "a faulty memory row is being replaced; that takes effect when the GPU is reset"),
    64: ("alarm", "a faulty memory row could not be replaced"),
    69: ("warning", "a program gave the GPU a command that it does not accept"),
    74: ("alarm", "an NVLink connection to another GPU or a switch failed"),
    79: ("alarm", "the GPU has fallen off the bus: the driver does not reach it over PCIe"),
    92: ("warning", "many single-bit ECC errors: the memory may be wearing out"),
    94: ("alarm", "a memory error was contained: the program that met it has to start anew, others go on"),
    95: (
        "alarm",
        "a memory error could not be contained: every program on the GPU is affected; it needs a reset",
    ),
    119: ("alarm", "the GPU's system processor (GSP) does not answer the driver; it needs a reset"),
    120: ("alarm", "an error in the GPU's system processor (GSP); it may need a reset"),
    121: ("warning", "an error on the chip-to-chip link between GPU and CPU was corrected"),
    140: ("alarm", "an ECC error was not recovered from; the GPU may need a reset"),
}
UNKNOWN = "NVIDIA's page on Xid errors explains it: docs.nvidia.com/deploy/xid-errors"


def explain(number: int) -> tuple[Level, str]:
    """How bad an Xid is, and one sentence about it."""
    level, words = XIDS.get(number, ("warning", UNKNOWN))
    return level, f"Xid {number}: {words}"


QUIET_NS = 10 * SECOND_NS
"""An event of one kind and cause is told at most once in this time; those in between are counted."""
LEAVE_NS = 10 * SECOND_NS
HOLD_NS = 5 * SECOND_NS
"""What is no alarm must last so long before it is told."""
FLICKER_NS = SECOND_NS
"""A reason that is gone for less than this has not gone: the power cap comes and goes many times a second."""
MISSED = 2.5
"""Nor has one that a single row did not show, where rows are far apart: not seen for so many periods."""
UNDER_LOAD = 50.0
SLOW_CLOCK = 0.75
SLOW_NS = 10 * SECOND_NS
_TOLD = tuple(reason for reason in REASONS if reason.begins)
_TOLD_MASK = sum(reason.bit for reason in _TOLD)

_COUNTERS: dict[str, tuple[Level, str]] = {
    "ecc_uncorrected": ("alarm", "ECC error(s) not corrected: data in memory was lost"),
    "ecc_corrected": ("warning", "ECC error(s) corrected"),
    "remapped_rows": ("warning", "memory row(s) replaced after errors"),
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
        """What one row says, at `t` (monotonic ns). What the row does not have is not judged.

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
        level, text = explain(number)
        return self._quiet([(f"xid {number}", self._event(t, "xid", text, level))])

    def double_bit(self, t: int) -> tuple[Happened, ...]:
        """The driver has met a double-bit ECC error."""
        event = self._event(t, "ecc", "a double-bit ECC error: data in memory was lost", "alarm")
        return self._quiet([("ecc double", event)])

    def lost(self, t: int, reason: str) -> tuple[Happened, ...]:
        """The GPU cannot be read any more."""
        if self._lost:
            return ()
        self._lost = True
        return (self._event(t, "gpu", reason, "alarm"),)

    def back(self, t: int) -> tuple[Happened, ...]:
        """The GPU is being read."""
        if not self._lost:
            return ()
        self._lost = False
        return (self._event(t, "gpu", "back: it can be read again", "info"),)

    def _throttle(self, t: int, mask: int) -> list[tuple[str, Happened]]:
        if mask & SLOWDOWN_CAUSES:  # they say more than the general bit
            mask &= ~SLOWDOWN
        found = []
        for reason in _TOLD:
            span, holds = self._spans[reason.bit], bool(mask & reason.bit)
            if not holds and not span.on:
                continue
            change = span.see(t, holds, 0 if reason.level == "alarm" else HOLD_NS, self._away)
            if change is not None:
                text, level = (reason.begins, reason.level) if change else (reason.ends, "info")
                found.append((f"throttle {reason.bit} {change}", self._event(t, "throttle", text, level)))
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
        share = 100 * clock / clock_max_mhz
        text = (
            f"slow under load: {clock:.0f} MHz, {share:.0f} % of the greatest, and the driver gives no reason"
        )
        return [("clocks", self._event(t, "clocks", text, "warning"))]

    def _ecc(self, t: int, row: Mapping[str, float]) -> list[tuple[str, Happened]]:
        """Counters that have risen since they were told of; a rise within the quiet time waits for the next
        reading."""
        found = []
        for name, (level, words) in _COUNTERS.items():
            count = row.get(name)
            if count is None:
                continue
            before = self._counts.setdefault(name, count)
            if count < before:  # counters begin anew with the driver
                self._counts[name] = count
            elif count > before and not self._is_quiet(name, t):
                self._counts[name] = count
                found.append((name, self._event(t, "ecc", f"{count - before:.0f} {words}", level)))
        return found

    def _is_quiet(self, key: str, t: int) -> bool:
        told = self._told_at.get(key)
        return told is not None and t - told < QUIET_NS

    def _quiet(self, found: list[tuple[str, Happened]]) -> tuple[Happened, ...]:
        """Those that may be told now; the others are counted and told as one when the quiet time ends."""
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
            times = "once more" if count == 1 else f"{count} times more"
            telling.append(self._event(event.t, event.kind, f"{event.text} ({times})", event.level))
        return telling

    def _event(self, t: int, kind: str, text: str, level: Level) -> Happened:
        return Happened(source=self._source, t=t, kind=kind, text=text, level=level)


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
