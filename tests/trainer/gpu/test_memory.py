"""What is said of memory is true: forecasts against measured peaks, and micro-batches that are chosen by
them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hoptui_trainer.common.checkpoint import read_checkpoint
from hoptui_trainer.common.errors import ShortMemoryError
from hoptui_trainer.common.memory import SizeTrial, predicted_peak, release
from hoptui_trainer.common.memory_budget import limit_bytes, set_limit
from hoptui_trainer.common.restart import Restart
from hoptui_trainer.lm import train as training
from hoptui_trainer.lm.job import LMOptions
from hoptui_trainer.lm.state import LMState
from hoptui_trainer.ppo.memory import bytes_needed
from tests.trainer.gpu.small import fill, iterate, lm_state, memory_limit, ppo_state, vision_state

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


def test_an_automatic_minibatch_is_a_rollout_or_what_fits(device: torch.device) -> None:
    """65,536 samples of a network that keeps 64 KB or more of each: 4 GB."""
    sizes: dict[str, Any] = {"num_envs": 1024, "rollout_len": 64, "minibatch_size": 0, "hidden": 4096}
    free = ppo_state(device, **sizes, grad_accum=0)
    assert (free.config.minibatch_size, free.grad_accum) == (65_536, 1)
    del free
    with memory_limit(3000 * MB):
        tight = ppo_state(device, **sizes, grad_accum=0)
        chosen = tight.config.minibatch_size
        assert chosen.bit_count() == 1
        assert 4096 <= chosen < 65_536
        iterate(tight)
        assert tight.grad_accum <= 2  # it was to fit at once
    assert [note for note in tight.notes if note.startswith(f"minibatch_size chosen: {chosen:,}")]


def test_an_automatic_batch_of_tokens_is_all_or_what_fits(device: torch.device) -> None:
    free = lm_state(device, batch_tokens=0, micro_batch=0, d_model=256, heads=4)
    assert free.config.batch_tokens == 18_000 // 64 * 64
    del free
    with memory_limit(256 * MB):
        tight = lm_state(device, batch_tokens=0, micro_batch=0, d_model=256, heads=4)
        tight.prove_sizes()
    sequences = tight.config.batch_tokens // 64
    assert sequences.bit_count() == 1
    assert 1 <= sequences < 281
    assert 1 <= tight.config.micro_batch <= sequences


def test_an_automatic_batch_of_images_is_no_more_than_fits(device: torch.device) -> None:
    with memory_limit(1000 * MB):
        state = vision_state(device, batch_size=0, micro_batch=0, d_model=256, layers=4, image_size=64)
        state.prove_sizes()
    assert state.config.batch_size.bit_count() == 1
    assert 1 <= state.config.micro_batch <= state.config.batch_size < 65_536


def test_a_memory_limit_makes_more_pieces(device: torch.device) -> None:
    """As `--memory-limit` does: the GPU has more, and less is planned with."""
    sizes: dict[str, Any] = {"num_envs": 1024, "rollout_len": 64, "minibatch_size": 65_536, "hidden": 4096}
    release(device)
    held = torch.cuda.memory_allocated(device)
    set_limit(f"{(held + 3000 * MB) / 1e9:.3f}GB")
    try:
        state = ppo_state(device, **sizes, grad_accum=0)
        assert 2 <= state.grad_accum <= 8
        torch.cuda.reset_peak_memory_stats(device)
        iterate(state)
        assert torch.cuda.max_memory_reserved(device) < held + 4000 * MB
    finally:
        set_limit(None)


class Exhausted:
    """A run of the language model, all of whose GPU's memory is taken from its third iteration on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, **options: Any) -> None:
        monkeypatch.setenv("HOPTUI", "off")
        monkeypatch.setenv("_HOPTUI_RESTART", "")  # removed again afterwards
        monkeypatch.delenv("_HOPTUI_RESTART")
        self.begun: list[dict[str, int]] = []
        monkeypatch.setattr(Restart, "begin", lambda restart: self.begun.append(dict(restart._forced)))
        update, held = vars(training)["update"], list[torch.Tensor]()

        def short(state: LMState, *args: Any) -> Any:
            self.state = state
            if state.iteration == 2 and not held:
                release(state.device)
                held.extend(fill())
            return update(state, *args)

        monkeypatch.setattr(training, "update", short)
        corpus = folder / "corpus"
        corpus.mkdir()
        for number in range(60):
            (corpus / f"{number}.txt").write_text(" ".join(str(number * k % 997) for k in range(400)))
        sizes = {"iterations": 4, "evaluate_every": 0, "eval_tokens": 400, "device": "cuda", "preset": "tiny"}
        job = LMOptions(corpus=corpus, checkpoint_dir=folder / "ck", **{**sizes, **options})
        with memory_limit(512 * MB):
            try:
                training.train(job, {"compile": "off", "precision": "fp32"}, lambda _: None)
            finally:
                held.clear()


def test_where_nothing_makes_room_the_run_ends_with_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ShortMemoryError, match="--smaller-model-on-oom"):
        Exhausted(monkeypatch, tmp_path)
    assert read_checkpoint(tmp_path / "ck", "lm")["iteration"] == 2


def test_with_consent_a_smaller_model_goes_on_from_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = Exhausted(monkeypatch, tmp_path, smaller_model_on_oom=True)
    assert case.begun == [{"d_model": 32, "heads": 1}]
    assert case.state.own_checkpointing  # was tried before
    assert read_checkpoint(tmp_path / "ck", "lm")["config"]["checkpointing"] is False


def test_a_new_process_has_no_cached_memory_to_give_back() -> None:
    """So nothing is gained by `empty_cache` at its start."""
    script = """
import torch
before = torch.cuda.mem_get_info()[0]
cached = torch.cuda.memory_reserved()
torch.cuda.empty_cache()
print(cached, torch.cuda.mem_get_info()[0] - before)
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    cached, gained = map(int, told.stdout.split())
    assert cached == 0
    assert gained < 4 * MB  # others may use the GPU
