"""Micro-batches are tried out before they are used: what memory has no room for is refused, not run into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hoptui_trainer.common import dry_run
from hoptui_trainer.common import gradient as cutting
from hoptui_trainer.common.compilation import Shapes
from hoptui_trainer.common.dry_run import DryRun, Sizes
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.gradient import Pieces
from hoptui_trainer.common.memory import SizeTrial
from hoptui_trainer.common.ranks import ALONE, RankGroup
from tests.golden import Golden

CPU = torch.device("cpu")
GB = 10**9
SIZES = Sizes(rule=64, first=16, most=128, each=10, unit="tokens", samples="sequences")


class Machine:
    """A host with `room` bytes, in which a pass takes one GB and `each` bytes a sample; past it the kernel
    would kill."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, ranks: RankGroup = ALONE, *, room: int = 100 * GB
    ) -> None:
        self.room, self.each = room, GB
        self.tried: list[int] = []
        self.fails: Callable[[int], bool] = lambda size: False
        monkeypatch.setattr(dry_run, "limit_bytes", lambda *_: self.room)
        monkeypatch.setattr(cutting, "limit_bytes", lambda *_: self.room)
        monkeypatch.setattr(dry_run, "peak_bytes", lambda _: GB + self.each * self.tried[-1])
        self.weight = nn.Parameter(torch.ones(2))
        self.gradient = FlatGradient([self.weight])
        self.pieces = Pieces(1, CPU, ranks, lambda before, now: None)
        self.notes: list[str] = []
        self.dry_run = DryRun(self.run, self.gradient, Shapes(), self.pieces, ranks, self.notes)

    def run(self, size: int) -> None:
        assert GB + self.each * size <= self.room, "the kernel has killed this process"
        self.tried.append(size)
        self.gradient.flat.add_(size)
        if self.fails(size):
            raise torch.OutOfMemoryError("made up")


def test_what_fits_is_used_and_leaves_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert machine.dry_run.choose(50, 1000, SIZES) == machine.pieces.micro_batch == 50
    assert machine.tried == [1, 4, 16, 50]
    assert not machine.gradient.flat.any()
    assert machine.dry_run.choose(20, 1000, SIZES) == 20
    assert machine.dry_run.choose(80, 40, SIZES) == 40
    assert machine.tried == [1, 4, 16, 50]  # no more than what was proven


def test_what_is_predicted_not_to_fit_is_never_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.dry_run.choose(8, 1 << 20, SIZES)
    with pytest.raises(MemoryError, match=r"1048576 sequences do not fit .* at once: 100\.0 GB may be used"):
        machine.dry_run.choose(1 << 20, 1 << 20, SIZES)
    assert machine.tried == [1, 4, 8, 2, 8, 32]
    assert machine.pieces.micro_batch == 8
    tried = len(machine.tried)
    with pytest.raises(MemoryError, match="memory ran out with 1048576 at once before"):
        machine.dry_run.choose(1 << 20, 1 << 20, SIZES)
    assert len(machine.tried) == tried


def test_a_size_at_the_limit_is_approached_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    with pytest.raises(MemoryError, match="120 sequences do not fit"):
        machine.dry_run.choose(120, 1 << 20, SIZES)
    assert machine.tried == [1, 4, 16, 64]
    assert machine.dry_run.choose(99, 1 << 20, SIZES) == 99


def test_what_nobody_chose_is_as_large_as_the_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Machine(monkeypatch).dry_run.choose(0, 1000, SIZES) == 64
    assert Machine(monkeypatch).dry_run.choose(0, 10, SIZES) == 10
    tight = Machine(monkeypatch, room=20 * GB)
    assert tight.dry_run.choose(0, 1000, SIZES) == tight.pieces.micro_batch == 16
    none = Machine(monkeypatch, room=100 * GB)
    none.fails = lambda size: True
    with pytest.raises(MemoryError, match="not even one of the sequences"):
        none.dry_run.choose(0, 1000, SIZES)


def test_the_fastest_size_is_found_below_what_was_too_much(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    machine = Machine(monkeypatch, room=1000 * GB)

    def measure(size: int) -> SizeTrial:
        machine.tried.append(size)
        return SizeTrial(size, GB * size, 1.0 + 0.001 * size)

    monkeypatch.setattr(machine.dry_run, "measure", measure)
    assert machine.dry_run.fastest(1000, SIZES) == 128
    assert machine.tried == [16, 32, 64, 128]
    golden(f"{machine.notes[-1]}\n")
    machine.pieces.too_much(64)
    assert machine.dry_run.fastest(1000, SIZES) == 32
    assert machine.dry_run.fastest(20, SIZES) == 16


def test_a_rehearsal_that_fails_is_refused_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.dry_run.choose(8, 1000, SIZES)
    machine.fails = lambda size: size > 8
    machine.pieces.resize(24)
    with pytest.raises(MemoryError, match="24 images do not fit into the memory at once"):
        machine.dry_run.prove({24, 5}, "images")
    assert not machine.gradient.flat.any()
    machine.pieces.resize(8)
    assert machine.pieces.ceiling == 24
    machine.dry_run.forget()
    assert machine.pieces.ceiling is None
    machine.dry_run.prove({8, 3}, "images")
    assert machine.tried[-2:] == [8, 3]


def test_another_fault_is_not_taken_for_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)

    def broken(_: int) -> bool:
        raise RuntimeError("shape mismatch")

    machine.fails = broken
    with pytest.raises(RuntimeError, match="shape mismatch"):
        machine.dry_run.prove({4}, "images")


