"""How much history is kept: all recordings together, by size and age, and each of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

log = logging.getLogger("hoptui.daemon")

GB = 10**9
DAY_S = 86400.0
KEEP_GB, KEEP_DAYS, RUN_GB = 10.0, 30.0, 1.0


@dataclass(frozen=True)
class Limits:
    """`keep_bytes` and `keep_s` for all recordings, `run_bytes` for each."""

    keep_bytes: int = int(KEEP_GB * GB)
    keep_s: float = KEEP_DAYS * DAY_S
    run_bytes: int = int(RUN_GB * GB)


def limits(environ: Mapping[str, str]) -> Limits:
    """What HOPTUI_KEEP_GB, HOPTUI_KEEP_DAYS and HOPTUI_RUN_GB say; a value that makes no sense is logged and not used."""
    return Limits(
        keep_bytes=int(_number(environ, "HOPTUI_KEEP_GB", KEEP_GB) * GB),
        keep_s=_number(environ, "HOPTUI_KEEP_DAYS", KEEP_DAYS) * DAY_S,
        run_bytes=int(_number(environ, "HOPTUI_RUN_GB", RUN_GB) * GB),
    )


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    raw = environ.get(name, "").strip()
    if not raw:
        return default
    try:
        value = float(raw)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        log.warning("%s=%r is no positive number: %g is used", name, raw, default)
        return default
    return value
