"""The processes on a GPU: what NVML says of them, and whose they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from hoptui.domain.devices import GpuProcess
from hoptui.node.processes import whose_pids
from hoptui.telemetry.nvml_errors import NOT_FOUND, SECOND_NS

LONGEST_COMMAND = 200
_MIB = 1 << 20


class ProcessOwners:
    """Who runs a process, and what: from /proc, once for each process.

    The driver counts pids as the whole machine does. In a container the same number may be another process of
    ours, so there a process is only named if it has an NVIDIA device open. What cannot be seen is "".

    Args:
        proc: where the kernel lists its processes.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[int, tuple[float, str, str]] = {}
        self._whole_machine = whose_pids(proc) == "machine"

    def of(self, pid: int) -> tuple[str, str]:
        """The user and the command line of a process."""
        try:
            process = psutil.Process(pid)
            started = process.create_time()
            known = self._known.get(pid)
            if known is None or known[0] != started:
                known = self._known[pid] = (started, *self._look(process))
        except (psutil.Error, OSError, ValueError):
            self._known.pop(pid, None)
            return "", ""
        return known[1:]

    def keep(self, pids: set[int]) -> None:
        """Forget all others."""
        self._known = {pid: known for pid, known in self._known.items() if pid in pids}

    def _look(self, process: psutil.Process) -> tuple[str, str]:
        if not self._whole_machine and not self._uses_gpu(process.pid):
            return "", ""
        with process.oneshot():
            command = " ".join(process.cmdline()) or process.name()
            return process.username(), command[:LONGEST_COMMAND]

    def _uses_gpu(self, pid: int) -> bool:
        for entry in (self._proc / str(pid) / "fd").iterdir():
            try:
                if str(entry.readlink()).startswith("/dev/nvidia"):
                    return True
            except OSError:  # closed meanwhile
                continue
        return False


def running(
    nvml: Any, handle: Any, gpu: str, people: ProcessOwners, shares: Mapping[int, float]
) -> list[GpuProcess]:
    """The processes that compute on a GPU or MIG instance, by pid. 25–200 µs under load, 4.5 ms were reported
    elsewhere.

    Args:
        shares: % of the SMs' time by pid, as far as known.

    Raises:
        NVMLError: the GPU does not tell.
    """
    found = []
    for process in nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle):
        user, command = people.of(process.pid)
        used = process.usedGpuMemory
        found.append(
            GpuProcess(
                gpu=gpu,
                pid=process.pid,
                memory_used_bytes=None if used is None else used // _MIB * _MIB,
                sm_percent=shares.get(process.pid),
                user=user,
                command=command,
            )
        )
    return sorted(found, key=lambda process: process.pid)


class SmShares:
    """Each process's share of the SMs' time since the reading before, in %. 1.4–2.4 ms a reading.

    Args:
        nvml: the module pynvml.
        handle: NVML's handle of the GPU.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._newest = 0

    def read(self, wall: float) -> dict[int, float]:
        """Percent by pid; a process without samples, as on an idle GPU, is not in it.

        Args:
            wall: s since 1970; the first reading looks one second back.

        Raises:
            NVMLError: the GPU does not tell.
        """
        since = self._newest or int(wall * 1e6 - SECOND_NS / 1e3)
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, since)
        except self._nvml.NVMLError as error:
            if error.value == NOT_FOUND:
                return {}
            raise
        shares: dict[int, float] = {}
        for sample in samples:
            if sample.timeStamp > since and sample.smUtil <= 100:
                shares[sample.pid] = float(sample.smUtil)
                self._newest = max(self._newest, sample.timeStamp)
        return shares
