"""What a run prints on standard output, for users and for scripts."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

Ending = Literal["finished", "passed", "early-stopped", "stopped"]
"""Why a run ended: its iterations are done, it reached what was asked for, its evaluations got no better, or
a user stopped it."""


@dataclass(frozen=True, kw_only=True)
class SupervisedResult:
    """How a supervised run ended; the result of a workload adds its own figures.

    `iterations` counts the whole run, with what a resumed checkpoint had; `seconds` is this process's wall
    time from the set-up to the end, `loss` that of the last step. `restarts` is how often a knob had this
    process replaced: times, rates and memory are of the time since. The best evaluation was made after
    `best_iteration` iterations; `best_file` has its weights. Its figures are those of the newest one with
    `best_` before the name. What is not known is None.
    """

    workload: ClassVar[str]

    ending: Ending
    iterations: int
    restarts: int
    seconds: float
    mfu: float | None
    peak_memory_bytes: int | None
    loss: float | None
    micro_batch: int
    best_iteration: int | None
    best_file: str | None

    def json(self) -> str:
        """The figures as one line of JSON."""
        return result_json({"workload": self.workload, **asdict(self)})

    def summary(self, done: str, per_s: float | None, unit: str) -> str:
        """The result for users: the work `done`, and its rate in `unit` per second."""
        rate = f", {rate_text(per_s, unit)}" if per_s else ""
        used = f" ({percent(self.mfu)} MFU)" if self.mfu is not None else ""
        took = elapsed(self.seconds, self.restarts)
        return f"{self.ending} after {self.iterations:,} iterations and {done}; {took}{rate}{used}"


class Console:
    """Lines for users: one per iteration, at most one per second.

    A line that cannot be written is lost, and no more than that: a log on a full disk is not the end of a run
    that may have taken days. `unread` is called when the reader of the lines has gone.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._writes = write
        self.unread: Callable[[str], object] = silent
        self._clock = clock
        self._last = clock()

    def begin(self, lines: Iterable[str]) -> None:
        """Introduce the run and the conventions of its figures; the first second begins here."""
        for line in lines:
            self._write(line)
        self._last = self._clock()

    def due(self) -> float:
        """Seconds since the line before if it is time for one, else 0. Only then are figures read: that waits
        for a GPU."""
        seconds = self._clock() - self._last
        return seconds if seconds >= 1.0 else 0.0

    def line(self, parts: Iterable[str]) -> None:
        """Write the line of a finished iteration; empty parts are left out."""
        self._write(" · ".join(part for part in parts if part))
        self._last = self._clock()

    def say(self, text: str) -> None:
        """Write a line at once."""
        self._write(text)

    def _write(self, text: str) -> None:
        try:
            self._writes(text)
        except BrokenPipeError:
            self.unread("nobody reads what it prints")
        except OSError:
            pass  # Python keeps what is left of the line, and begins the next one with it


def result_json(figures: Mapping[str, object]) -> str:
    """One line of JSON; what is not known, or not finite, is null."""
    return json.dumps({name: _known(value) for name, value in figures.items()})


def _known(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def amount(count: float) -> str:
    """A large number in few digits: 950, 12.3K, 4.56M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(count) >= limit:
            return f"{count / limit:.3g}{unit}"
    return f"{count:.3g}"


def plural(count: int, noun: str) -> str:
    """The noun for a count: `episode`, `episodes`."""
    return noun if count == 1 else f"{noun}s"


def rate_text(per_s: float, unit: str) -> str:
    """A rate in `unit` per second, with digits behind the point where it is small: 0.052, 9.87, 12,345."""
    return f"{per_s:,.0f} {unit}/s" if per_s >= 10 else f"{per_s:.3g} {unit}/s"


def model_size(shape: Mapping[str, int]) -> str:
    """The shape of a transformer in a few words."""
    return f"{shape['layers']} × {shape['d_model']}, {shape['heads']} heads"


def elapsed(seconds: float, restarts: int) -> str:
    """The time that a process took, and since which restart."""
    return f"{seconds:.1f} s" + (f" since restart {restarts}" if restarts else "")


def percent(fraction: float | None) -> str:
    """A fraction as a percentage; empty if it is not known."""
    return "" if fraction is None else f"{fraction:.1%}"


def line_parts(
    iteration: int,
    total: int,
    figures: Iterable[str],
    rate: str,
    utilization: float | None,
    peak_bytes: int | None,
) -> list[str]:
    """The parts of the line of an iteration: how far it is, the workload's own `figures`, and what it
    takes."""
    return [
        f"iteration {iteration:,}/{total:,}",
        *figures,
        rate,
        f"{percent(utilization)} MFU" if utilization is not None else "",
        f"{peak_bytes / 1e9:.1f} GB" if peak_bytes else "",
    ]


def silent(_: str) -> None:
    """Drop a line."""
