"""GPUs: the kernel module, NVML, the counters, and what CUDA would see from here."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hoptui.cli.doctor import Check, Status
from hoptui.daemon.state.gpu_ownership import NO_DEVICES, Claim, resolve
from hoptui.domain.devices import GpuInfo
from hoptui.domain.facts import Fact
from hoptui.presentation import numbers, sentences
from hoptui.presentation.numbers import counted
from hoptui.telemetry.nvml_errors import NO_PERMISSION

ROOT = Path("/")
NVIDIA = "0x10de"  # PCI vendor
DISPLAY = "0x03"  # PCI class: VGA and 3D controllers
NONE_YET = "no counters have arrived yet"
PROFILING = (
    "in a container: --cap-add SYS_ADMIN; "
    "on the host: the module option NVreg_RestrictProfilingToAdminUsers=0"
)


def driver(gpus: Sequence[GpuInfo], root: Path = ROOT) -> Check:
    """Check the kernel module in /proc. A sandbox may hide /proc and still provide NVML."""
    try:
        found = (root / "proc/driver/nvidia/version").read_text()
    except OSError as error:
        by_nvml = next((gpu.driver for gpu in gpus if gpu.driver), "")
        if by_nvml:
            return Check("driver", "ok", f"{by_nvml} (NVML says so; {error.filename} is hidden here)")
        on_bus = _on_bus(root)
        if on_bus:
            them = counted(on_bus, "NVIDIA GPU")
            detail = f"{them} on the PCI bus, but the kernel module is not loaded"
            return Check("driver", "warning", detail, "modprobe nvidia; dmesg says why it fails")
        advice = "nothing to do on a node without NVIDIA GPUs; a container needs --gpus all"
        return Check("driver", "optional", f"no NVIDIA driver: {error.filename}: {error.strerror}", advice)
    version = re.search(r"Kernel Module(?: for \S+)?\s+(\S+)", found)
    flavour = "open kernel module" if "Open Kernel Module" in found else "kernel module"
    return Check("driver", "ok", f"{flavour} {version[1] if version else 'of unknown version'}")


def permissions(gpus: Sequence[GpuInfo], root: Path = ROOT) -> Check:
    """Whether this user may open the devices, and what NVML was refused."""
    devices = sorted(path for path in (root / "dev").glob("nvidia*") if _is_gpu_device(path.name))
    shut = [str(path) for path in devices if not os.access(path, os.R_OK | os.W_OK)]
    if shut:
        which = f"{shut[0]}{f' and {len(shut) - 1} more' if len(shut) > 1 else ''}"
        advice = (
            "join the group that owns it (ls -l /dev/nvidia*), or ask for the GPUs in the job or container"
        )
        return Check("gpu-permissions", "warning", f"{which}: not yours to read and write", advice)
    refused = [
        f"GPU {gpu.index}: {said}"
        for gpu in gpus
        for said in dict.fromkeys(sentences.sentence(why) for why in _problems(gpu) if _is_refused(why))
    ]
    if refused:
        return Check("gpu-permissions", "warning", "; ".join(refused), PROFILING)
    if not devices:
        return Check(
            "gpu-permissions", "ok", f"no {root / 'dev'}/nvidia* here, so there is nothing to permit"
        )
    return Check("gpu-permissions", "ok", f"{len(devices)} device files, all yours to read and write")


def nvml(gpus: Sequence[GpuInfo], problem: Fact | None, root: Path = ROOT) -> Check:
    """Which GPUs answer, and why others do not. A node without an NVIDIA GPU needs none."""
    lost = [f"GPU {gpu.index}: {sentences.sentence(gpu.problem)}" for gpu in gpus if gpu.problem]
    working = [gpu for gpu in gpus if not gpu.problem]
    kinds: dict[str, list[GpuInfo]] = {}
    for gpu in working:
        kinds.setdefault(numbers.clean(gpu.name, 60), []).append(gpu)
    names = [f"{_which(them)}: {name}" for name, them in kinds.items()]
    if lost:
        return Check("nvml", "warning", "; ".join([*lost, *names]), "nvidia-smi and dmesg say more")
    if not working:
        detail = sentences.text_of(problem) or "no GPU was found"
        advice = "host and training panels work; readings need an NVIDIA driver on this node"
        return Check("nvml", "warning" if _expected(root) else "optional", detail, advice)
    return Check("nvml", "ok", f"{'; '.join(names)}; driver {working[0].driver or 'unknown'}")


def _expected(root: Path) -> bool:
    """Whether the node shows an NVIDIA GPU: on the PCI bus, by a kernel module or by a device file."""
    devices = (path for path in (root / "dev").glob("nvidia*") if _is_gpu_device(path.name))
    return bool(_on_bus(root)) or (root / "proc/driver/nvidia/version").exists() or any(devices)


def gpm(gpus: Sequence[GpuInfo], readings: Mapping[str, Mapping[str, float]]) -> Check:
    """Whether the SM, tensor and DRAM counters are read; `readings` are the newest by UUID."""
    cut_up = {gpu.parent for gpu in gpus}  # their instances have the counters
    why: dict[str, list[GpuInfo]] = {}
    advice: dict[str, None] = {}
    counted = []
    for gpu in gpus:
        if "sm_active" in readings.get(gpu.uuid, {}):
            counted.append(gpu)
        elif gpu.uuid not in cut_up:
            problem = gpu.missing_because.get("gpm") or gpu.problem
            why.setdefault(sentences.text_of(problem) or NONE_YET, []).append(gpu)
            advice[_advice(problem)] = None
    parts = [f"{_which(counted)}: SM, tensor and DRAM activity"] if counted else []
    parts += [f"{_which(them)}: {reason}" for reason, them in why.items()]
    if not why:
        return Check("gpm", "ok", "; ".join(parts))
    return Check("gpm", "warning", "; ".join(parts), "; ".join(advice))


def cuda_visible(gpus: Sequence[GpuInfo], environ: Mapping[str, str]) -> Check:
    """What training started from here would see, by CUDA's rules."""
    slurm = next((f", {name}={environ[name]}" for name in _SLURM if environ.get(name)), "")
    several = len({gpu.name for gpu in gpus if not gpu.parent}) > 1
    unordered = several and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    order = "GPUs of several kinds: CUDA counts the fastest first; export CUDA_DEVICE_ORDER=PCI_BUS_ID"
    asked = environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        detail = f"CUDA_VISIBLE_DEVICES is not set: training started here sees every GPU{slurm}"
        return _check("warning" if unordered else "ok", detail, order if unordered else "")
    shown = f"CUDA_VISIBLE_DEVICES={numbers.clean(asked, 80)}{slurm}"
    if asked.strip() in NO_DEVICES:
        return _check("warning", f"{shown}: training started here sees no GPU", "unset it to use GPUs")
    if not gpus:
        return _check("ok", f"{shown}; there are no GPUs to compare it with")
    words = [word.strip() for word in asked.split(",")]
    if several and words[0].isdigit():
        return _check("warning" if unordered else "ok", shown, order if unordered else "")
    found = resolve(Claim(visible=asked), gpus, ()).gpus
    if len(found) < len(words):
        odd = next((word for word in words if not resolve(Claim(visible=word), gpus, ()).gpus), None)
        why = f"{odd!r} is no GPU here, and CUDA stops reading there" if odd else "it names a GPU twice"
        detail = f"{shown}: {why}: {len(found)} of {len(words)}"
        return _check("warning", detail, "unset it, or name indices or UUIDs of hoptui gpus")
    indices = ", ".join(str(gpu.index) for gpu in gpus if gpu.uuid in found)
    return _check("ok", f"{shown}: GPU {indices}")


