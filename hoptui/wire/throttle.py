"""Why a GPU's clocks are below their maximum: the bits of the `throttle` reading, in words."""

from __future__ import annotations

from typing import NamedTuple

from hoptui.wire.devices import Level


class Reason(NamedTuple):
    """One bit: `word` for a narrow column, `level` how bad it is, `long` what it means in a sentence.

    `begins` and `ends` are what to tell when it comes and goes, "" for one that is not worth an event.
    """

    bit: int
    word: str
    level: Level
    long: str
    begins: str = ""
    ends: str = ""


IDLE = 0x01
SLOWDOWN = 0x08
"""The hardware slows the clocks; where it is heat or the power brake, their bits are set as well."""
SLOWDOWN_CAUSES = 0x40 | 0x80

REASONS = (
    Reason(SLOWDOWN, "hardware slowdown", "alarm",
           "The hardware halves the clocks or more to protect itself: heat, the power supply's brake, or a current peak.",
           "the hardware slows the clocks: heat, power supply or power brake", "full clocks again"),
    Reason(0x40, "too hot (hardware)", "alarm", "The hardware halves the clocks or more because the GPU or its memory is too hot.",
           "too hot: the hardware halves the clocks or worse", "no longer too hot"),
    Reason(0x80, "power brake", "alarm", "The server's power supply asks the GPU to halve its clocks or more.",
           "power brake: the server told the GPU to slow down", "power brake released"),
    Reason(0x20, "too hot", "alarm", "The driver lowers the clocks because the GPU or its memory is too hot.",
           "too hot: the driver lowers the clocks", "no longer too hot for the driver"),
    Reason(0x04, "power cap", "info",
           "The clocks stay where the board draws no more than its power limit: usual, and no fault, under full load.",
           "at its power limit: clocks give way, as is normal under full load", "no longer at its power limit"),
    Reason(0x10, "sync boost", "info", "The GPU keeps to the clock of the slowest one of its sync-boost group.",
           "clocks are held down to those of other GPUs (sync boost)", "sync boost lets go"),
    Reason(0x02, "clocks set", "info", "Somebody has set the clocks: nvidia-smi -ac or -lgc, or a program that may."),
    Reason(0x100, "display clocks", "info", "A display that is attached keeps the clocks where they are."),
    Reason(IDLE, "idle", "info", "Nothing is being computed, so the clocks are low."),
)  # fmt: skip
"""NVML's clocks event reasons, the worst first. Source: nvmlClocksEventReasons in nvml.h."""
