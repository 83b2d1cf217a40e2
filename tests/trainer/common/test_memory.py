from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from hoptui_trainer.common import memory
from hoptui_trainer.common.device import free_bytes
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.memory import (
    SizeTrial,
    choose_micro_batch,
    greatest_bytes,
    insist,
    is_out_of_memory,
    on_all_ranks,
    peak_bytes,
    predicted_peak,
    pressure,
    release,
    reset_peak,
    set_peak_aside,
    shortage,
)
from hoptui_trainer.common.memory_budget import USABLE, limit_bytes
from hoptui_trainer.common.ranks import RankGroup

CPU = torch.device("cpu")
GB = 10**9


class Machine:
    """A step takes `fixed` bytes and `each` bytes a sample; its speed rises with the size up to `knee`
    samples."""

    def __init__(self, fixed: int, each: int, knee: int, breaks_at: int | None = None) -> None:
        self.fixed, self.each, self.knee, self.breaks_at = fixed, each, knee, breaks_at
        self.tried: list[int] = []

    def step(self, size: int) -> SizeTrial | None:
        self.tried.append(size)
        if self.breaks_at is not None and size >= self.breaks_at:
            return None
        return SizeTrial(size, self.fixed + self.each * size, 0.01 + 0.001 * max(size, self.knee))


def test_it_grows_while_growing_is_faster_and_stops_at_the_knee() -> None:
    machine = Machine(fixed=GB, each=GB // 100, knee=8)
    size, trials = choose_micro_batch(machine.step, most=1024, limit=80 * GB)
    assert trials[0].size == 1
    faster = [a.size / a.seconds < b.size / b.seconds for a, b in pairwise(trials)]
    assert all(faster)
    assert machine.tried[-1] in (size, 2 * size)
    assert size >= machine.knee


def test_a_size_that_is_predicted_not_to_fit_is_never_tried() -> None:
    machine = Machine(fixed=10 * GB, each=GB, knee=1 << 20)
    size, _ = choose_micro_batch(machine.step, most=1024, limit=72 * GB)
    assert size == 32  # 42 GB; 64 would be 74 GB
    assert machine.tried == [1, 2, 4, 8, 16, 32]


def test_a_size_that_did_not_fit_ends_the_search() -> None:
    machine = Machine(fixed=GB, each=1, knee=1 << 20, breaks_at=16)
    assert choose_micro_batch(machine.step, most=1024, limit=80 * GB)[0] == 8


def test_the_most_that_is_allowed_is_not_exceeded() -> None:
    machine = Machine(fixed=GB, each=1, knee=1 << 20)
    assert choose_micro_batch(machine.step, most=12, limit=80 * GB)[0] == 8


def test_nothing_fits() -> None:
    machine = Machine(fixed=GB, each=1, knee=1, breaks_at=1)
    with pytest.raises(MemoryError, match="a micro-batch of 1 does not fit"):
        choose_micro_batch(machine.step, most=8, limit=80 * GB)


def test_the_prediction_is_a_straight_line() -> None:
    trials = [SizeTrial(n, 5 * GB + n * GB, 1.0) for n in (1, 2, 4)]
    assert predicted_peak(trials, 8) == pytest.approx(13 * GB)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("shapes do not match"), False),
    ],
)
def test_what_is_no_lack_of_memory_is_not_taken_for_one(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "memory ran out"),
        ("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`", "memory ran out"),
        ("4 images do not fit into the memory at once", "4 images do not fit into the memory at once"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB", "2.00 GiB"),
        (
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 201326592 bytes. Er",
            "201 MB",
        ),
    ],
)
def test_a_shortage_is_told_without_the_words_of_an_allocator(text: str, told: str) -> None:
    found = shortage(RuntimeError(text))
    assert told in found
    assert not any(word in found for word in ("Allocator", "GPU 0", "Compile"))


def test_an_allocation_that_fails_is_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert is_out_of_memory(caught.value)


def test_the_peak_of_the_process_is_measured() -> None:
    reset_peak(CPU)
    before = peak_bytes(CPU)
    if before is None:
        pytest.skip("this kernel does not tell the peak")
    block = torch.ones(64 << 20, dtype=torch.uint8)
    after = peak_bytes(CPU)
    assert after is not None
    assert after - before > 48 << 20
    del block
    release(CPU)
    assert limit_bytes(CPU, 1) > 0


