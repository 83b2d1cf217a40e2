"""NVML's return codes, as far as they decide what becomes of a reading, a GPU or the driver."""

from __future__ import annotations

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
LOST = {15: "lost: fell off the bus", 16: "lost: it needs a reset", 28: "lost: no longer there"}
"""NVML_ERROR_GPU_IS_LOST, _RESET_REQUIRED and _GPU_NOT_FOUND: the whole GPU cannot be read."""
DRIVER_GONE = frozenset((1, 9, 18))
"""NVML_ERROR_UNINITIALIZED, _DRIVER_NOT_LOADED and _LIB_RM_VERSION_MISMATCH: no GPU can be read."""
REFUSED = "the driver refuses it to this user or container (NVML: Insufficient Permissions)"
"""What to say where a reading fails with NO_PERMISSION."""
FATAL = DRIVER_GONE | LOST.keys()
"""Not the affair of one reading."""


def backoff(failures: int) -> int:
    """How long to wait after so many failures in a row, in ns: 1, 2, 4 … 60 s."""
    return min(BACKOFF_MAX_NS, SECOND_NS << min(failures - 1, 6))
