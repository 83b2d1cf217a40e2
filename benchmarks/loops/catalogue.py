"""The loops with their grids, by lot, on a GPU and without one."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from benchmarks.live import Point
from benchmarks.tuner_grid import Case
from hoptui.domain.knobs import KnobValue

Lot = Literal["development", "test"]
ENVIRONMENTS = 8
"""Of the loop `sb3_ppo`."""


@dataclass(frozen=True)
class LoopCase(Case):
    """A loop: how many ranks work together, the packages that it needs, and whether it reads photographs from
    a folder. `module` is its module, "" if that has its name. A `slow_grid` is searched from
    coarse to fine."""

    ranks: int = 1
    slow_grid: bool = False
    needs: tuple[str, ...] = ()
    photographs: bool = False
    module: str = ""

    def missing(self) -> list[str]:
        """Return the packages that it needs and that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def loop(
    name: str,
    *,
    work: str = "samples",
    ranks: int = 1,
    needs: tuple[str, ...] = (),
    images: bool = False,
    photographs: bool = False,
    slow_grid: bool = False,
    **grid: tuple[KnobValue, ...],
) -> LoopCase:
    """Return a loop with the grid of its knobs. It starts from the values that it declares."""
    return LoopCase(
        name, work, (), {}, grid, images=images, ranks=ranks, needs=needs, photographs=photographs,
        slow_grid=slow_grid,
    )  # fmt: skip


def _whole_minibatches(point: Point) -> bool:
    """Return whether a rollout has at least one whole minibatch: a larger one is the same."""
    return int(point["batch_size"]) <= ENVIRONMENTS * int(point["n_steps"])


OWN = (
    loop("actor_critic", envs_per_call=(2, 8, 32, 64), foreach=(False, True)),
    loop(
        "recurrent", work="tokens", slow_grid=True,
        rows_at_once=(1, 4, 8, 16, 32, 64), whole_sequence=(False, True),
    ),
    loop("autoencoder", piece=(4, 16, 64, 256), gather=("loop", "stack", "index")),
)  # fmt: skip
DDP_GPT = loop("ddp_gpt", ranks=2, micro_batch=(1, 2, 4, 8, 16, 32), sync_once=(False, True))
DDP_CNN = loop("ddp_cnn", ranks=2, micro_batch=(2, 4, 8, 16, 32, 64), channels_last=(False, True))
DDP_RECOMMENDER = loop(
    "ddp_recommender",
    ranks=2,
    rows_per_pass=(32, 128, 512, 2_048),
    one_lookup=(False, True),
    transfer=("columns", "table"),
)
PPO = LoopCase(
    "sb3_ppo", "env_steps", (), {},
    {"n_steps": (64, 128, 256), "batch_size": (32, 128, 512, 2_048)},
    learning=("n_steps", "batch_size"),
    possible=_whole_minibatches,
    needs=("stable_baselines3", "gymnasium"),
)  # fmt: skip
TRAINER = ("transformers", "accelerate")
CUDA: Mapping[Lot, tuple[LoopCase, ...]] = {
    "development": (
        loop("gpt", micro_batch=(2, 8, 16, 32, 64), flash=(False, True), compile=(False, True)),
        loop("cnn", images=True, num_workers=(0, 2, 4, 8, 16), channels_last=(False, True)),
        loop("unet", chunk=(4, 16, 32, 64), recompute=(True, False), bf16=(False, True)),
        loop(
            "hf_trainer", needs=TRAINER, dataloader_num_workers=(1, 4),
            gradient_checkpointing=(True, False), micro_batch_split=(1, 2, 4, 8, 16),
        ),
        loop(
            "resnet50", needs=("torchvision",), images=True, photographs=True, slow_grid=True,
            num_workers=(0, 4, 8, 16), channels_last=(False, True), bf16=(False, True),
        ),
        loop("audio_clips", readers=(0, 1, 4, 8, 16), expansion=("loop", "formula", "table")),
        DDP_GPT, PPO,
    ),
    "test": (
        loop(
            "timm_vit", needs=("timm",), micro_batch=(8, 32, 64, 128, 256),
            grad_checkpointing=(True, False), bf16=(False, True),
        ),
        DDP_CNN, DDP_RECOMMENDER, *OWN,
        loop(
            "protein", seqs_per_pass=(4, 8, 16, 32, 64), group_by_length=(False, True),
            attention_impl=("einsum", "sdpa"),
        ),
        loop("arm_control", work="env_steps", sim_processes=(1, 2, 4, 8, 16), chunksize=(1, 4, 16, 64)),
        loop("citations", seeds_per_block=(64, 256, 1024, 4096, 8192), dedup=(False, True)),
        loop("superres", patches_per_pass=(2, 8, 64), ckpt_blocks=(0, 8, 16), nhwc=(False, True)),
        loop("load_forecast", windows_per_pass=(1024, 4096, 16_384, 65_536), hist_every=(1, 5, 20, 100)),
        loop("heat_equation", points_per_pass=(512, 2048, 8192, 65_536), cudnn_benchmark=(False, True)),
        loop(
            "retention", work="tokens", chunk_len=(32, 64, 128, 256, 512, 1024, 2048, 4096),
            batched_heads=(False, True),
        ),
    ),
}  # fmt: skip
CPU: Mapping[Lot, tuple[LoopCase, ...]] = {
    "development": (
        loop("gpt", micro_batch=(2, 4, 8, 16, 32, 64), flash=(False, True)),
        loop("cnn", images=True, num_workers=(0, 1, 2), channels_last=(False, True)),
        loop("unet", chunk=(4, 8, 16, 32, 64), recompute=(True, False)),
        loop(
            "hf_trainer", needs=TRAINER, dataloader_num_workers=(1, 2),
            gradient_checkpointing=(True, False), micro_batch_split=(1, 2, 4, 8, 16),
        ),
        loop(
            "resnet50", needs=("torchvision",), images=True, photographs=True,
            num_workers=(0, 1, 2), channels_last=(False, True),
        ),
        loop("audio_clips", readers=(0, 1, 2), expansion=("loop", "formula", "table")),
        DDP_GPT, PPO,
    ),
    "test": (
        loop("timm_vit", needs=("timm",), micro_batch=(2, 4, 8, 16, 32), grad_checkpointing=(True, False)),
        DDP_CNN, DDP_RECOMMENDER, *OWN,
        loop(
            "protein", seqs_per_pass=(2, 4, 8, 16, 32), group_by_length=(False, True),
            attention_impl=("einsum", "sdpa"),
        ),
        loop("arm_control", work="env_steps", sim_processes=(1, 2), chunksize=(1, 4, 16, 32, 64)),
        loop("citations", seeds_per_block=(4, 16, 64, 128, 256), dedup=(False, True)),
        loop("superres", patches_per_pass=(2, 8, 32), ckpt_blocks=(0, 2, 4), nhwc=(False, True)),
        loop("load_forecast", windows_per_pass=(8, 32, 64, 128, 256), hist_every=(1, 5, 20, 100)),
        loop("heat_equation", points_per_pass=(16, 64, 256, 1024), cudnn_benchmark=(False, True)),
        loop(
            "retention", work="tokens", chunk_len=(4, 8, 16, 32, 64, 128, 256, 512),
            batched_heads=(False, True),
        ),
    ),
}  # fmt: skip
