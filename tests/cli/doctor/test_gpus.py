from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import structs

from hoptui.cli.doctor import Check, gpus
from hoptui.domain.facts import fact
from hoptui.presentation import sentences
from hoptui.telemetry.gpm import IN_MIG_MODE
from tests.cli.doctor.conftest import ANOTHER, H100, host, listed
from tests.golden import Golden


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


OLD = fact("gpm.needs_hopper", architecture="Ampere")
NEEDS_DRIVER = fact("gpm.needs_driver")


def test_no_kernel_module(tmp_path: Path, golden: Golden) -> None:
    none = gpus.driver((), tmp_path)
    assert gpus.driver((H100,), tmp_path).status == "ok"  # a sandbox hides the file, NVML works
    device = tmp_path / "sys/bus/pci/devices/0000:17:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    assert gpus.driver((), tmp_path).advice.startswith("modprobe nvidia")
    golden(listed(none, gpus.driver((), tmp_path)), normalize={re.escape(str(tmp_path)): ""})


def test_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    root = host(tmp_path)
    found = [gpus.permissions((), root)]
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (root / "dev" / name).touch()
    found.append(gpus.permissions((H100,), root))
    assert found[-1].detail.startswith("3 ")
    refused = structs.replace(H100, missing_because={"gpm": fact("reading.refused")})
    found.append(gpus.permissions((refused,), root))
    assert found[-1].detail == f"GPU 0: {sentences.sentence(fact('reading.refused'))}"
    monkeypatch.setattr("os.access", lambda path, mode: path.name != "nvidia0")
    found.append(gpus.permissions((), root))
    assert found[-1].detail.startswith(f"{root / 'dev/nvidia0'}: ")
    assert [check.status for check in found] == ["ok", "ok", "warning", "warning"]
    golden(listed(*found), normalize={re.escape(str(root)): ""})


def test_counters(golden: Golden) -> None:
    old = structs.replace(ANOTHER, missing_because={"gpm": OLD})
    found = gpus.gpm((H100, old), {"GPU-a": {"sm_active": 1.0}})
    assert (found.status, found.detail.endswith(f"; GPU 1: {sentences.sentence(OLD)}")) == ("warning", True)
    barred = structs.replace(H100, missing_because={"gpm": fact("gpm.failed", nvml=4, error="No permission")})
    assert gpus.gpm((barred,), {}).advice == gpus.PROFILING
    none = gpus.gpm((H100, ANOTHER), {})
    assert none.detail.startswith("GPU 0, 1: ")
    golden(listed(found, gpus.gpm((barred,), {}), none))


def test_what_to_do_about_missing_counters_goes_by_why_they_are(golden: Golden) -> None:
    advice = {}
    for why in (OLD, NEEDS_DRIVER, IN_MIG_MODE, fact("gpm.failed", nvml=999, error="Unknown Error")):
        lacking = structs.replace(H100, missing_because={"gpm": why})
        advice[sentences.sentence(why)] = gpus.gpm((lacking,), {}).advice
    advice[""] = gpus.gpm((H100,), {}).advice
    assert len(set(advice.values())) == 5
    assert [why for why, what in advice.items() if "Hopper" in what] == [sentences.sentence(OLD)]
    assert "nvidia-smi mig" in advice[sentences.sentence(IN_MIG_MODE)]
    golden("".join(f"{why or 'no reason'}\n    {what}\n" for why, what in advice.items()))
    both = (
        structs.replace(H100, missing_because={"gpm": NEEDS_DRIVER}),
        structs.replace(ANOTHER, missing_because={"gpm": IN_MIG_MODE}),
    )
    known = [advice[sentences.sentence(why)] for why in (NEEDS_DRIVER, IN_MIG_MODE)]
    assert gpus.gpm(both, {}).advice == "; ".join(known)


def test_instances_have_the_counters_of_a_gpu_in_mig_mode(golden: Golden) -> None:
    whole = structs.replace(H100, missing_because={"gpm": IN_MIG_MODE})
    parts = tuple(
        structs.replace(H100, uuid=f"MIG-{i}", parent="GPU-a", name="H100 MIG 1g.10gb") for i in range(2)
    )
    read = {part.uuid: {"sm_active": 1.0} for part in parts}
    found = gpus.gpm((whole, *parts, ANOTHER), read | {"GPU-b": {"sm_active": 2.0}})
    assert (found.status, found.advice) == ("ok", "")
    some = gpus.gpm((whole, *parts), {"MIG-0": read["MIG-0"]})
    golden(listed(found, some))


def test_the_gpus_that_answer_are_named_once_a_kind(golden: Golden) -> None:
    part = structs.replace(H100, uuid="MIG-0", parent="GPU-a", name="H100 MIG 7g.80gb")
    whole = gpus.nvml((H100, part, ANOTHER), None)
    lost = structs.replace(ANOTHER, problem=fact("recorded", text="lost: fell off the bus"))
    golden(listed(whole, gpus.nvml((H100, lost), None)))


def test_what_cuda_would_see(golden: Golden) -> None:
    every = {
        "CUDA_VISIBLE_DEVICES": (
            ("1,0", "ok", ": GPU 0, 1"),
            ("GPU-b", "ok", ": GPU 1"),
            ("0,7,1", "warning", "'7'"),
            ("0,0", "warning", "1 of 2"),
            ("GPU-", "warning", "0 of 1"),
            ("-1", "warning", "no GPU"),
            ("", "warning", "no GPU"),
        ),
        "SLURM_JOB_GPUS": (("0,1", "ok", "SLURM_JOB_GPUS=0,1"),),
    }
    text = listed(gpus.cuda_visible((H100, ANOTHER), {}))
    for name, cases in every.items():
        for value, status, part in cases:
            found = gpus.cuda_visible((H100, ANOTHER), {name: value})
            assert found.status == status
            assert part in found.detail
            assert found.advice or status == "ok"
            text += f"\n{name}={value}\n{listed(found)}"
    golden(text)


def test_gpus_of_several_kinds() -> None:
    other = structs.replace(ANOTHER, name="NVIDIA A100")
    assert gpus.cuda_visible((H100, other), {}).status == "warning"
    assert gpus.cuda_visible((H100, other), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).status == "ok"
    by_index = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert gpus.cuda_visible((H100, other), by_index).status == "warning"
    assert gpus.cuda_visible((H100, other), {"CUDA_VISIBLE_DEVICES": "GPU-b"}).detail.endswith(": GPU 1")
    assert gpus.cuda_visible((), {"CUDA_VISIBLE_DEVICES": "0"}).status == "ok"
