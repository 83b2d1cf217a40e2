"""The state of a language-model run, and its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hoptui_trainer.common.batch import piece_sizes
from hoptui_trainer.common.compilation import compiled
from hoptui_trainer.common.dry_run import Sizes
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.flops import Cost, mixed_cost
from hoptui_trainer.common.memory import on_all_ranks
from hoptui_trainer.common.modes import CompileMode, Precision, ShardMode
from hoptui_trainer.common.precision import autocast, compute_dtype
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.common.sharding import Sharding
from hoptui_trainer.common.supervised_state import AttentionShape, SupervisedState
from hoptui_trainer.lm.config import LMConfig, check_sharded
from hoptui_trainer.lm.data_placement import make_sampler
from hoptui_trainer.lm.evaluate import HeldOut, nats_per_token
from hoptui_trainer.lm.float8 import float8_flops, from_float8, to_float8
from hoptui_trainer.lm.loss import graded, head_loss, nats
from hoptui_trainer.lm.model import GPT
from hoptui_trainer.lm.token_files import TokenStreams
from hoptui_trainer.lm.token_shards import TokenShards

FIRST_TOKENS, MOST_TOKENS = 16_384, 131_072
"""Tokens of the smallest and of the largest micro-batch that is tried on a GPU."""
CPU_TOKENS = 1_024
"""Tokens of a micro-batch on a CPU, where no choice may depend on a timing: one seed gives one result."""


class LMState(SupervisedState[LMConfig, GPT]):
    """The state of a language-model run; a sample of the stream is a token.

    Raises:
        UsageError: the device cannot do what `config` asks for.
        ValueError: the sizes do not fit together.
        MemoryError: not even one sequence fits.
    """

    CAUSAL = True

    def __init__(
        self,
        config: LMConfig,
        seed: int,
        device: torch.device,
        ranks: RankGroup,
        text: TokenStreams,
        shard: ShardMode = "none",
    ) -> None:
        super().__init__(config, seed, device, ranks)
        self._text = text
        self._float8 = False
        self._flops_in_float8 = 0.0
        self._evaluated: set[tuple[int, int]] = set()
        config.check(ranks.world)
        self.sampler = make_sampler(text.train, seed, config.seq_len, device)
        self.held_out = self._held_out_windows()
        model = on_all_ranks(ranks, device, lambda: GPT(config, seed).to(device))
        sharding = None if shard == "none" else Sharding(model, model.blocks, shard, ranks)
        self._train(model, [{"params": model.parameters(), "weight_decay": config.weight_decay}], sharding)

    def nats(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Summed cross-entropy of targets (B, T), differentiable."""
        with self._shapes.meet(tuple(inputs.shape)):
            with autocast(self.precision, self.device):
                hidden = self.forward(inputs)
            return head_loss(hidden, self.model.table, targets, self._grade)

    def figures(self, *inputs: Tensor) -> Tensor:
        """The summed cross-entropy of a piece: tokens and targets (B, T)."""
        return self.nats(*inputs)

    def evaluate(self) -> dict[str, float]:
        """The cross-entropy on the held-out text: `val_loss` in nats a token, and `val_bpb` in bits a byte if
        its bytes are known. Waits for the device."""
        count, precision = self.config.micro_batch, self.precision
        shape = count, self.held_out.length
        compiles = self.compile_mode != "off" and shape not in self._evaluated and not self.sharding
        with self._gathered():
            loss = nats_per_token(
                self.held_out,
                self.forward,
                self.model.table,
                count,
                self.ranks,
                precision,
                self._count,
                compiles=compiles,
            )
        self._evaluated.add(shape)
        found = self.held_out.bits_per_byte(loss)
        return {"val_loss": loss} | ({} if found is None else {"val_bpb": found})

    def choose_batch(self) -> None:
        """Choose `batch_tokens` if it is 0: all sequences of the text, what memory holds at once, or the most
        tokens that an automatic batch has.

        Raises:
            MemoryError: memory does not hold one sequence.
        """
        length = self.config.seq_len
        if not self.config.batch_tokens:
            self._choose_batch("batch_tokens", len(self._text.train) // length, length, "tokens")

    def fit(self, *, give_way: bool = False) -> None:
        """Bring batches and held-out windows to the sizes that `config` now has; a `micro_batch` of 0 is
        chosen. With `give_way` it is smaller than asked for if memory is too short.

        Raises:
            ValueError: the sizes do not fit together; nothing has changed.
            MemoryError: not even one sequence fits.
        """
        config, world = self.config, self.ranks.world
        config.check(world)
        if self.sharding:
            check_sharded(config, world)
        if self.held_out.length != config.seq_len:
            self.dry_run.forget()
            self.held_out = on_all_ranks(self.ranks, self.device, self._held_out_windows)
            self._choose_attention()
        self._cut(give_way=give_way)

    def prove_sizes(self) -> None:
        """Compute gradients of pieces as the next step will, and drop them: this compiles, and shows whether
        they fit.

        Raises:
            MemoryError: they do not.
        """
        share = len(self.config.share(self.ranks.rank, self.ranks.world))
        self.dry_run.prove(piece_sizes(self.config.micro_batch, [share]), self.sizes.samples)

    def state_dict(self) -> dict[str, Any]:
        """All that decides how training goes on, as tensors, numbers, text and dicts of them; the same on
        every rank."""
        return {
            **self._saved_progress(),
            "block": self.sampler.block,
            **self._saved_weights(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> bool:
        """Go on where `saved` was taken, with this object's own `config`.

        False if its model has another shape. Then weights that fit are copied, the others stay new (`kept`),
        and the learning-rate schedule starts again.
        """
        self.sampler = make_sampler(self._text.train, self.seed, saved["block"], self.device)
        return self._load(saved)

    @property
    def streamed(self) -> bool:
        """Whether tokens come from disk while the run trains."""
        return isinstance(self._text.train, TokenShards)

    @property
    def shape(self) -> dict[str, int]:
        """The sizes of the weights as they are."""
        rows, width = self.model.table.shape
        model = self.model
        return {"rows": rows, "d_model": width, "layers": len(model.blocks), "heads": model.heads}

    @property
    def cost(self) -> Cost:
        """FLOPs of a token at the length that sequences have."""
        flops = self.model.flops_per_token(self.config.seq_len)
        if self.precision == "fp8":
            return mixed_cost(flops, self._flops_in_float8, self.device)
        return Cost(flops, self.precision)

    @property
    def sizes(self) -> Sizes:
        """The micro-batches to choose from at the length that sequences have."""
        length = self.config.seq_len
        rule, first, most = (max(1, tokens // length) for tokens in (CPU_TOKENS, FIRST_TOKENS, MOST_TOKENS))
        return Sizes(rule, first, most, each=length, unit="tokens", samples=f"sequences of {length}")

    @property
    def _attention_shape(self) -> AttentionShape:
        model = self.model
        return AttentionShape(model.heads, self.config.seq_len, self.model.table.shape[1] // model.heads)

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        """In here the table is whole, for passes without gradients."""
        if self.sharding:
            self.sharding.gather()
        try:
            yield
        finally:
            if self.sharding:
                self.sharding.release()

    def _resolve_modes(self) -> tuple[Precision, CompileMode]:
        """How to compute; where that is in FP8, the layers do from now on."""
        precision, mode = super()._resolve_modes()
        if self.sharding and precision in ("fp8", "fp16"):
            raise UsageError(f"--precision {precision}: it cannot be used with shards (--shard none)")
        if precision == "fp8" and not self._float8:
            to_float8(self.model.blocks)
            self._float8 = True
        return precision, mode

    def _compile(self) -> None:
        if self.precision != "fp8" and self._float8:
            from_float8(self.model.blocks)
            self._float8 = False
        self._flops_in_float8 = float8_flops(self.model.blocks)
        self.model.activations = compute_dtype(self.precision)
        self.model.checkpointing = self.config.checkpointing
        self._evaluated.clear()
        self._choose_attention()
        self.forward = self._compiled_model()
        self._grade = compiled(graded, self.compile_mode)
        self._count = compiled(nats, self.compile_mode)

    def _compiled_model(self) -> Callable[[Tensor], Tensor]:
        """The model as one compiled graph; of a sharded one each block, whose weights are gathered
        outside of graphs."""
        if self.sharding is None:
            return compiled(self.model, self.compile_mode)
        for block in self.model.blocks:
            vars(block).pop("forward", None)
            if self.compile_mode != "off":
                block.forward = compiled(block.forward, self.compile_mode)
        return self.model

    def _held_out_windows(self) -> HeldOut:
        text, config = self._text, self.config
        return HeldOut(text.held_out, text.lengths, config.seq_len, config.eval_tokens, self.device)

    def _pass(self, size: int) -> None:
        """Add the gradient of `size` sequences of the stream."""
        torch.autograd.backward(self.nats(*self.sampler.take(self.position, size, self.config.seq_len)))
