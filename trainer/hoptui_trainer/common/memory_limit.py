"""The option `--memory-limit`: an amount of memory, or a part of a device's."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hoptui_trainer.common.errors import UsageError

UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


@dataclass(frozen=True)
class MemoryLimit:
    """The bytes that one process plans with, or a fraction of its device's memory. One of them is None."""

    text: str
    nbytes: int | None = None
    fraction: float | None = None

    def of(self, total: int) -> int:
        """The limit in bytes on a device with `total` bytes."""
        return self.nbytes if self.nbytes is not None else int((self.fraction or 0.0) * total)


def parse_limit(text: str) -> MemoryLimit:
    """Parse `72GB`, `72 GiB`, `500MB` or `90%`.

    Raises:
        UsageError: the text is none of these, or the limit is not positive, or above 100 %.
    """
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%|[MGT]i?B)", text.strip(), re.IGNORECASE):
        number, unit = float(match[1]), match[2].upper()
        if unit == "%" and 0 < number <= 100:
            return MemoryLimit(text, fraction=number / 100)
        if unit != "%" and number > 0:
            return MemoryLimit(text, nbytes=int(number * UNITS[unit]))
    raise UsageError(f"--memory-limit {text}: give an amount such as 72GB, or a part such as 90%")