def _problems(gpu: GpuInfo) -> Iterator[Fact]:
    if gpu.problem is not None:
        yield gpu.problem
    yield from gpu.missing_because.values()


def _is_refused(why: Fact) -> bool:
    """Whether the driver lacks a permission for it."""
    return why.code in ("reading.refused", "driver.no_access") or why.fields.get("nvml") == NO_PERMISSION


def _advice(why: Fact | None) -> str:
    """What to do about a GPU without counters; None: none have arrived yet."""
    if why is None:
        return "try again in a few seconds"
    if _is_refused(why):
        return PROFILING
    known = {
        "gpm.needs_hopper": "busy, power, memory and clocks work; "
        "SM, tensor and DRAM activity need a Hopper GPU or newer",
        "gpm.needs_driver": "update the NVIDIA driver",
        "gpm.in_mig_mode": "make instances (nvidia-smi mig -cgi … -C) or leave MIG mode",
    }
    return known.get(why.code, "hoptui retries automatically; see nvidia-smi and dmesg")


def _which(gpus: Sequence[GpuInfo]) -> str:
    """GPUs by their indices, and how many instances of which."""
    whole = ", ".join(str(gpu.index) for gpu in gpus if not gpu.parent)
    parts = Counter(gpu.index for gpu in gpus if gpu.parent)
    named = [f"{counted(n, 'instance')} of GPU {index}" for index, n in parts.items()]
    return ", ".join([f"GPU {whole}", *named] if whole else named)


_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "GPU_DEVICE_ORDINAL")


def _check(status: Status, detail: str, advice: str = "") -> Check:
    return Check("cuda-visible", status, detail, advice)


def _is_gpu_device(name: str) -> bool:
    return name in ("nvidiactl", "nvidia-uvm") or name.removeprefix("nvidia").isdigit()


def _on_bus(root: Path) -> int:
    """NVIDIA's GPUs on the PCI bus."""
    found = 0
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text()
        except OSError:
            continue
        found += vendor == NVIDIA and kind.startswith(DISPLAY)
    return found
