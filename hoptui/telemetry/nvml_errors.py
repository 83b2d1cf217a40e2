"""NVML's return codes, as far as they decide what becomes of a reading, a GPU or the driver."""

from __future__ import annotations

from typing import Any

from hoptui.domain.facts import Fact, fact

SECOND_NS = 1_000_000_000
BACKOFF_MAX_NS = 60 * SECOND_NS

NO_PERMISSION = 4
NOT_FOUND = 6
TIMEOUT = 10
FUNCTION_NOT_FOUND = 13

UNSUPPORTED = frozenset((2, 3, 13, 25, 26))
"""NVML_ERROR_INVALID_ARGUMENT, _NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _ARGUMENT_VERSION_MISMATCH and
_DEPRECATED: this GPU or its driver has no such reading. Invalid argument is how older drivers answer for a
field they do not know."""
LOST = {15: "gpu.fell_off_bus", 16: "gpu.needs_reset", 28: "gpu.gone"}
"""The codes of NVML_ERROR_GPU_IS_LOST, _RESET_REQUIRED and _GPU_NOT_FOUND: the whole GPU cannot be read."""
DRIVER_GONE = frozenset((1, 9, 18))
"""NVML_ERROR_UNINITIALIZED, _DRIVER_NOT_LOADED and _LIB_RM_VERSION_MISMATCH: no GPU can be read."""
REFUSED = fact("reading.refused")
"""A reading fails with NO_PERMISSION."""
NOT_SUPPORTED = fact("reading.not_supported")
"""A reading fails with a code in UNSUPPORTED."""
FATAL = DRIVER_GONE | LOST.keys()
"""Not the affair of one reading."""


def lost(error: Any) -> Fact:
    """Return why a whole GPU cannot be read that answers with this NVMLError."""
    return Fact(LOST.get(error.value, "gpu.not_opened"), fields_of(error))


def failed(error: Any) -> Fact:
    """Return why a reading is unknown that fails with this NVMLError."""
    return Fact("reading.failed", fields_of(error))


def fields_of(error: Any) -> dict[str, Any]:
    """Return the fields of a fact about an NVMLError: `nvml` is its code, `error` NVML's text."""
    return {"nvml": error.value, "error": str(error)}


def backoff(failures: int) -> int:
    """How long to wait after so many failures in a row, in ns: 1, 2, 4 … 60 s."""
    return min(BACKOFF_MAX_NS, SECOND_NS << min(failures - 1, 6))
