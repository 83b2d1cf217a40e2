"""The smallest jobs of the three workloads on any device, and memory that runs out on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

import hoptui
from hoptui_trainer.common.cuda_graphs import CudaRecorder, Graphs, Recorder, Work
from hoptui_trainer.common.memory import release
from hoptui_trainer.common.phases import PhaseClock, phase_clock
from hoptui_trainer.common.ranks import ALONE
from hoptui_trainer.lm import state as lm
from hoptui_trainer.lm.config import LMConfig
from hoptui_trainer.lm.config import preset_config as lm_preset
from hoptui_trainer.lm.token_files import TokenStreams
from hoptui_trainer.ppo import state as ppo
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.envs.registry import find_task, make_env
from hoptui_trainer.ppo.train import learned
from hoptui_trainer.vision import state as vision
from hoptui_trainer.vision.config import preset_config as vision_preset
from hoptui_trainer.vision.images import synthetic

P = ParamSpec("P")
R = TypeVar("R")

MARGIN = 1 << 20
"""Bytes beyond what is reserved that are left when memory is short: less than any block that torch's
allocator asks for."""


def ppo_state(
    device: torch.device,
    env: str = "CartPole-v1",
    *,
    rollout_device: torch.device | None = None,
    **fields: Any,
) -> ppo.PPOState:
    """Eager and in fp32, unless `fields` of its config say otherwise."""
    sizes = {
        "num_envs": 32,
        "rollout_len": 8,
        "minibatch_size": 128,
        "epochs": 2,
        "lr": 3e-4,
        "grad_accum": 1,
    }
    exact = {"context": 4, "sequence_len": 8, "precision": "fp32", "compile": "off"}
    config = PPOConfig(**{**sizes, **exact, **fields})
    envs = make_env(find_task(env), config.num_envs, 0, rollout_device or device, staggered=True)
    return ppo.PPOState(envs, config, 0, device)


def iterate(state: ppo.PPOState, times: int = 1, clock: PhaseClock | None = None) -> dict[str, Tensor]:
    """Iterations of PPO as its loop makes them; the metrics of the last one."""
    clock = clock or phase_clock(hoptui.connect("gpu"), state.device)
    metrics: dict[str, Tensor] | None = {}
    for _ in range(times):
        metrics = learned(state, clock)
        assert metrics is not None, "memory ran out"
        state.epoch += state.config.epochs
        state.since += 1
    assert metrics is not None
    return metrics


def change(state: ppo.PPOState, **values: Any) -> None:
    """Turn knobs of PPO as the run would."""
    for name, value in values.items():
        setattr(state.config, name, value)
    state.turn()
    if values.keys() & {"num_envs", "rollout_len"}:
        state.fit()
    elif values.keys() & {"minibatch_size", "grad_accum"}:
        state.cut_anew()
    state.prepare()


def lm_state(device: torch.device, **fields: Any) -> lm.LMState:
    """A model of bytes that follow each other by a rule, eager and in fp32 unless `fields` say otherwise."""
    sizes = {"d_model": 64, "layers": 2, "heads": 2, "seq_len": 64, "batch_tokens": 1024, "micro_batch": 16}
    exact = {"precision": "fp32", "compile": "off", "eval_tokens": 512}
    config = LMConfig(**{**vars(lm_preset("tiny")), **sizes, **exact, **fields})
    place = torch.arange(20_000)
    tokens = ((place * place // 7 + place) % 251).to(torch.int16)
    text = TokenStreams(tokens[:18_000], tokens[18_000:], torch.ones(256, dtype=torch.int64))
    return lm.LMState(config, 0, device, ALONE, text)


def vision_state(device: torch.device, **fields: Any) -> vision.VisionState:
    """A ViT on random pixels, eager and in fp32 unless `fields` say otherwise."""
    exact = {"precision": "fp32", "compile": "off", "batch_size": 32, "micro_batch": 32, "image_size": 16}
    config = vision_preset("tiny")
    for name, value in {**exact, **fields}.items():
        setattr(config, name, value)
    return vision.VisionState(config, 0, device, ALONE, synthetic(config.image_size, device, config.frames))


def weights(model: nn.Module) -> Tensor:
    """All parameters in one vector (n,), on the CPU."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).cpu()


def assert_near(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found.cpu(), wanted.cpu(), rtol=0, atol=tolerance)


class Counting:
    """Graphs of a GPU that count their replays."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.replays = 0

    def warm_up(self, function: Work) -> None:
        self._recorder.warm_up(function)

    def capture(self, function: Work) -> Work:
        replay = self._recorder.capture(function)

        def counted() -> None:
            self.replays += 1
            replay()

        return counted

    def forget(self) -> None:
        self._recorder.forget()


def counting_graphs(device: torch.device) -> tuple[Graphs, Counting]:
    counting = Counting(CudaRecorder(device))
    return Graphs(counting), counting


@contextmanager
def memory_limit(extra: int) -> Iterator[None]:
    """In here torch's allocator may reserve `extra` bytes more than what is in use now; then as much as it
    likes."""
    device = torch.device("cuda", torch.cuda.current_device())
    release(device)
    _, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(device) + extra) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def scarce(function: Callable[P, R], wanted: Callable[P, bool] = lambda *_, **__: True) -> Callable[P, R]:
    """`function`, whose first call with arguments that are `wanted` finds the device's memory full: its own
    allocations fail."""
    left = [1]

    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if not left or not wanted(*args, **kwargs):
            return function(*args, **kwargs)
        left.pop()
        with memory_limit(MARGIN):
            filled = fill()
            try:
                return function(*args, **kwargs)
            finally:
                del filled

    return called


def fill() -> list[Tensor]:
    """Take what the allocator still has to give, in ever smaller blocks."""
    held: list[Tensor] = []
    size = 1 << 30
    while size >= 512:
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return held
