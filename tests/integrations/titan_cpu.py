"""TorchTitan 0.3 on the CPU, with PyTorch 2.13 and gloo, and a small model with its data.

TorchTitan needs a GPU and a nightly build of PyTorch. What it lacks here is put in place below, before its
trainer is imported, and in the configuration. The trainer, its loop, FSDP2, the optimizers, the schedules and
the checkpoints are TorchTitan's own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import FSDPModule
from torchtitan.tools import utils

LENGTH, ROWS, WORDS, WIDTH = 16, 2, 64, 32
"""Words of a text, texts of a batch of one rank, known words, and width of the model."""
KERNELS = "torchtitan.distributed.minimal_async_ep.kernels"
"""The one module of the trainer that needs triton. Expert parallelism uses it."""


def put_in_place() -> None:
    """Let TorchTitan take the CPU for its accelerator."""
    sys.modules[KERNELS] = MagicMock()
    utils.device_type = "cpu"
    utils.device_module = SimpleNamespace(
        current_device=lambda: 0,
        device_count=torch.cpu.device_count,
        empty_cache=lambda: None,
        get_device_name=lambda device: "cpu",
        get_device_properties=lambda device: SimpleNamespace(total_memory=2**34),
        memory_stats=lambda device: {},
        reset_peak_memory_stats=lambda: None,
        set_device=torch.cpu.set_device,
        synchronize=torch.cpu.synchronize,
    )
    if not hasattr(dist, "set_timeout"):  # PyTorch 2.13 has it under another name
        dist.set_timeout = _set_pg_timeout  # type: ignore[attr-defined]


put_in_place()

from torchtitan import trainer as titan  # noqa: E402
from torchtitan.components.checkpointer import CheckpointManager  # noqa: E402
from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.config.configs import DebugConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config  # noqa: E402
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock  # noqa: E402
from torchtitan.models.llama3.parallelize import parallelize_llama  # noqa: E402
from torchtitan.protocols.model_spec import ModelSpec  # noqa: E402

Trainer: Any = titan.Trainer
# Without the last 2 seconds of a training, in which rank 0 waits for the others.
titan.time = SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda seconds: None)


class Tokenizer(BaseTokenizer):  # type: ignore[misc]
    """The wheel has no files for one. Nothing is encoded here."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        """Nothing to set."""

    def __init__(self, config: Config, *, tokenizer_path: str) -> None:
        super().__init__()

    def encode(self, *args: Any, **kwargs: Any) -> list[int]:
        raise NotImplementedError

    def decode(self, *args: Any, **kwargs: Any) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        return WORDS


class Texts(BaseDataLoader):  # type: ignore[misc]
    """Endless texts. Each rank has its own."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """Nothing to set."""

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **other: Any
    ) -> None:
        self._ranks, self._rank, self._rows = dp_world_size, dp_rank, local_batch_size
        self._next = 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            generator = torch.Generator().manual_seed(self._next * self._ranks + self._rank)
            self._next += 1
            words = torch.randint(0, WORDS // 2, (self._rows, LENGTH + 1), generator=generator)
            positions = torch.arange(LENGTH).repeat(self._rows, 1)
            yield {"input": words[:, :-1], "positions": positions}, words[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return {f"next.{self._rank}": self._next}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._next = state_dict[f"next.{self._rank}"]


def in_sums(parallelize: Callable[..., Any], model: Any, **options: Any) -> Any:
    """Let FSDP2 add gradients as gloo can. TorchTitan divides them by 1 in any case."""
    model = parallelize(model, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model


def small_model() -> ModelSpec:
    """A Llama 3 of one layer. FlexAttention, which is TorchTitan's choice, cannot train on a CPU."""
    random = {"weight": partial(torch.nn.init.normal_, std=0.2)}
    ones = {"weight": torch.nn.init.ones_}
    layer = Llama3TransformerBlock.Config(
        attention_norm=RMSNorm.Config(normalized_shape=WIDTH, param_init=ones),
        ffn_norm=RMSNorm.Config(normalized_shape=WIDTH, param_init=ones),
        attention=make_gqa_config(
            dim=WIDTH,
            n_heads=2,
            wqkv_param_init=random,
            wo_param_init=random,
            inner_attention=ScaledDotProductAttention.Config(),
            rope=ComplexRoPE.Config(dim=WIDTH // 2, max_seq_len=LENGTH),
        ),
        feed_forward=make_ffn_config(
            dim=WIDTH, hidden_dim=2 * WIDTH, w1_param_init=random, w2w3_param_init=random
        ),
    )
    return ModelSpec(
        name="llama3",
        flavor="small",
        model=Llama3Model.Config(
            dim=WIDTH,
            vocab_size=WORDS,
            tok_embeddings=Embedding.Config(num_embeddings=WORDS, embedding_dim=WIDTH, param_init=random),
            norm=RMSNorm.Config(normalized_shape=WIDTH, param_init=ones),
            lm_head=Linear.Config(in_features=WIDTH, out_features=WORDS, param_init=random),
            layers=[layer],
        ),
        parallelize_fn=partial(in_sums, parallelize_llama),
        pipelining_fn=None,
        post_optimizer_build_fn=None,
        state_dict_adapter=None,
    )


def configuration(
    folder: Path, steps: int, *, log_freq: int = 100, interval: int = 1000, **checkpoint: Any
) -> Any:
    """What a training needs, with checkpoints. `checkpoint`: more settings of them."""
    return Trainer.Config(
        model_spec=small_model(),
        dump_folder=str(folder),
        tokenizer=Tokenizer.Config(),
        dataloader=Texts.Config(),
        loss=CrossEntropyLoss.Config(global_vocab_size=WORDS),
        optimizer=default_adamw(lr=0.01),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
        training=TrainingConfig(
            local_batch_size=ROWS, seq_len=LENGTH, steps=steps, mixed_precision_param="float32"
        ),
        # The default backend needs the FSDP2 of a nightly build.
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        metrics=MetricsProcessor.Config(log_freq=log_freq),
        checkpoint=CheckpointManager.Config(enable=True, interval=interval, **checkpoint),
        activation_checkpoint=None,
        debug=DebugConfig(seed=1),
    )
