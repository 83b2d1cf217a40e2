from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from hoptui.cli.doctor import gpus
from hoptui.cli.doctor.check import Check
from hoptui.telemetry.gpm import IN_MIG_MODE, NEEDS_DRIVER, NEEDS_HOPPER
from tests.cli.doctor.conftest import ANOTHER, H100, host


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


def test_what_to_do_about_missing_counters_goes_by_why_they_are() -> None:
    advice = {}
    for why in (
        f"{NEEDS_HOPPER}; this is Ampere",
        NEEDS_DRIVER,
        IN_MIG_MODE,
        "it fails (NVML: Unknown Error)",
    ):
        advice[why] = gpus.gpm((structs.replace(H100, missing={"gpm": why}),), {}).advice
    advice[""] = gpus.gpm((H100,), {}).advice
    assert len(set(advice.values())) == 5
    assert [why for why, what in advice.items() if "Hopper" in what] == [f"{NEEDS_HOPPER}; this is Ampere"]
    assert "nvidia-smi mig -cgi" in advice[IN_MIG_MODE]
    both = (
        structs.replace(H100, missing={"gpm": NEEDS_DRIVER}),
        structs.replace(ANOTHER, missing={"gpm": IN_MIG_MODE}),
    )
    assert gpus.gpm(both, {}).advice == f"{advice[NEEDS_DRIVER]}; {advice[IN_MIG_MODE]}"


def test_instances_have_the_counters_of_a_gpu_in_mig_mode() -> None:
    whole = structs.replace(H100, missing={"gpm": IN_MIG_MODE})
    parts = tuple(
        structs.replace(H100, uuid=f"MIG-{i}", parent="GPU-a", name="H100 MIG 1g.10gb") for i in range(2)
    )
    read = {part.uuid: {"sm_active": 1.0} for part in parts}
    found = gpus.gpm((whole, *parts, ANOTHER), read | {"GPU-b": {"sm_active": 2.0}})
    assert (found.status, found.advice) == ("ok", "")
    assert found.detail == "GPU 1, 2 instances of GPU 0: SM, tensor and DRAM activity"
    assert gpus.gpm((whole, *parts), {"MIG-0": read["MIG-0"]}).detail == (
        "1 instance of GPU 0: SM, tensor and DRAM activity; 1 instance of GPU 0: no counters have arrived yet"
    )


def test_the_gpus_that_answer_are_named_once_a_kind() -> None:
    part = structs.replace(H100, uuid="MIG-0", parent="GPU-a", name="H100 MIG 7g.80gb")
    assert gpus.nvml((H100, part, ANOTHER), "").detail == (
        "GPU 0, 1: NVIDIA H100 80GB HBM3; 1 instance of GPU 0: H100 MIG 7g.80gb; driver 580.65"
    )
    lost = structs.replace(ANOTHER, reason="lost: fell off the bus")
    assert gpus.nvml((H100, lost), "").detail == "GPU 1: lost: fell off the bus; GPU 0: NVIDIA H100 80GB HBM3"


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
