"""The driver's own events: NVML's event set, asked without waiting."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from hoptui.telemetry.nvml_errors import FATAL, SECOND_NS, TIMEOUT
from hoptui.telemetry.poller import NOT_SUPPORTED

AGAIN_NS = 60 * SECOND_NS
MOST = 32
"""Events taken at once: a program that faults in a loop must not keep the sampler here."""


class Bell:
    """Xids and double-bit ECC errors of all GPUs, as the driver reports them. Asking costs 1–2 µs.

    Args:
        nvml: the module pynvml, started.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._retry_at = 0
        self._handles: dict[int, Any] = {}
        self.missing: dict[int, str] = {}
        """Why a GPU's events are not heard, by its handle's address."""

    def register(self, handle: Any, t: int) -> None:
        """Listen to a GPU from now on.

        Raises:
            NVMLError: its value is in LOST or DRIVER_GONE.
        """
        nvml = self._nvml
        at = address(handle)
        self._handles[at] = handle
        try:
            if self._set is None:
                self._set = nvml.nvmlEventSetCreate()
            kinds = nvml.nvmlDeviceGetSupportedEventTypes(handle)
            kinds &= nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
            if kinds & nvml.nvmlEventTypeXidCriticalError:
                nvml.nvmlDeviceRegisterEvents(handle, kinds, self._set)
                self.missing.pop(at, None)
            else:
                self.missing[at] = NOT_SUPPORTED
        except nvml.NVMLError as error:
            if error.value in FATAL:
                raise
            self.missing[at] = f"NVML: {error}"
            self._retry_at = t + AGAIN_NS

    def rung(self, t: int) -> Iterator[tuple[int, int | None]]:
        """What has happened since the time before: (a handle's address, Xid or None for a double-bit ECC
        error)."""
        nvml = self._nvml
        for at, handle in list(self._handles.items()) if self.missing and t >= self._retry_at else ():
            if self.missing.get(at, NOT_SUPPORTED) != NOT_SUPPORTED:
                self.register(handle, t)
        for _ in range(MOST if self._set is not None else 0):
            try:
                data = nvml.nvmlEventSetWait_v2(self._set, 0)
            except nvml.NVMLError as error:
                if error.value != TIMEOUT and error.value not in FATAL:  # the set is of no use
                    self.missing = dict.fromkeys(self._handles, f"NVML: {error}")
                    self._retry_at = t + AGAIN_NS
                    self.close()
                return  # a lost GPU is found by its tick
            if data.eventType & nvml.nvmlEventTypeXidCriticalError:
                yield address(data.device), int(data.eventData)
            elif data.eventType & nvml.nvmlEventTypeDoubleBitEccError:
                yield address(data.device), None

    def close(self) -> None:
        """Give the set back to NVML."""
        if self._set is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._set)
        self._set = None


def address(handle: Any) -> int:
    """What makes two handles of NVML the same."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
