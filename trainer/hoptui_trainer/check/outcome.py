"""What a check of the machine found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "slow", "failed", "skipped"]
SYMBOLS: dict[Status, str] = {"ok": "✓", "slow": "⚠", "failed": "✕", "skipped": "–"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one check.

    `measured` and `expected` are in `unit`; None where nothing was measured, or nothing is known to expect.
    More is better, but for seconds. `detail` is what was found, in a few words. `advice` is a sentence: why
    the check failed or is slow, and what to do.
    """

    name: str
    status: Status
    detail: str = ""
    measured: float | None = None
    expected: float | None = None
    unit: str = ""
    advice: str = ""

    def lines(self) -> Iterator[str]:
        """The outcome for a terminal."""
        figures = [f"{self.measured:,.3g} {self.unit}"] if self.measured is not None else []
        if self.expected is not None:
            bound = "at most" if self.unit == "s" else "at least"
            figures.append(f"({bound} {self.expected:,.3g} expected)")
        text = " · ".join(filter(None, (" ".join(figures), self.detail)))
        yield f"{SYMBOLS[self.status]} {self.name:<16} {text}"
        if self.advice:
            yield f"  {'':<16} → {self.advice}"


def rated(name: str, measured: float, expected: float | None, unit: str, detail: str, advice: str) -> Outcome:
    """The outcome of a measured rate: `ok`, or `slow` below what is expected. `advice` is for the latter."""
    slow = expected is not None and measured < expected
    return Outcome(
        name=name,
        status="slow" if slow else "ok",
        detail=detail,
        measured=measured,
        expected=expected,
        unit=unit,
        advice=advice if slow else "",
    )


def failed(name: str, error: BaseException, advice: str) -> Outcome:
    """The outcome of a check that raised `error`: its first line, and what to do."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return Outcome(name=name, status="failed", detail=text[:200], advice=advice)


def skipped(name: str, reason: str) -> Outcome:
    """A check that means nothing on this machine."""
    return Outcome(name=name, status="skipped", detail=reason)
