"""The GPUs of the node as AMD's library `amdsmi` reports them, behind the same readings as NVIDIA's.

Written from the documentation of amdsmi 6 and 7. It has never run on AMD hardware.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from hoptui.domain.columns import Columns, pack
from hoptui.domain.devices import GpuInfo, GpuProcess, Happened
from hoptui.domain.facts import Fact, fact
from hoptui.node.driver_probe import DRIVER, IDLE, SetProbe, no_probe
from hoptui.telemetry.gpu import ProcessOwners
from hoptui.telemetry.gpu_slot import RETRY_NS
from hoptui.telemetry.nvml_errors import NOT_SUPPORTED, SECOND_NS, backoff

SHORTEST_NS = SECOND_NS // 2
"""Between two rows, however fast the ticks are: what these calls cost on AMD hardware is not known."""
PROCESSES_NS = 2 * SECOND_NS
MOST_WATTS = 10_000
"""A greater power limit is in microwatts, as newer versions of the library give it."""
UNKNOWN_VALUES = frozenset((0xFFFF, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF))
"""What the library has for a value that the GPU does not have, in each width."""
NO_GPU = fact("driver.no_amd_gpu")
NOT_ASKED = fact("driver.amd_not_asked")
ABSENT = ("gpm", "xid", "ecc", "process_utilization", "nvlink", "throttle", "power_average_w")
"""Groups of readings that NVIDIA's GPUs have and this module does not read."""
_STATUS_NOT_SUPPORTED = 2
_MIB, _MICRO = 1 << 20, 1e-6


class AmdCall(NamedTuple):
    """A call to the library, with its arguments behind the handle, and the readings in its answer."""

    function: str
    readings: tuple[str, ...]
    arguments: Callable[[Any], tuple[Any, ...]]
    values: Callable[[Any], tuple[Any, ...]]


def _none(_: Any) -> tuple[Any, ...]:
    return ()


def _power(answer: Mapping[str, Any]) -> tuple[Any, ...]:
    """The power now, or the average where a GPU has only that."""
    now = number(answer.get("current_socket_power"))
    return (now if now else number(answer.get("average_socket_power")),)


def _energy(answer: Mapping[str, Any]) -> tuple[Any, ...]:
    count = number(answer.get("energy_accumulator", answer.get("power")))
    step = number(answer.get("counter_resolution"))
    return (None if count is None or step is None else count * step * _MICRO,)


def _vram(answer: Mapping[str, Any]) -> tuple[Any, ...]:
    used, total = number(answer.get("vram_used")), number(answer.get("vram_total"))
    return (None if used is None else used * _MIB, None if total is None else total * _MIB)


def _clock(answer: Mapping[str, Any]) -> tuple[Any, ...]:
    return (answer.get("clk", answer.get("cur_clk")),)


def _sensor(sensor: str) -> Callable[[Any], tuple[Any, ...]]:
    return lambda smi: (
        getattr(smi.AmdSmiTemperatureType, sensor),
        smi.AmdSmiTemperatureMetric.CURRENT,
    )


CALLS = (
    AmdCall(
        "amdsmi_get_gpu_activity",
        ("busy", "memory_busy"),
        _none,
        lambda answer: (answer.get("gfx_activity"), answer.get("umc_activity")),
    ),
    AmdCall("amdsmi_get_power_info", ("power_w",), _none, _power),
    AmdCall("amdsmi_get_gpu_vram_usage", ("memory_used_bytes", "memory_total_bytes"), _none, _vram),
    AmdCall(
        "amdsmi_get_temp_metric", ("temperature_c",), _sensor("HOTSPOT"), lambda answer: (answer,)
    ),
    AmdCall("amdsmi_get_temp_metric", ("memory_temperature_c",), _sensor("VRAM"), lambda answer: (answer,)),
    AmdCall(
        "amdsmi_get_clock_info", ("sm_clock_mhz",), lambda smi: (smi.AmdSmiClkType.GFX,), _clock
    ),
    AmdCall("amdsmi_get_clock_info", ("memory_clock_mhz",), lambda smi: (smi.AmdSmiClkType.MEM,), _clock),
    AmdCall("amdsmi_get_energy_count", ("energy_j",), _none, _energy),
)  # fmt: skip


