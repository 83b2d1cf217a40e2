"""What a trainer prints, without what differs from run to run."""

from __future__ import annotations

from collections.abc import Iterable

MEASURED = {
    r"(accuracy|held out|evaluation) [\d.]+": r"\1 N",
    r"; [\d.]+ s.*": "; RATES",
    r"(?m)^memory: [\d.]+ GB total, [\d.]+ GB allocated, [\d.]+ GB free, [\d.]+ GB planned with": "memory: N",
}
"""Patterns of measured numbers, and what stands for them in a golden text."""


def printed(lines: Iterable[str]) -> str:
    """The lines but those of iterations, of which there is one a second."""
    return "".join(f"{line}\n" for line in lines if " · " not in line)
