"""The update is a function of the batch: not of how it is cut, compiled, or spread over processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hoptui_trainer.common.cuda_graphs import Graphs
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.phases import NO_CLOCK
from hoptui_trainer.common.piece_graphs import PieceGraphs
from hoptui_trainer.lm import state as states
from hoptui_trainer.lm.state import LMState
from hoptui_trainer.lm.update import update
from tests.trainer.common.test_cuda_graphs import Tape

Make = Callable[..., LMState]


def losses(state: LMState, steps: int = 6, lr: float = 1e-2) -> list[float]:
    return [float(update(state, lr, NO_CLOCK)["loss"]) for _ in range(steps)]


@pytest.mark.parametrize("micro_batch", [1, 3, 4])
def test_how_a_batch_is_cut_leaves_the_loss_curve_as_it_was(make_state: Make, micro_batch: int) -> None:
    whole = losses(make_state(micro_batch=8))
    assert whole[-1] < whole[0] - 0.5
    assert losses(make_state(micro_batch=micro_batch)) == pytest.approx(whole, abs=1e-5)


def test_a_change_in_the_middle_leaves_it_as_it_was(make_state: Make) -> None:
    whole = losses(make_state(micro_batch=8))
    state = make_state(micro_batch=8)
    found = losses(state, 3)
    state.config.micro_batch = 2
    state.fit()
    assert (state.pieces.micro_batch, state.config.grad_accum) == (2, 4)
    assert found + losses(state, 3) == pytest.approx(whole, abs=1e-5)


def test_other_lengths_and_batches_go_on_where_the_stream_was(make_state: Make) -> None:
    state = make_state()
    update(state, 0.0, NO_CLOCK)
    state.config.seq_len, state.config.batch_tokens = 32, 64
    state.fit()
    seen: list[Tensor] = []
    forward = state.forward
    state.forward = lambda tokens: seen.append(tokens) or forward(tokens)  # type: ignore[func-returns-value]
    update(state, 0.0, NO_CLOCK)
    expected, _ = state.sampler.take(128, 1, 64)
    assert torch.equal(torch.cat(seen).flatten(), expected[0])
    assert state.position == 128 + 64
    assert state.held_out.length == 32


def with_graphs(state: LMState) -> Tape:
    """Let small pieces of `state` become graphs, as on a GPU after compilation."""
    tape = Tape()
    state.compile_mode = "default"
    state.graphs = PieceGraphs(Graphs(tape), state.gradient, state.figures, state.FIGURES)
    return tape


def test_graphs_of_pieces_leave_the_loss_curve_as_it_was(make_state: Make) -> None:
    whole = losses(make_state(micro_batch=3), 4)
    state = make_state(micro_batch=3)
    tape = with_graphs(state)
    assert losses(state, 4) == pytest.approx(whole, abs=1e-5)
    assert (tape.captures, tape.forgotten) == (2, 0)  # of three sequences, and of the two that are left
    state.fit()
    assert tape.forgotten == 1


def test_large_pieces_and_eager_ones_are_no_graphs(make_state: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state(micro_batch=4)
    tape = with_graphs(state)
    state.compile_mode = "off"
    losses(state, 2)
    state.compile_mode = "default"
    monkeypatch.setattr(states, "FIRST_TOKENS", 3 * 16)
    losses(state, 2)
    assert tape.warm_ups == 0


def test_where_memory_runs_out_graphs_give_theirs_back(make_state: Make) -> None:
    state = make_state(micro_batch=8)
    tape = with_graphs(state)
    losses(state, 4)
    state.pieces.smaller(8)
    assert (tape.forgotten, state.pieces.micro_batch) == (1, 4)


class Full:
    """Memory that a forward or backward pass of more than two sequences does not fit into, from some step
    on."""

    def __init__(self, state: LMState, where: str) -> None:
        self.failures = 0
        forward = state.forward

        def run(tokens: Tensor) -> Tensor:
            hidden = forward(tokens)
            if len(tokens) <= 2 or state.position == 0:
                return hidden
            if where == "forward":
                self.fail()
            hidden.register_hook(lambda _: self.fail())  # type: ignore[no-untyped-call]
            return hidden

        state.forward = run

    def fail(self) -> None:
        self.failures += 1
        raise torch.OutOfMemoryError("CUDA out of memory (a test)")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_out_of_memory_computes_the_same_batch_in_smaller_pieces(make_state: Make, where: str) -> None:
    expected = losses(make_state(micro_batch=8))
    state = make_state(micro_batch=8)
    told: list[tuple[int, int]] = []
    state.on_smaller = lambda before, now: told.append((before, now))
    memory = Full(state, where)
    assert losses(state) == pytest.approx(expected, abs=1e-5)
    assert memory.failures == 2
    assert told == [(8, 4), (4, 2)]
    assert (state.config.micro_batch, state.config.grad_accum) == (2, 4)
    assert state.position == 6 * 128


def test_another_error_is_not_taken_for_a_lack_of_memory(make_state: Make) -> None:
    state = make_state()

    def broken(_: Tensor) -> Tensor:
        raise RuntimeError("shape mismatch")

    state.forward = broken
    with pytest.raises(RuntimeError, match="shape mismatch"):
        update(state, 1e-3, NO_CLOCK)


@pytest.mark.slow
def test_compiled_by_inductor_it_is_the_same(make_state: Make) -> None:
    torch.compiler.reset()
    fields: dict[str, Any] = {"layers": 1, "micro_batch": 8}
    plain, fast = make_state(**fields), make_state(**fields, compile="default")
    assert fast.compile_mode == "default"
    assert losses(fast, 3) == pytest.approx(losses(plain, 3), abs=1e-5)
    torch.testing.assert_close(fast.gradient.flat, plain.gradient.flat, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_the_bits_learn_the_same_roughly(make_state: Make, precision: str) -> None:
    expected, found = losses(make_state()), losses(make_state(precision=precision))
    assert found == pytest.approx(expected, abs=0.05)
    assert found[-1] < found[0] - 0.5


def test_a_rebuild_in_the_middle_keeps_what_was_learned(make_state: Make) -> None:
    expected = losses(make_state())
    state = make_state()
    found = losses(state, 3)
    state.config.precision, state.config.checkpointing = "bf16", True
    state.rebuild()
    assert (state.precision, state.model.activations) == ("bf16", torch.bfloat16)
    assert found + losses(state, 3) == pytest.approx(expected, abs=0.05)


def test_the_flat_gradient_is_clipped_as_torch_does() -> None:
    parameters = [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5, 2))]
    gradient = FlatGradient(parameters)
    for _ in range(2):  # added to in place
        torch.autograd.backward([(parameter**2).sum() for parameter in parameters])
    torch.testing.assert_close(gradient.flat, 4 * torch.cat([p.detach().flatten() for p in parameters]))
    twins = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    for twin, parameter in zip(twins, parameters, strict=True):
        assert parameter.grad is not None
        twin.grad = parameter.grad.clone()
    expected = nn.utils.clip_grad_norm_(twins, 1.5)
    torch.testing.assert_close(gradient.clip(0), expected)
    torch.testing.assert_close(gradient.clip(1.5), expected)
    torch.testing.assert_close(
        gradient.flat, torch.cat([t.grad.flatten() for t in twins if t.grad is not None])
    )
    gradient.clear()
    assert not any(parameter.grad.any() for parameter in parameters if parameter.grad is not None)