def number(value: Any) -> float | None:
    """A value of the library, None for `N/A` and for what it has instead of a value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value in UNKNOWN_VALUES:
        return None
    return float(value)


def present(proc: Path = Path("/proc")) -> bool:
    """Whether to read AMD's GPUs: their library is installed, and NVIDIA's driver is not loaded."""
    return find_spec("amdsmi") is not None and not (proc / "driver/nvidia").exists()


class AmdGpu:
    """One GPU: its row, its facts and its processes.

    Args:
        smi: the module amdsmi, started.
        handle: the library's handle of the GPU.
        index: its place in the library's list.
        people: looks up who runs a process.
    """

    def __init__(self, smi: Any, handle: Any, index: int, people: ProcessOwners) -> None:
        self._smi = smi
        self._handle = handle
        self._people = people
        self._again: dict[int, tuple[int, int]] = {}  # call -> failures in a row, when to try again
        self._missing: dict[str, Fact] = dict.fromkeys(ABSENT, NOT_SUPPORTED)
        self.processes: tuple[GpuProcess, ...] = ()
        self.info = self._learn(index)

    def _learn(self, index: int) -> GpuInfo:
        uuid = self._ask("amdsmi_get_gpu_device_uuid")
        asic = self._ask("amdsmi_get_gpu_asic_info") or {}
        cap = self._ask("amdsmi_get_power_cap_info") or {}
        driver = self._ask("amdsmi_get_gpu_driver_info") or {}
        memory = self._ask("amdsmi_get_gpu_vram_usage") or {}
        clock = self._ask("amdsmi_get_clock_info", self._smi.AmdSmiClkType.GFX) or {}
        total, watts = number(memory.get("vram_total")), number(cap.get("power_cap"))
        if watts is not None and watts > MOST_WATTS:
            watts *= _MICRO
        name = str(asic.get("market_name") or "")
        return GpuInfo(
            uuid=str(uuid) if uuid else f"amd-unknown-{index}",
            index=index,
            name=name if name not in ("", "N/A") else f"AMD GPU {index}",
            memory_total_bytes=None if total is None else int(total) * _MIB,
            power_limit_w=watts or None,
            sm_clock_max_mhz=number(clock.get("max_clk")) or None,
            driver=str(driver.get("driver_version") or ""),
            architecture=str(asic.get("target_graphics_version") or ""),
        )

    def _ask(self, function: str, *arguments: Any) -> Any:
        """A fact about the GPU; None if this version or this GPU does not have it."""
        try:
            return getattr(self._smi, function)(self._handle, *arguments)
        except (self._smi.AmdSmiException, AttributeError):
            return None

    def facts(self) -> GpuInfo:
        """What is known of the GPU, with the reasons for what is not."""
        return structs.replace(self.info, missing_because=dict(self._missing))

    def row(self, t: int) -> dict[str, float]:
        """What can be read at `t` (monotonic ns); the rest is left out. A call that fails rests a while."""
        found: dict[str, float] = {}
        for place, call in enumerate(CALLS):
            failures, again = self._again.get(place, (0, 0))
            if t < again:
                continue
            try:
                answer = getattr(self._smi, call.function)(self._handle, *call.arguments(self._smi))
                values = dict(zip(call.readings, map(number, call.values(answer)), strict=True))
            except Exception as error:  # an odd answer of one function must not cost the others
                self._again[place] = (failures + 1, t + backoff(failures + 1))
                self._missing |= dict.fromkeys(call.readings, _why(error))
                continue
            self._again.pop(place, None)
            for name, value in values.items():
                if value is None:
                    self._missing[name] = fact("reading.no_value")
                else:
                    self._missing.pop(name, None)
                    found[name] = value
        return found

    @property
    def answers(self) -> bool:
        """Whether at least one call has worked at its last try."""
        return len(self._again) < len(CALLS)

    @property
    def failure(self) -> Fact:
        """Why the first of its readings is unknown."""
        return self._missing[CALLS[0].readings[0]]

    def look_at_processes(self) -> None:
        """See which processes hold the GPU; unknown if the library does not say."""
        try:
            found = tuple(self._running(self._smi.amdsmi_get_gpu_process_list(self._handle)))
        except Exception as error:
            self.processes = ()
            self._missing["processes"] = _why(error)
            return
        self._missing.pop("processes", None)
        self.processes = tuple(sorted(found, key=lambda process: process.pid))

    def _running(self, listed: Any) -> Iterator[GpuProcess]:
        for one in listed:
            user, command = self._people.of(int(one["pid"]))
            held = number((one.get("memory_usage") or {}).get("vram_mem"))
            yield GpuProcess(
                gpu=self.info.uuid,
                pid=int(one["pid"]),
                memory_used_bytes=None if held is None else int(held) // _MIB * _MIB,
                user=user,
                command=command,
            )


class AmdGpus:
    """All AMD GPUs of the node. An error of the library is `problem`, and it is started anew every 30 s.

    Args:
        load: imports the module amdsmi, or what behaves like it.
        clock: monotonic ns.
        probe: called with what the driver is about to be asked about.
        leave: indices of GPUs that are not touched at all.
    """

    def __init__(
        self,
        load: Callable[[], Any],
        clock: Callable[[], int],
        probe: SetProbe = no_probe,
        leave: frozenset[int] = frozenset(),
    ) -> None:
        self._load = load
        self._clock = clock
        self._probe = probe
        self._leave = leave
        self._people = ProcessOwners(devices=("/dev/kfd", "/dev/dri/render"))
        self._gpus: list[AmdGpu] = []
        self._facts: tuple[GpuInfo, ...] = ()
        self._retry_at = self._read_at = self._processes_at = 0
        self.problem: Fact | None = NOT_ASKED
        self.changes = 0
        """Rises whenever `infos` or `processes` may have changed."""

    def infos(self) -> tuple[GpuInfo, ...]:
        """The GPUs in the library's order."""
        return self._facts

    def processes(self) -> tuple[GpuProcess, ...]:
        """All processes on all GPUs as last seen."""
        found = tuple(process for gpu in self._gpus for process in gpu.processes)
        self._people.keep({process.pid for process in found})
        return found

    def happened(self) -> list[Happened]:
        """No events: they are not read of these GPUs."""
        return []

    def read(self, period: int = SECOND_NS) -> list[Columns]:
        """One row for each GPU, at most twice a second; finds them first if need be."""
        t = self._clock()
        try:
            if self.problem:
                if t < self._retry_at:
                    return []
                self._find(t)
            if self.problem or t < self._read_at:
                return []
            self._read_at = t + SHORTEST_NS - period // 2 if period < SHORTEST_NS else t
            parts = []
            for gpu in self._gpus:
                self._probe(gpu.info.index)
                if row := gpu.row(t):
                    parts.append(pack(f"gpu/{gpu.info.uuid}", [(t, -1, row)]))
            self._note_facts()
            if self._gpus and not any(gpu.answers for gpu in self._gpus):  # the driver is gone, most likely
                error = self._gpus[0].failure.fields.get("error", "no call is supported")
                self._fail(str(error), t)
            return parts
        finally:
            self._probe(IDLE)

    def aside(self, until: int) -> None:
        """Look at the processes if that is due."""
        t = self._clock()
        if self.problem or t < self._processes_at or t >= until:
            return
        self._processes_at = t + PROCESSES_NS
        try:
            for gpu in self._gpus:
                self._probe(gpu.info.index)
                gpu.look_at_processes()
        finally:
            self._probe(IDLE)
        self.changes += 1
        self._note_facts()

    def _note_facts(self) -> None:
        facts = tuple(gpu.facts() for gpu in self._gpus)
        if facts != self._facts:
            self._facts = facts
            self.changes += 1

    def _fail(self, error: str, t: int) -> None:
        self.problem = fact("driver.amd_broken", error=error)
        self._retry_at = t + RETRY_NS
        self.changes += 1
        self._facts = tuple(structs.replace(one, problem=self.problem) for one in self._facts)
        self._gpus = []

    def _find(self, t: int) -> None:
        self._probe(DRIVER)
        self.changes += 1
        self._retry_at = t + RETRY_NS
        self._gpus = []
        try:
            smi = self._load()
            with contextlib.suppress(Exception):
                smi.amdsmi_shut_down()  # else the list would be that of the first start
            smi.amdsmi_init()
            handles = smi.amdsmi_get_processor_handles()
            there = [one for one in enumerate(handles) if one[0] not in self._leave]
            self._gpus = [AmdGpu(smi, handle, index, self._people) for index, handle in there]
        except Exception as error:  # a library that lacks its shared object fails in many ways
            self._fail(_text(error), t)
            return
        self.problem = None if handles else NO_GPU
        self._note_facts()


def _why(error: Exception) -> Fact:
    if getattr(error, "err_code", None) == _STATUS_NOT_SUPPORTED or isinstance(error, AttributeError):
        return NOT_SUPPORTED
    return fact("reading.amd_failed", error=_text(error))


def _text(error: Exception) -> str:
    """What the library says, in one line."""
    said = getattr(error, "err_info", "") or str(error) or type(error).__name__
    return " ".join(str(said).split())[:160]
