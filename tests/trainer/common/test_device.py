"""Each rank sees its own GPU alone, however a launcher says which there are."""

from __future__ import annotations

import os

import pytest
import torch

from hoptui_trainer.common.device import VISIBLE, choose_threads, own_gpu, take_gpu
from hoptui_trainer.common.errors import UsageError


@pytest.mark.parametrize(
    ("visible", "count", "local_rank", "own"),
    [
        (None, 8, 3, "3"),
        (None, 0, 1, None),  # no GPU at all
        (None, 1, 1, None),  # a container, or a cgroup of Slurm's, that lets each rank see its own
        ("5", 1, 1, None),  # so does the variable; or it is what this function has said before
        ("GPU-2f", 1, 1, None),
        ("MIG-7a", 1, 1, None),
        ("", 0, 0, None),
        ("-1", 0, 0, None),
        ("2,3", 2, 0, "2"),
        ("2,3", 2, 1, "3"),
        ("7, 5,6", 3, 1, "5"),
        ("0,1,9", 2, 1, "1"),  # CUDA stops at the first that is not there
        ("GPU-2f,GPU-9c", 2, 1, "GPU-9c"),
        ("MIG-7a,MIG-0d", 2, 0, "MIG-7a"),
    ],
)
def test_a_rank_takes_the_gpu_of_its_place(
    visible: str | None, count: int, local_rank: int, own: str | None
) -> None:
    assert own_gpu(visible, count, local_rank, local_world=2) == own


def test_fewer_gpus_than_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match="4 ranks on this machine and 2 GPUs: start one a GPU"):
        own_gpu("0,1", 2, 3, local_world=4)


class Driver:
    """A machine with GPUs as torch sees it: CUDA reads the variable when it is first used, and never
    again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpus: int, visible: str | None = None) -> None:
        self.gpus, self.shown, self.device = gpus, 0, -1
        if visible is None:
            monkeypatch.delenv(VISIBLE, raising=False)
        else:
            monkeypatch.setenv(VISIBLE, visible)
        monkeypatch.setattr(torch.cuda, "device_count", self.listed)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: self.use() > 0)
        monkeypatch.setattr(torch.cuda, "set_device", self.set_device)
        monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", self.use, raising=False)

    def listed(self) -> int:
        """By NVML, with the variable as it is now."""
        visible = os.environ.get(VISIBLE)
        if visible is not None and visible.startswith("MIG-"):
            return self.use()
        return self.gpus if visible is None else len(visible.split(","))

    def use(self) -> int:
        named = os.environ.get(VISIBLE, "")
        self.shown = self.shown or (1 if named.startswith("MIG-") else self.listed())
        return self.shown

    def set_device(self, index: int) -> None:
        assert index < self.shown
        self.device = index


@pytest.mark.parametrize(
    ("visible", "own"), [(None, "1"), ("4,6", "6"), ("GPU-2f,GPU-9c", "GPU-9c"), ("MIG-7a,MIG-0d", "MIG-0d")]
)
def test_the_process_sees_its_gpu_alone_also_when_it_asks_again(
    visible: str | None, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(monkeypatch, gpus=2, visible=visible)
    for _ in range(2):
        assert take_gpu(local_rank=1, local_world=2)
        assert (driver.device, driver.shown, os.environ[VISIBLE]) == (0, 1, own)
    driver.shown = 0  # a process that replaces this one
    assert take_gpu(local_rank=1, local_world=2)
    assert (driver.device, driver.shown, os.environ[VISIBLE]) == (0, 1, own)


def test_where_cuda_was_used_before_the_gpu_is_taken_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, gpus=2)
    driver.use()
    assert take_gpu(local_rank=1, local_world=2)
    assert driver.device == 1


def test_without_a_gpu_nothing_is_said_of_any(monkeypatch: pytest.MonkeyPatch) -> None:
    Driver(monkeypatch, gpus=0)
    assert not take_gpu(local_rank=1, local_world=2)
    assert VISIBLE not in os.environ


@pytest.mark.parametrize(
    ("samples", "width", "threads"),
    [(1, 64, 1), (2047, 64, 1), (4096, 64, 4), (512, 1024, 8), (4096, 32, 2), (1 << 20, 1024, 16)],
)
def test_threads_are_as_many_as_pay_off(
    samples: int, width: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16))
    assert choose_threads(samples, width) == threads
