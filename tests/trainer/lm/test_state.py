from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hoptui_trainer.common import supervised_state
from hoptui_trainer.common.batch import largest_share, pieces
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.phases import NO_CLOCK
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.lm import state as states
from hoptui_trainer.lm.state import LMState
from hoptui_trainer.lm.update import update
from tests.trainer.lm.conftest import small_config

Make = Callable[..., LMState]


def through_a_file(saved: dict[str, Any]) -> dict[str, Any]:
    content = io.BytesIO()
    torch.save(saved, content)
    content.seek(0)
    loaded: dict[str, Any] = torch.load(content, weights_only=True)
    return loaded


def weights(state: LMState) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in state.model.parameters()])


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_resumed_run_is_bit_for_bit_the_one_that_was_not_interrupted(
    make_state: Make, precision: str
) -> None:
    whole, half = make_state(precision=precision), make_state(precision=precision)
    for _ in range(3):
        update(whole, 1e-2, NO_CLOCK)
        update(half, 1e-2, NO_CLOCK)
    half.evaluations.add(half.evaluate(), half.iteration)
    rest = make_state(seed=0, precision=precision)
    assert rest.load_state_dict(through_a_file(half.state_dict()))
    for _ in range(3):
        update(whole, 1e-2, NO_CLOCK)
        update(rest, 1e-2, NO_CLOCK)
    assert torch.equal(weights(rest), weights(whole))
    assert rest.position == whole.position == 6 * 128
    assert rest.evaluations.state_dict() == half.evaluations.state_dict()
    assert rest.evaluations.best.keys() == {"val_loss", "val_bpb"}


def test_the_order_of_texts_survives_another_length(make_state: Make) -> None:
    state = make_state(seq_len=16)
    resumed = make_state(seq_len=32)
    assert resumed.load_state_dict(through_a_file(state.state_dict()))
    one, other = state.sampler.take(640, 4, 16), resumed.sampler.take(640, 2, 32)
    assert torch.equal(one[0].flatten(), other[0].flatten())


def test_a_model_of_another_shape_goes_on_with_new_weights(make_state: Make) -> None:
    state = make_state()
    update(state, 1e-2, NO_CLOCK)
    state.iteration = 7
    larger = make_state(d_model=32)
    before = weights(larger).clone()
    assert not larger.load_state_dict(through_a_file(state.state_dict()))
    assert torch.equal(weights(larger), before)
    assert (larger.iteration, larger.born, larger.position) == (7, 7, 128)
    assert larger.sampler.block == state.sampler.block


def test_a_deeper_model_keeps_the_weights_that_fit(make_state: Make) -> None:
    state = make_state()
    update(state, 1e-2, NO_CLOCK)
    deeper = make_state(layers=3)
    before = {name: value.clone() for name, value in deeper.model.named_parameters()}
    assert not deeper.load_state_dict(through_a_file(state.state_dict()))
    theirs = dict(state.model.named_parameters())
    for name, value in deeper.model.named_parameters():
        assert torch.equal(value, theirs.get(name, before[name])), name
    assert deeper.kept == (state.parameters, deeper.parameters)
    steps = [moments["step"] for moments in deeper.optimizer.state.values()]
    assert not any(steps), "moments of other weights mean nothing"


def test_what_was_left_open_is_open_again_in_the_next_process(make_state: Make) -> None:
    state = make_state(micro_batch=0, compile="auto")
    assert (state.config.micro_batch, state.config.grad_accum) == (8, 1)  # all of the batch: it is small
    assert (state.config.precision, state.config.compile) == ("fp32", "off")
    held = state.state_dict()["config"]
    assert (held["micro_batch"], held["grad_accum"], held["precision"], held["compile"]) == (
        0,
        0,
        "auto",
        "auto",
    )
    state.automatic.names.clear()
    held = state.state_dict()["config"]
    assert (held["micro_batch"], held["precision"], held["compile"]) == (8, "fp32", "off")


def test_sizes_that_do_not_fit_together_change_nothing(make_state: Make) -> None:
    with pytest.raises(ValueError, match="heads"):
        make_state(d_model=18, heads=2)
    with pytest.raises(ValueError, match="batch_tokens = 16"):
        small_config(batch_tokens=16).check(2)
    state = make_state(micro_batch=4096)
    assert (state.config.micro_batch, state.pieces.micro_batch) == (8, 8)
    state.config.precision = "tf32"
    with pytest.raises(UsageError, match="--precision tf32"):
        state.rebuild()
    assert state.precision == "fp32"


