"""How much history is kept: all recordings together, by size and age, and each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

GB = 10**9
DAY_S = 86400.0
KEEP_GB, KEEP_DAYS, RUN_GB = 10.0, 30.0, 1.0
DEFAULTS = {"HOPTUI_KEEP_GB": KEEP_GB, "HOPTUI_KEEP_DAYS": KEEP_DAYS, "HOPTUI_RUN_GB": RUN_GB}


@dataclass(frozen=True)
class RetentionLimits:
    """`keep_bytes` and `keep_s` for all recordings, `run_bytes` for each."""

    keep_bytes: int = int(KEEP_GB * GB)
    keep_s: float = KEEP_DAYS * DAY_S
    run_bytes: int = int(RUN_GB * GB)


def limits(environ: Mapping[str, str]) -> RetentionLimits:
    """What HOPTUI_KEEP_GB, HOPTUI_KEEP_DAYS and HOPTUI_RUN_GB say; a value that makes no sense is not
    used."""
    return RetentionLimits(
        keep_bytes=int(_number(environ, "HOPTUI_KEEP_GB") * GB),
        keep_s=_number(environ, "HOPTUI_KEEP_DAYS") * DAY_S,
        run_bytes=int(_number(environ, "HOPTUI_RUN_GB") * GB),
    )


def refused(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each of these variables whose value makes no sense."""
    return [
        f"{name}={environ[name]!r} is no positive number: {default:g} is used"
        for name, default in DEFAULTS.items()
        if environ.get(name, "").strip() and not _positive(environ[name])
    ]


def _number(environ: Mapping[str, str], name: str) -> float:
    raw = environ.get(name, "")
    return float(raw) if _positive(raw) else DEFAULTS[name]


def _positive(raw: str) -> bool:
    try:
        return 0 < float(raw) < math.inf
    except ValueError:
        return False
