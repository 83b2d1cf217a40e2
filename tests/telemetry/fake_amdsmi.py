"""A stand-in for the module amdsmi: the documented functions, in the units of amdsmi 6, for two MI300X."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

MIB = 1 << 20


class AmdSmiClkType(IntEnum):
    SYS = 0
    GFX = 1
    MEM = 5


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1
    VRAM = 3


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


class AmdSmiException(Exception):  # noqa: N818 - its name there
    """The base class of its errors."""


class AmdSmiLibraryException(AmdSmiException):
    """An error of the library: its code and its text."""

    def __init__(self, err_code: int, err_info: str) -> None:
        super().__init__(err_code)
        self.err_code, self.err_info = err_code, err_info


NOT_SUPPORTED = AmdSmiLibraryException(2, "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported")
BUSY = AmdSmiLibraryException(30, "AMDSMI_STATUS_BUSY - Device busy")
NO_DRIVER = AmdSmiLibraryException(34, "AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded")


class FakeAmdSmi:
    """`answers` has what a function answers: a value, an error, or a callable of the handle and arguments."""

    AmdSmiClkType = AmdSmiClkType
    AmdSmiTemperatureType = AmdSmiTemperatureType
    AmdSmiTemperatureMetric = AmdSmiTemperatureMetric
    AmdSmiException = AmdSmiException

    def __init__(self, gpus: int = 2) -> None:
        self.gpus = gpus
        self.started = 0
        self.calls: list[str] = []
        self.answers: dict[str, Any] = {
            "amdsmi_get_gpu_device_uuid": lambda handle: f"uuid-{handle}",
            "amdsmi_get_gpu_asic_info": {
                "market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942",
            },
            "amdsmi_get_gpu_driver_info": {"driver_name": "amdgpu", "driver_version": "6.8.5"},
            "amdsmi_get_power_cap_info": {"power_cap": 750_000_000},
            "amdsmi_get_gpu_activity": {"gfx_activity": 97, "umc_activity": 41, "mm_activity": "N/A"},
            "amdsmi_get_power_info": {"current_socket_power": 612, "average_socket_power": "N/A"},
            "amdsmi_get_gpu_vram_usage": {"vram_total": 196_592, "vram_used": 1024},
            "amdsmi_get_temp_metric": lambda handle, sensor, metric: 40 + sensor,
            "amdsmi_get_clock_info": lambda handle, kind: {"clk": 100 * kind, "max_clk": 2100},
            "amdsmi_get_energy_count": {"energy_accumulator": 2_000_000, "counter_resolution": 15.5},
            "amdsmi_get_gpu_process_list": [],
        }  # fmt: skip

    def amdsmi_init(self) -> None:
        self.started += 1
        if isinstance(error := self.answers.get("amdsmi_init"), Exception):
            raise error

    def amdsmi_shut_down(self) -> None:
        if not self.started:
            raise AmdSmiLibraryException(32, "AMDSMI_STATUS_NOT_INIT - Device not initialized")

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(self.gpus))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self.answers:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return call
