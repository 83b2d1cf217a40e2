from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from hoptui.cli.checks import gpus
from hoptui.cli.checks.check import Check
from tests.cli.checks.conftest import ANOTHER, H100, host


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs)\n",
            "open kernel module 580.65.06",
        ),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\n",
            "kernel module 535.129.03",
        ),
    ],
)
def test_the_kernel_module(tmp_path: Path, line: str, detail: str) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(line)
    assert gpus.driver((), tmp_path) == Check("driver", "ok", detail)


def test_no_kernel_module(tmp_path: Path) -> None:
    assert "no NVIDIA driver" in gpus.driver((), tmp_path).detail
    assert gpus.driver((H100,), tmp_path).status == "ok"  # a sandbox hides the file, NVML works
    device = tmp_path / "sys/bus/pci/devices/0000:17:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    assert gpus.driver((), tmp_path).advice.startswith("modprobe nvidia")


def test_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = host(tmp_path)
    assert "nothing to permit" in gpus.permissions((), root).detail
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (root / "dev" / name).touch()
    assert gpus.permissions((H100,), root).detail == "3 device files, all yours to read and write"
    refused = structs.replace(H100, missing={"gpm": "no permission to read the counters"})
    found = gpus.permissions((refused,), root)
    assert (found.status, found.detail) == ("warning", "GPU 0: no permission to read the counters")
    monkeypatch.setattr("os.access", lambda path, mode: path.name != "nvidia0")
    assert gpus.permissions((), root).detail == f"{root / 'dev/nvidia0'}: not yours to read and write"


def test_counters() -> None:
    old = structs.replace(ANOTHER, missing={"gpm": "needs Hopper or newer; this is Ampere"})
    found = gpus.gpm((H100, old), {"GPU-a": {"sm_active": 1.0}})
    assert (found.status, found.detail) == (
        "warning",
        "GPU 0: SM, tensor and DRAM activity; GPU 1: needs Hopper or newer; this is Ampere",
    )
    barred = structs.replace(H100, missing={"gpm": "No permission"})
    assert gpus.gpm((barred,), {}).advice == gpus.PROFILING
    assert gpus.gpm((H100, ANOTHER), {}).detail == "GPU 0, 1: no counters have arrived yet"


@pytest.mark.parametrize(
    ("environ", "status", "part"),
    [
        ({}, "ok", "is not set"),
        ({"SLURM_JOB_GPUS": "0,1"}, "ok", "SLURM_JOB_GPUS=0,1"),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, "ok", ": GPU 0, 1"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, "ok", ": GPU 1"),
        (
            {"CUDA_VISIBLE_DEVICES": "0,7,1"},
            "warning",
            "'7' is no GPU here, and CUDA stops reading there: 1 of 3",
        ),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, "warning", "it names a GPU twice: 1 of 2"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, "warning", "0 of 1"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "warning", "sees no GPU"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "warning", "sees no GPU"),
    ],
)
def test_what_cuda_would_see(environ: dict[str, str], status: str, part: str) -> None:
    found = gpus.cuda_visible((H100, ANOTHER), environ)
    assert found.status == status
    assert part in found.detail
    assert found.advice or status == "ok"


def test_gpus_of_several_kinds() -> None:
    other = structs.replace(ANOTHER, name="NVIDIA A100")
    assert gpus.cuda_visible((H100, other), {}).status == "warning"
    assert gpus.cuda_visible((H100, other), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).status == "ok"
    by_index = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert gpus.cuda_visible((H100, other), by_index).status == "warning"
    assert gpus.cuda_visible((H100, other), {"CUDA_VISIBLE_DEVICES": "GPU-b"}).detail.endswith(": GPU 1")
    assert gpus.cuda_visible((), {"CUDA_VISIBLE_DEVICES": "0"}).status == "ok"