def test_attention_is_chosen_again_when_its_shape_or_number_format_changes(
    make_state: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def choose(
        shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, ranks: RankGroup, *, causal: bool
    ) -> str:
        assert causal
        calls.append((shape, dtype))
        return f"attention: for {shape[2]}"

    def compiled(function: object, mode: str) -> object:
        calls.append("compiled")
        return function

    monkeypatch.setattr(supervised_state, "choose_attention", choose)
    monkeypatch.setattr(states, "compiled", compiled)
    state = make_state(micro_batch=4)
    assert calls == [((4, 2, 16, 8), torch.float32), *["compiled"] * 3]
    state.config.precision = "bf16"
    state.rebuild()
    assert calls[4:] == [((4, 2, 16, 8), torch.bfloat16), *["compiled"] * 3]
    state.config.checkpointing = True
    state.rebuild()
    state.config.batch_tokens = 64
    state.fit()
    assert calls[8:] == ["compiled"] * 3
    state.config.seq_len, state.config.micro_batch = 32, 2
    state.fit()
    assert calls[11:] == [((2, 2, 32, 8), torch.bfloat16)]
    assert state.notes == ["attention: for 16", "attention: for 16", "attention: for 32"]


@pytest.mark.slow
def test_a_size_that_was_computed_is_not_compiled_again(
    make_state: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = torch.compile

    def without_code(function: Any, *, fullgraph: bool, dynamic: bool, mode: str) -> Any:
        assert mode == "default"
        return real(function, backend="eager", fullgraph=fullgraph, dynamic=dynamic)

    monkeypatch.setattr(torch, "compile", without_code)
    torch.compiler.reset()
    state = make_state(micro_batch=4, compile="default")
    for _ in range(2):
        update(state, 1e-2, NO_CLOCK)
        state.evaluate()
    state.config.micro_batch = 3
    state.fit()
    update(state, 1e-2, NO_CLOCK)  # in pieces of 3 and 2, which are new
    update(state, 1e-2, NO_CLOCK)
    state.model.activations = torch.bfloat16  # which nobody announced
    with pytest.raises(RuntimeError, match="recompile"):
        update(state, 1e-2, NO_CLOCK)
    state.config.precision = "bf16"
    state.rebuild()
    update(state, 1e-2, NO_CLOCK)
    torch.compiler.reset()


def test_an_evaluation_gives_the_loss_in_nats_a_token_and_in_bits_a_byte(make_state: Make) -> None:
    state = make_state()
    first = state.evaluate()
    assert state.evaluate() == first
    # Tokens are bytes here, but for the ends of texts, which are no bytes.
    held_out = state.held_out
    assert first["val_loss"] * held_out.tokens == pytest.approx(
        first["val_bpb"] * math.log(2) * (held_out.bytes or 0)
    )
    for _ in range(5):
        update(state, 1e-2, NO_CLOCK)
    assert state.evaluate()["val_loss"] < first["val_loss"] - 0.3


@pytest.mark.parametrize(
    ("sequences", "world", "shares"),
    [(8, 1, [8]), (8, 3, [2, 3, 3]), (5, 2, [2, 3])],
)
def test_ranks_share_a_batch_without_gaps(sequences: int, world: int, shares: list[int]) -> None:
    config = small_config(batch_tokens=16 * sequences, micro_batch=2)
    parts = [config.share(rank, world) for rank in range(world)]
    assert [len(part) for part in parts] == shares
    assert [i for part in parts for i in part] == list(range(sequences))
    assert largest_share(config, world) == max(shares)
    assert pieces(config, world) == -(-max(shares) // 2)


def test_a_rehearsal_leaves_no_trace(make_state: Make) -> None:
    state, undisturbed = make_state(micro_batch=3), make_state(micro_batch=3)
    sizes = []
    forward = state.forward
    state.forward = lambda tokens: sizes.append(len(tokens)) or forward(tokens)  # type: ignore[func-returns-value]
    state.prove_sizes()
    assert sorted(sizes) == [2, 3]  # eight sequences in threes
    assert not state.gradient.flat.any()
    update(state, 1e-2, NO_CLOCK)
    update(undisturbed, 1e-2, NO_CLOCK)
    assert torch.equal(weights(state), weights(undisturbed))


def test_a_micro_batch_is_chosen_by_real_steps(make_state: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "FIRST_TOKENS", 32)
    state = make_state(batch_tokens=16 * 16)
    before = weights(state)
    size = state.dry_run.fastest(16, state.sizes)
    assert size in (2, 4, 8, 16)
    assert re.match(rf"micro-batch .*: {size} \(2: ", state.notes[-1])
    assert torch.equal(weights(state), before)
    assert not state.gradient.flat.any()

    def full(tokens: torch.Tensor) -> torch.Tensor:
        if len(tokens) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory (a test)")
        return forward(tokens)

    forward, state.forward = state.forward, full
    assert state.dry_run.fastest(16, state.sizes) == 1
    state.forward = lambda _: full(torch.zeros(2, 1))
    with pytest.raises(MemoryError, match="micro-batch of 1"):
        state.dry_run.fastest(16, state.sizes)
