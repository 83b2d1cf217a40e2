"""NVLink errors of one GPU, summed over its links."""

from __future__ import annotations

from typing import Any

from hoptui.telemetry.codes import FATAL, UNSUPPORTED
from hoptui.telemetry.reader import NOT_SUPPORTED

_COUNTERS = ("NVML_NVLINK_ERROR_DL_REPLAY", "NVML_NVLINK_ERROR_DL_RECOVERY", "NVML_NVLINK_ERROR_DL_CRC_FLIT")


class NvLinks:
    """Packets sent again, links trained again and flits with a bad checksum, since the driver began.

    Args:
        nvml: the module pynvml.
        handle: NVML's handle of the GPU.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self.why = ""
        """Why the errors are unknown, empty when they are known."""

    def errors(self, links: int) -> int | None:
        """The sum over all counters that answer; None where none does.

        Raises:
            NVMLError: its value is in LOST or DRIVER_GONE.
        """
        if self.why == NOT_SUPPORTED:
            return None
        total: int | None = None
        why = "no link is up"
        for link in range(min(links, self._nvml.NVML_NVLINK_MAX_LINKS)):
            for counter in _COUNTERS:
                try:
                    count = self._nvml.nvmlDeviceGetNvLinkErrorCounter(
                        self._handle, link, getattr(self._nvml, counter)
                    )
                except self._nvml.NVMLError as error:
                    if error.value in FATAL:
                        raise
                    why = NOT_SUPPORTED if error.value in UNSUPPORTED else f"NVML: {error}"
                else:
                    total = count + (total or 0)
        self.why = why if total is None else ""
        return total