def test_a_measurement_aside_does_not_make_a_run_forget_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"now": 5}
    monkeypatch.setattr(memory, "peak_bytes", lambda device: peaks["now"])
    monkeypatch.setattr(memory, "_restart_peak", lambda device: peaks.update(now=1))
    reset_peak(CPU)
    assert greatest_bytes(CPU) == 1
    peaks["now"] = 9
    set_peak_aside(CPU)
    peaks["now"] = 3
    set_peak_aside(CPU)
    assert greatest_bytes(CPU) == 9
    peaks["now"] = 12
    assert greatest_bytes(CPU) == 12
    reset_peak(CPU)
    assert greatest_bytes(CPU) == 1


@pytest.mark.parametrize(
    ("fraction", "free", "within"),
    [
        (1.0, 50, 50),  # as much as other processes leave
        (0.5, 50, 30),  # of 80 GB it may have 40 and has 10
        (0.1, 50, 0),  # it has more than it may have
        (0.5, 20, 20),
    ],
)
def test_a_process_plans_with_its_part_of_the_gpu(
    fraction: float, free: int, within: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free * GB, 80 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 10 * GB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 4 * GB)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: fraction)
    assert free_bytes(gpu, 8) == (within + 10 - 4) * GB  # whatever other ranks there are: it is its own
    assert limit_bytes(gpu, 8) == int(USABLE * (within + 10) * GB)


def test_what_found_no_memory_is_done_once_more_and_other_faults_are_not() -> None:
    errors: list[Exception] = []

    def work(value: int, *, more: int) -> int:
        if errors:
            raise errors.pop()
        return value + more

    assert insist(CPU, work, 1, more=2) == 3
    errors = [torch.OutOfMemoryError("made up")]
    assert insist(CPU, work, 1, more=2) == 3
    errors = [MemoryError(), torch.OutOfMemoryError("made up")]
    with pytest.raises(MemoryError):
        insist(CPU, work, 1, more=2)
    errors = [RuntimeError("made up")]
    with pytest.raises(RuntimeError, match="made up"):
        insist(CPU, work, 1, more=2)


def test_while_a_graph_is_captured_nothing_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def work() -> None:
        nonlocal calls
        calls += 1
        raise torch.OutOfMemoryError("made up")

    monkeypatch.setattr(memory, "release", lambda _: None)
    for capturing, times in ((True, 1), (False, 2)):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda capturing=capturing: capturing)
        calls = 0
        with pytest.raises(torch.OutOfMemoryError):
            insist(torch.device("cuda"), work)
        assert calls == times


class WithAnother(RankGroup):
    """This rank beside one that says `other` wherever everybody is asked."""

    def __init__(self, other: object) -> None:
        super().__init__(0, 2, 0, 2)
        object.__setattr__(self, "other", other)

    def gather(self, value: object) -> list[Any]:
        return [value, self.other]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("own", "other", "raised"),
    [
        (None, None, None),
        (torch.OutOfMemoryError("made up"), None, MemoryError),
        (None, (MemoryError, "MemoryError('made up')"), MemoryError),
        (None, (UsageError, "--precision fp8: made up"), UsageError),
        (None, (RuntimeError, "ValueError('made up')"), RuntimeError),
        (ValueError("made up"), (MemoryError, "MemoryError('other')"), ValueError),
        (UsageError("--precision fp8: made up"), (MemoryError, "MemoryError('other')"), UsageError),
    ],
)
def test_what_fails_on_one_rank_fails_on_all_after_all_were_asked(
    own: Exception | None, other: object, raised: type[Exception] | None
) -> None:
    ranks = WithAnother(other)

    def work() -> int:
        if own is not None:
            raise own
        return 5

    if raised is None:
        assert on_all_ranks(ranks, CPU, work) == 5
    else:
        with pytest.raises(raised, match="made up"):
            on_all_ranks(ranks, CPU, work)


def test_how_often_cached_memory_was_given_back_is_told_of_a_gpu_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"num_alloc_retries": 3, "num_ooms": 0})
    assert pressure(torch.device("cuda", 0)) == {"alloc_retries": 3}
    assert pressure(CPU) == {}
