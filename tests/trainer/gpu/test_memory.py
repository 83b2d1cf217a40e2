"""What is said of memory is true: forecasts against measured peaks, and micro-batches that are chosen by
them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from hoptui_trainer.common.memory import SizeTrial, predicted_peak, release
from hoptui_trainer.common.memory_budget import limit_bytes
from hoptui_trainer.ppo.memory import bytes_needed
from tests.trainer.gpu.small import iterate, lm_state, memory_limit, ppo_state, vision_state

MB = 1 << 20
FORECAST = 0.2
"""How far the forecast of a larger micro-batch's peak may be off: torch reserves memory in segments."""


def test_a_rollout_and_its_update_take_what_was_said(device: torch.device) -> None:
    """Pieces are small, so that it is the rollout that counts. cuBLAS has taken its 67 MB before."""
    iterate(ppo_state(device))
    sizes: dict[str, Any] = {"num_envs": 16_384, "rollout_len": 256, "minibatch_size": 16_384, "epochs": 1}
    before = torch.cuda.memory_allocated(device)
    state = ppo_state(device, **sizes)
    iterate(state)
    torch.cuda.reset_peak_memory_stats(device)
    iterate(state)
    taken = torch.cuda.max_memory_allocated(device) - before
    needed = bytes_needed(state.config, state.env.task, state.policy, "fp32")
    assert 0.5 * needed < taken < 1.25 * needed


def test_minibatches_are_cut_so_that_they_fit_by_two_measured_pieces(device: torch.device) -> None:
    """Four hidden layers of 4,096 units keep 64 KB or more of a sample: 4 GB of 65,536."""
    sizes: dict[str, Any] = {"num_envs": 1024, "rollout_len": 64, "minibatch_size": 65_536, "hidden": 4096}
    free = ppo_state(device, **sizes, grad_accum=0)
    assert free.grad_accum == 1
    assert [(note.split()[0], note.split()[-1]) for note in free.notes] == [("grad_accum", "1")]
    del free
    with memory_limit(3000 * MB):
        tight = ppo_state(device, **sizes, grad_accum=0)
        chosen = tight.grad_accum
        iterate(tight)
        assert tight.grad_accum == chosen  # what was measured was enough
        assert 2 <= chosen <= 8
        tight.config.num_envs = 512
        tight.fit()
        assert tight.grad_accum <= chosen


def test_the_peak_of_a_larger_micro_batch_of_tokens_is_foreseen(device: torch.device) -> None:
    state = lm_state(device, d_model=256, layers=4, batch_tokens=1 << 20)
    trials = [trial for size in (128, 256, 512, 1024) if (trial := state.dry_run.measure(size))]
    check_forecast(trials)


def test_the_peak_of_a_larger_micro_batch_of_images_is_foreseen(device: torch.device) -> None:
    state = vision_state(device, d_model=256, layers=4, image_size=64, batch_size=1 << 14)
    trials = [trial for size in (128, 256, 512, 1024) if (trial := state.dry_run.measure(size))]
    check_forecast(trials)


def check_forecast(trials: list[SizeTrial]) -> None:
    assert len(trials) == 4
    *known, largest = trials
    assert largest.peak_bytes > 1.5 * known[-1].peak_bytes
    assert predicted_peak(known, largest.size) == pytest.approx(largest.peak_bytes, rel=FORECAST)


def test_micro_batches_are_chosen_within_the_memory_there_is(device: torch.device) -> None:
    free = lm_state(device, micro_batch=0, batch_tokens=1 << 17)
    chosen = free.config.micro_batch
    assert re.match(rf"micro-batch .*: {chosen} \(", free.notes[-1])
    assert 1 <= chosen <= 2048
    del free
    with memory_limit(256 * MB):
        tight = lm_state(device, micro_batch=0, batch_tokens=1 << 17, d_model=256)
    assert 1 <= tight.config.micro_batch < chosen


def test_a_plan_never_takes_what_others_have(device: torch.device) -> None:
    release(device)
    whole = limit_bytes(device, 1)
    _, total = torch.cuda.mem_get_info(device)
    assert 0 < whole < total
    held = torch.empty(512 * MB, dtype=torch.uint8, device=device)
    assert limit_bytes(device, 1) == pytest.approx(whole, rel=0.01)  # what this process holds is its own
    del held


def test_checkpointing_takes_at_most_0_6_of_the_memory_of_a_large_policy(device: torch.device) -> None:
    state = ppo_state(
        device,
        "CartPole-NoVel",
        policy="h100-after",
        precision="bf16",
        num_envs=64,
        rollout_len=128,
        context=32,
        sequence_len=128,
        minibatch_size=8192,
    )
    peaks = []
    for checkpointing in (False, True):
        state.config.checkpointing = checkpointing
        state.rebuild()
        trial = state.update.measure(state.collector.stored, 64)
        assert trial is not None
        peaks.append(trial.peak_bytes)
    assert peaks[1] < 0.6 * peaks[0]
