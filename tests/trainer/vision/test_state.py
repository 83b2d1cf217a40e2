from __future__ import annotations

import pytest
import torch

from hoptui_trainer.common import supervised_state
from hoptui_trainer.common.ranks import ALONE, RankGroup
from hoptui_trainer.vision import images
from hoptui_trainer.vision import state as states
from hoptui_trainer.vision.config import preset_config
from hoptui_trainer.vision.images import digits, synthetic
from hoptui_trainer.vision.state import VisionState

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tiny_state() -> VisionState:
    return VisionState(preset_config("tiny"), 0, CPU, ALONE, digits())


def test_a_trial_measures_a_real_pass_and_leaves_nothing_behind(tiny_state: VisionState) -> None:
    before = {name: value.clone() for name, value in tiny_state.model.state_dict().items()}
    generator = torch.get_rng_state()
    trial = tiny_state.dry_run.measure(24)
    assert trial is not None
    assert trial.size == 24
    assert trial.seconds > 0
    assert trial.peak_bytes > 1 << 20
    assert not tiny_state.gradient.flat.any()
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(before[name], value) for name, value in tiny_state.model.state_dict().items())


def test_a_trial_that_does_not_fit_is_none_and_other_faults_are_raised(
    tiny_state: VisionState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(error: Exception) -> None:
        def losses(*_: object) -> torch.Tensor:
            raise error

        monkeypatch.setattr(tiny_state, "losses", losses)

    failing(torch.OutOfMemoryError("made up"))
    assert tiny_state.dry_run.measure(8) is None
    failing(RuntimeError("made up"))
    with pytest.raises(RuntimeError, match="made up"):
        tiny_state.dry_run.measure(8)


def test_a_batch_without_an_image_for_every_rank_is_refused() -> None:
    config = preset_config("tiny")
    config.batch_size = 1
    with pytest.raises(ValueError, match="batch_size = 1: 2 ranks need an image each"):
        config.check(2)
    config.frames, config.batch_size = 2, 2
    config.check(2)


def test_only_matrices_decay(tiny_state: VisionState) -> None:
    matrices, others = tiny_state.optimizer.param_groups
    assert all(parameter.ndim == 2 for parameter in matrices["params"])
    assert (matrices["weight_decay"], others["weight_decay"]) == (0.05, 0.0)
    assert any(parameter is tiny_state.model.position for parameter in others["params"])
    counted = len(matrices["params"]) + len(others["params"])
    assert counted == len(list(tiny_state.model.parameters()))


def test_attention_is_chosen_before_compiling_and_again_for_another_number_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []

    def choose(
        shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, ranks: RankGroup, *, causal: bool
    ) -> str:
        assert not causal
        calls.append((shape, dtype))
        return f"attention in {dtype}"

    def compiled(function: object, mode: str) -> object:
        calls.append("compiled")
        return function

    monkeypatch.setattr(supervised_state, "choose_attention", choose)
    monkeypatch.setattr(states, "compiled", compiled)
    config = preset_config("tiny")
    config.micro_batch = 8
    state = VisionState(config, 0, CPU, ALONE, digits())
    state.config.checkpointing = True
    state.rebuild()
    state.config.precision = "bf16"
    state.rebuild()
    heads = (8, 4, 4, 16)
    assert calls == [(heads, torch.float32), *["compiled"] * 2, (heads, torch.bfloat16), "compiled"]
    assert state.notes == ["attention in torch.float32", "attention in torch.bfloat16"]


def test_images_of_more_patches_are_tried_in_smaller_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "POOL_BYTES", 1 << 14)

    def tried(size: int) -> tuple[int, int, int]:
        config = preset_config("tiny")
        config.image_size, config.batch_size = size, 1
        return VisionState(config, 0, CPU, ALONE, synthetic(size, CPU)).sizes[:3]

    assert tried(8) == (256, 64, 1024)
    assert tried(64) == (256, 64, 1024)  # 256 patches
    assert tried(128) == (51, 12, 204)  # 1,024