class Pair(RankGroup):
    """Another rank beside this one, which says `theirs` whenever all are asked.

    `trouble` is its error: what to raise, and the text.
    """

    theirs: Any = None
    trouble: tuple[type[Exception], str] | None = None

    def gather(self, value: object) -> list[Any]:
        if value is None or (isinstance(value, tuple) and isinstance(value[0], type)):
            return [value, self.trouble]
        return [value, value if self.theirs is None else self.theirs]


def test_ranks_refuse_and_choose_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(0, 2, 0, 2)
    machine = Machine(monkeypatch, pair)
    object.__setattr__(pair, "theirs", 16)
    assert machine.dry_run.choose(0, 1000, SIZES) == machine.pieces.micro_batch == 16
    with pytest.raises(MemoryError, match="16 images do not fit"):
        machine.dry_run.prove({8}, "images")  # they do here
    object.__setattr__(pair, "theirs", (0, "not even one sample fits there"))
    with pytest.raises(MemoryError, match="not even one sample fits there"):
        machine.dry_run.fastest(32, SIZES)


@pytest.mark.parametrize("own", [False, True])
def test_what_fails_on_one_rank_in_another_way_leaves_no_rank_waiting(
    monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """A compiler that finds its disk full, say: all are asked, and none goes on to what the others never come
    to."""
    asked: list[object] = []

    class Failing(Pair):
        def gather(self, value: object) -> list[Any]:
            asked.append(value)
            return super().gather(value)

    pair = Failing(0, 2, 0, 2)
    machine = Machine(monkeypatch, pair)

    def full(size: int) -> bool:
        raise OSError("No space left on device")

    if own:
        machine.fails = full
    else:
        object.__setattr__(pair, "trouble", (RuntimeError, "OSError('No space left on device')"))
    attempts = (
        lambda: machine.dry_run.prove({8}, "images"),
        lambda: machine.dry_run.fastest(32, SIZES),
        lambda: machine.dry_run.choose(8, 32, SIZES),
    )
    for attempt in attempts:
        asked.clear()
        with pytest.raises(OSError if own else RuntimeError, match="No space left"):
            attempt()
        assert [value is not None for value in asked] == [own]


def test_a_size_that_gives_way_is_the_largest_that_is_found_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One GB a sample and 100 GB: 64 samples, after 16 and before what would be too much."""
    machine = Machine(monkeypatch)
    assert machine.dry_run.choose(2048, 1 << 20, SIZES, give_way=True) == machine.pieces.micro_batch == 64
    assert machine.pieces.ceiling == 2048
    assert len(machine.notes) == 1
    finer = Machine(monkeypatch, room=40 * GB)
    assert finer.dry_run.choose(50, 1 << 20, SIZES, give_way=True) == 32
    assert finer.tried == [1, 4, 16, 32]
    broken = Machine(monkeypatch, room=100 * GB)
    broken.fails = lambda size: size > 8
    assert broken.dry_run.choose(50, 1 << 20, SIZES, give_way=True) == 8
    broken = Machine(monkeypatch, room=100 * GB)
    broken.fails = lambda size: True
    with pytest.raises(MemoryError, match="not even one of the sequences"):
        broken.dry_run.choose(50, 1 << 20, SIZES, give_way=True)
    assert not broken.notes


def test_the_most_that_fits_is_found_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert machine.dry_run.most(1 << 20) == 64
    assert machine.tried == [1, 4, 16, 64]
    assert machine.dry_run.choose(40, 1 << 20, SIZES) == 40
    assert machine.tried == [1, 4, 16, 64]
    assert Machine(monkeypatch).dry_run.most(50) == 50
    assert Machine(monkeypatch, room=40 * GB).dry_run.most(1 << 20) == 32
    broken = Machine(monkeypatch)
    broken.fails = lambda size: True
    assert broken.dry_run.most(50) == 0
    pair = Pair(0, 2, 0, 2)
    object.__setattr__(pair, "theirs", 16)
    assert Machine(monkeypatch, pair).dry_run.most(50) == 16  # the other rank has less
