"""Xid errors in plain words, after NVIDIA's "Xid Errors" (docs.nvidia.com/deploy/xid-errors), and how bad they are."""

from __future__ import annotations

from hoptui.domain.devices import Level

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
