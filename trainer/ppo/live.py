"""What the run shows of itself and lets others change while it goes on."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

import hoptui
from trainer.common.device import choose_threads, gpu_uuid
from trainer.ppo.config import PPOConfig
from trainer.ppo.job import Job
from trainer.ppo.state import TrainingState
from trainer.ppo.update import read_lr, set_lr


def declare(run: hoptui.Run, job: Job, state: TrainingState) -> None:
    """Tell the run its knobs, its metrics and its GPU. Knobs are applied by the run, between two iterations."""
    config = state.config

    def fit(_: int) -> None:
        before = state.env.num_envs
        dropped = state.fit()
        set_threads(job, config)
        if config.num_envs < before:
            run.event(f"num_envs {before} → {config.num_envs}: {dropped} unfinished episodes dropped")

    run.knobs(
        config,
        apply={
            **dict.fromkeys(("num_envs", "rollout_len", "minibatch_size", "grad_accum"), fit),
            "epochs": lambda _: declare_cost(run, state),
            "lr": lambda lr: set_lr(state.optimizer, lr),
        },
        read={
            "num_envs": lambda: state.env.num_envs,
            "rollout_len": lambda: state.rollout.length,
            "minibatch_size": lambda: config.minibatch_used,
            "grad_accum": lambda: config.grad_accum_used,
            "lr": lambda: read_lr(state.optimizer),
        },
    )
    run.metric("env_steps_per_s", unit="steps/s", headline=True)
    run.metric("samples_per_s", unit="samples/s")
    run.metric("env_steps", unit="steps")
    run.metric("env_steps_total", unit="steps")
    run.metric("samples", unit="samples")
    run.metric("entropy", unit="nat")
    run.metric("approx_kl", unit="nat")
    if uuid := gpu_uuid(state.device):
        run.gpus([uuid])
        declare_cost(run, state)


def declare_cost(run: hoptui.Run, state: TrainingState) -> None:
    """Tell the run what an environment step costs: matrix products alone, 2 FLOPs a weight forwards, 4 backwards.

    Actor and critic see each step once in the rollout and once in each epoch, there with gradients.
    """
    weights = sum(p.numel() for p in state.policy.parameters() if p.ndim == 2)
    tf32 = torch.get_float32_matmul_precision() != "highest"
    run.flops(
        weights * (2 + 6 * state.config.epochs),
        metric="env_steps_per_s",
        precision="tf32" if tf32 else "fp32",
    )


def measured(metrics: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor | float]:
    """The metrics as the run takes them: numbers on a CPU; on a GPU the tensors, which it reads one iteration late."""
    if device.type != "cpu":
        return dict(metrics)
    values = dict(zip(metrics, torch.stack(tuple(metrics.values())).tolist(), strict=True))
    if not values["episodes"]:
        del values["episode_return"]
    return values


def set_threads(job: Job, config: PPOConfig) -> None:
    """Let torch use as many CPU threads as the job says, or as pay off for the size of a micro-batch."""
    torch.set_num_threads(job.threads or choose_threads(config.micro_batch))
