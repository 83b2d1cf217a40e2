from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import hoptui
from hoptui.sdk.knobs import SetterError
from hoptui_trainer.common.meter import Meter
from hoptui_trainer.lm.declarations import declare
from hoptui_trainer.lm.state import LMState
from tests.run_state import run_state


def test_a_length_that_does_not_fit_leaves_micro_batches_as_they_are(
    make_state: Callable[..., LMState], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_state(micro_batch=3, seq_len=16, batch_tokens=16 * 12)
    run, prove_sizes = hoptui.connect("unit"), state.prove_sizes
    declare(run, state, Meter(torch.device("cpu")))
    knobs = run_state(run).declarations.knobs

    def found() -> list[int]:
        for knob in knobs.values():
            knob.refresh()
        names = ("seq_len", "micro_batch", "grad_accum")
        return [*(knobs[name].value for name in names), state.pieces.micro_batch]

    def short() -> None:
        if state.config.seq_len > 16:
            raise MemoryError("12 sequences do not fit")
        prove_sizes()

    with monkeypatch.context() as patched:
        patched.setattr(state, "prove_sizes", short)
        with pytest.raises(SetterError, match="do not fit"):
            knobs["seq_len"].set(32, "kim")
    assert found() == [16, 3, 4, 3]
    knobs["seq_len"].set(32, "kim")
    assert found() == [32, 1, 6, 1]
    knobs["seq_len"].set(16, "kim")
    assert found() == [16, 3, 4, 3]
    knobs["micro_batch"].set(2, "kim")
    knobs["seq_len"].set(8, "kim")
    assert found() == [8, 4, 6, 4]
