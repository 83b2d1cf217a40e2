"""Made-up surroundings for the probes of `hoptui doctor`."""

from __future__ import annotations

from pathlib import Path

from hoptui.cli.doctor import Check
from hoptui.domain.devices import GpuInfo
from hoptui.node.processes import THE_MACHINES

H100 = GpuInfo(uuid="GPU-a", index=0, name="NVIDIA H100 80GB HBM3", driver="580.65")
ANOTHER = GpuInfo(uuid="GPU-b", index=1, name="NVIDIA H100 80GB HBM3", driver="580.65")


def listed(*checks: Check) -> str:
    """What each check has found, a line each, and what it advises below."""
    advised = [(check, f"    {check.advice}\n" if check.advice else "") for check in checks]
    return "".join(f"{check.status} {check.id}: {check.detail}\n{advice}" for check, advice in advised)


def host(root: Path, *, namespace: int = THE_MACHINES, gpus_there: int = 0, here: int = 0) -> Path:
    """A root directory with so many GPUs known to the module, and so many device files."""
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/pid").symlink_to(f"pid:[{namespace}]")
    (root / "dev").mkdir()
    for i in range(gpus_there):
        (root / f"proc/driver/nvidia/gpus/0000:{i:02}:00.0").mkdir(parents=True)
    for i in range(here):
        (root / f"dev/nvidia{i}").touch()
    return root
