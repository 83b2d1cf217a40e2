"""The GPUs of a node as put together from a sampler that may not touch all of them, without I/O."""

from __future__ import annotations

from msgspec import structs

from hoptui.daemon.handlers.samplers import NOT_LISTED, Hardware, changes
from hoptui.domain.devices import Devices, GpuInfo
from hoptui.node.driver_probe import DRIVER

A = GpuInfo(uuid="GPU-a", index=0, name="H100")
B = GpuInfo(uuid="GPU-b", index=1, name="H100")
C = GpuInfo(uuid="GPU-c", index=2, name="H100")
PART = GpuInfo(uuid="MIG-b1", index=1, name="H100 MIG 1g.10gb", parent="GPU-b")


def node(*gpus: GpuInfo) -> Hardware:
    hardware = Hardware()
    hardware.told(Devices(gpus=gpus))
    return hardware


def reasons(hardware: Hardware) -> dict[str, str]:
    return {gpu.uuid: gpu.reason for gpu in hardware.gpus}


def test_before_any_word_nothing_is_known() -> None:
    assert Hardware().gpus == ()
    assert "not answered yet" in Hardware().reason


def test_a_sampler_that_dies_before_it_lists_a_gpu_is_the_reason() -> None:
    hardware = Hardware()
    assert not hardware.troubled("")
    assert "not answered yet" in hardware.reason
    hardware.told(Devices(reason="the driver has not answered yet"))
    assert hardware.troubled("the GPU sampler ended (exit code 2)")
    assert hardware.reason == "the GPU sampler ended (exit code 2)"
    assert not hardware.troubled("the GPU sampler ended (exit code 2)"), "told once"
    hardware.told(Devices(reason="no NVIDIA driver"))
    assert not hardware.troubled("")
    assert hardware.reason == "no NVIDIA driver"


def test_gpus_that_are_known_stay_when_the_sampler_dies() -> None:
    hardware = node(A)
    assert not hardware.troubled("the GPU sampler ended (exit code 2)")
    assert (hardware.gpus, hardware.reason) == ((A,), "")


def test_a_gpu_that_is_left_alone_keeps_its_place_with_the_reason() -> None:
    hardware = node(A, B, PART, C)
    assert hardware.leave({1: 60.0})
    hardware.told(Devices(gpus=(A, C)))
    assert [gpu.uuid for gpu in hardware.gpus] == ["GPU-a", "GPU-b", "MIG-b1", "GPU-c"]
    told = reasons(hardware)
    assert told["GPU-a"] == told["GPU-c"] == ""
    assert (
        told["GPU-b"] == told["MIG-b1"] == "does not answer: a driver call hung; it is tried again after 60 s"
    )
    assert hardware.reason == ""
    assert not hardware.leave({1: 60.0})
    hardware.leave({})
    hardware.told(Devices(gpus=(A, B, C)))
    assert reasons(hardware) == {"GPU-a": "", "GPU-b": "", "GPU-c": ""}


def test_the_driver_as_a_whole() -> None:
    hardware = node(A, B)
    hardware.leave({DRIVER: 120.0})
    assert set(reasons(hardware).values()) == {
        "the driver does not answer: a call into it hung; it is asked again after 120 s"
    }
    assert hardware.reason.startswith("the driver does not answer")


def test_gpus_outlive_their_driver_and_the_list() -> None:
    hardware = node(A, B, PART)
    hardware.told(Devices(reason="no NVIDIA driver: its kernel module is not loaded"))
    assert set(reasons(hardware).values()) == {hardware.reason}
    hardware.told(Devices(gpus=(A,)))
    assert reasons(hardware) == {"GPU-a": "", "GPU-b": NOT_LISTED}  # the instance was taken apart


def test_what_changed_is_told_once() -> None:
    lost = structs.replace(A, reason="GPU is lost")
    assert changes((), (lost,)) == []
    assert changes((A, B), (lost, B)) == [(lost, "GPU is lost")]
    assert changes((lost,), (A,)) == [(A, "back: it can be read again")]
    longer = [structs.replace(A, reason=f"does not answer; again after {s} s") for s in (60, 120)]
    assert changes(longer[:1], longer[1:]) == []
