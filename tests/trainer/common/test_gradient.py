from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hoptui_trainer.common import gradient
from hoptui_trainer.common.errors import ShardMemoryError
from hoptui_trainer.common.gradient import Pieces
from hoptui_trainer.common.ranks import ALONE, RankGroup

CPU = torch.device("cpu")


class Problem:
    """A linear regression whose pieces can be told to run out of memory."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.x, self.y = torch.randn(24, 3), torch.randn(24)
        self.model = nn.Linear(3, 1)
        self.sizes: list[int] = []
        self.fails: Callable[[int], bool] = lambda size: False
        self.fails_in_backward = False

    def clear(self) -> None:
        self.model.zero_grad(set_to_none=True)

    def piece(self, part: slice) -> Tensor:
        size = part.stop - part.start
        self.sizes.append(size)
        if self.fails(size) and not self.fails_in_backward:
            raise torch.OutOfMemoryError("injected")
        loss: Tensor = (self.model(self.x[part])[:, 0] - self.y[part]).square().sum() / len(self.x)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.fails(size):
            raise torch.OutOfMemoryError("injected")
        return loss.detach()

    def gradient(self) -> Tensor:
        found: Tensor | None = self.model.weight.grad
        assert found is not None
        return found.clone()


def _pieces(micro_batch: int, ranks: RankGroup = ALONE, told: list[tuple[int, int]] | None = None) -> Pieces:
    told = [] if told is None else told
    return Pieces(micro_batch, CPU, ranks, lambda before, after: told.append((before, after)))


@pytest.mark.parametrize("micro_batch", [1, 5, 8, 24, 100])
def test_the_gradient_does_not_depend_on_the_micro_batch(micro_batch: int) -> None:
    whole, cut = Problem(), Problem()
    loss = _pieces(24).compute(24, whole.piece, whole.clear)
    assert torch.allclose(_pieces(micro_batch).compute(24, cut.piece, cut.clear), loss, atol=1e-6)
    assert torch.allclose(cut.gradient(), whole.gradient(), atol=1e-6)
    assert max(cut.sizes) <= micro_batch


@pytest.mark.parametrize("in_backward", [False, True])
def test_the_same_batch_is_computed_in_smaller_pieces_when_memory_runs_out(in_backward: bool) -> None:
    told: list[tuple[int, int]] = []
    whole, short = Problem(), Problem()
    _pieces(24).compute(24, whole.piece, whole.clear)
    short.fails = lambda size: size > 6
    short.fails_in_backward = in_backward
    pieces = _pieces(100, told=told)
    pieces.compute(24, short.piece, short.clear)
    assert torch.allclose(short.gradient(), whole.gradient(), atol=1e-6)
    assert told == [(24, 12), (12, 6)]
    assert (pieces.micro_batch, pieces.ceiling) == (6, 12)


def test_memory_that_runs_out_in_a_later_piece_leaves_nothing_of_the_first_behind() -> None:
    whole, short = Problem(), Problem()
    _pieces(24).compute(24, whole.piece, whole.clear)
    short.fails = lambda size: size == 12 and len(short.sizes) == 2
    _pieces(12).compute(24, short.piece, short.clear)
    assert torch.allclose(short.gradient(), whole.gradient(), atol=1e-6)


def test_all_ranks_go_smaller_when_another_one_ran_out_of_memory() -> None:
    class Other(RankGroup):
        votes = iter([False, True])

        def all(self, ok: bool) -> bool:
            return ok and next(self.votes)

    problem = Problem()
    pieces = _pieces(24, Other(0, 2, 0, 2))
    pieces.compute(24, problem.piece, problem.clear)
    assert pieces.micro_batch == 12
    assert problem.sizes == [24, 12, 12]


def test_ranks_with_parts_of_different_sizes_go_to_the_same_size() -> None:
    class Larger(RankGroup):
        def all(self, ok: bool) -> bool:
            return ok

        def gather(self, value: object) -> list[object]:
            return [value, 6]  # the other rank has a sample more

    problem = Problem()
    problem.fails = lambda size: size > 3
    told: list[tuple[int, int]] = []
    pieces = _pieces(100, Larger(0, 2, 0, 2), told)
    pieces.compute(5, problem.piece, problem.clear)
    assert (pieces.micro_batch, pieces.ceiling, told) == (3, 6, [(6, 3)])


def test_a_size_that_was_too_much_is_refused_until_there_is_more_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = 10_000
    monkeypatch.setattr(gradient, "limit_bytes", lambda *_: room)
    problem = Problem()
    problem.fails = lambda size: size > 6
    pieces = _pieces(24)
    pieces.compute(24, problem.piece, problem.clear)
    assert (pieces.micro_batch, pieces.ceiling) == (6, 12)
    for size in (12, 13, 24):
        with pytest.raises(MemoryError, match="memory ran out with 12 at once before: at most 11"):
            pieces.resize(size)
    pieces.resize(11)
    assert pieces.micro_batch == 11
    room = 12_000  # another process has left
    pieces.resize(24)
    assert (pieces.micro_batch, pieces.ceiling) == (24, None)
    pieces.too_much(12)
    pieces.forget()
    pieces.micro_batch = 1
    pieces.resize(24)
    assert pieces.micro_batch == 24


def test_to_go_back_to_what_is_in_use_is_never_refused() -> None:
    pieces = _pieces(8)
    pieces.too_much(8)
    pieces.resize(8)
    pieces.resize(4)
    with pytest.raises(MemoryError):
        pieces.resize(8)


def test_single_samples_that_do_not_fit_end_the_run() -> None:
    problem = Problem()
    problem.fails = lambda size: True
    with pytest.raises(torch.OutOfMemoryError, match="injected"):
        _pieces(2).compute(24, problem.piece, problem.clear)
    assert problem.model.weight.grad is None


def test_another_error_is_not_taken_for_a_lack_of_memory() -> None:
    def broken(part: slice) -> Tensor:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        _pieces(2).compute(4, broken, lambda: None)


def test_where_other_ranks_wait_in_a_piece_the_run_ends() -> None:
    """Not by an Exception: a knob that ran into it would count as refused, on this rank alone."""
    problem = Problem()
    problem.fails = lambda size: size > 4
    pieces = Pieces(8, CPU, ALONE, lambda before, now: pytest.fail("others would not follow"), meets=True)
    with pytest.raises(ShardMemoryError, match="--micro-batch"):
        pieces.compute(24, problem.piece, problem.clear)
    assert not issubclass(ShardMemoryError, Exception)
    pieces.resize(4)
    assert float(pieces.compute(24, problem.piece, problem.clear)) > 0
