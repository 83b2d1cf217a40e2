"""Everything an LM run is made of, and how it becomes a checkpoint and comes back."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from trainer.common.compile import compiled, steady
from trainer.common.device import wait_for
from trainer.common.flat_gradient import FlatGradient
from trainer.common.gradient import Pieces
from trainer.common.memory import (
    Trial,
    choose_micro_batch,
    is_out_of_memory,
    limit_bytes,
    peak_bytes,
    release,
    reset_peak,
)
from trainer.common.modes import CompileMode, Precision
from trainer.common.precision import autocast, choose_precision, compute_dtype, grad_scaler, use
from trainer.common.ranks import Ranks
from trainer.lm.attention import choose_attention
from trainer.lm.config import LMConfig
from trainer.lm.evaluate import HeldOut, bits_per_byte
from trainer.lm.float8 import from_float8, to_float8
from trainer.lm.loss import graded, head_loss, nats
from trainer.lm.model import GPT
from trainer.lm.optimizer import make_optimizer
from trainer.lm.streams import TokenStreams
from trainer.lm.windows import Windows

AUTOMATIC: Mapping[str, Any] = {"micro_batch": 0, "precision": "auto", "compile": "auto"}
"""Knobs and their values that are settled when training starts; a checkpoint keeps that they were left open."""
FIRST_TOKENS, MOST_TOKENS = 16_384, 131_072
"""Tokens of the smallest and of the largest micro-batch that is tried on a GPU."""
CPU_TOKENS = 1_024
"""Tokens of a micro-batch on a CPU, where no choice may depend on a timing: one seed gives one result."""


class TrainingState:
    """The state of one run between two iterations, on one device of one rank.

    `config` is the one that the run's knobs change; whatever changes it calls `fit` or `rebuild` afterwards. `position`
    counts the tokens of the stream that the run has learned from, `born` is the iteration in which its weights were new;
    `on_smaller` hears of a micro-batch that was halved
    because memory ran out. All ranks hold the same but for their part of a batch.

    Raises:
        UsageError: the device cannot do what `config` asks for.
        ValueError: the sizes do not fit together.
        MemoryError: not even one sequence fits.
    """

    def __init__(
        self, config: LMConfig, seed: int, device: torch.device, ranks: Ranks, text: TokenStreams
    ) -> None:
        self.config, self.seed, self.device, self.ranks = config, seed, device, ranks
        self.automatic = {name for name, value in AUTOMATIC.items() if getattr(config, name) == value}
        self.notes: list[str] = []
        self.on_smaller: Callable[[int, int], None] = lambda before, now: None
        self.iteration = 0
        self.born = 0
        self.position = 0
        self.val_bpb: float | None = None
        self.best_bpb: float | None = None
        self.evaluations_since_best = 0
        self._text = text
        self._float8 = False
        self._attended: tuple[int, torch.dtype] | None = None
        self._computed: set[tuple[int, ...]] = set()
        config.check(ranks.world)
        self.windows = Windows(text.train.to(device), seed, config.seq_len)
        self.held_out = self._held_out_windows()
        self.model = GPT(config, seed).to(device)
        self.gradient = FlatGradient(self.model.parameters())
        self.optimizer = make_optimizer(self.model, config.weight_decay, device)
        self.pieces = Pieces(1, device, ranks, self._smaller)
        self.rebuild()
        self.fit()

    def nats(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Summed cross-entropy of targets (B, T), differentiable."""
        size = tuple(inputs.shape)
        again = steady(self.compile_mode) if size in self._computed else contextlib.nullcontext()
        with again:
            with autocast(self.precision, self.device):
                hidden = self.forward(inputs)
            found = head_loss(hidden, self.model.table, targets, self._grade)
        self._computed.add(size)
        return found

    def evaluate(self) -> float:
        """Bits a byte on the held-out text, kept with the best so far. Waits for the device."""
        count, precision = self.config.micro_batch, self.precision
        found = bits_per_byte(
            self.held_out, self.forward, self.model.table, count, self.ranks, precision, self._count
        )
        self.val_bpb = found
        better = self.best_bpb is None or found < self.best_bpb
        self.best_bpb = found if better else self.best_bpb
        self.evaluations_since_best = 0 if better else self.evaluations_since_best + 1
        return found

    def rebuild(self) -> None:
        """Bring number format, compilation and checkpointing of activations to what `config` now has.

        Raises:
            UsageError: the device or the installation cannot do it; nothing has changed.
        """
        config, device = self.config, self.device
        precision = choose_precision(cast(Precision, config.precision), device)
        if precision == "fp8" and not self._float8:
            to_float8(self.model.blocks)
        if precision != "fp8" and self._float8:
            from_float8(self.model.blocks)
        self._float8 = precision == "fp8"
        mode = config.compile
        if mode == "auto":
            mode = "default" if device.type == "cuda" else "off"
        use(precision)
        self.precision, self.compile_mode = precision, cast(CompileMode, mode)
        config.precision, config.compile = precision, mode
        self.scaler = grad_scaler(precision, device)
        self.model.activations = compute_dtype(precision)
        self.model.checkpointing = config.checkpointing
        self._computed.clear()
        self._choose_attention()
        self.forward: Callable[[Tensor], Tensor] = compiled(self.model, self.compile_mode)
        self._grade = compiled(graded, self.compile_mode)
        self._count = compiled(nats, self.compile_mode)

    def fit(self) -> None:
        """Bring batches and held-out windows to the sizes that `config` now has; a `micro_batch` of 0 is chosen.

        Raises:
            ValueError: the sizes do not fit together; nothing has changed.
            MemoryError: not even one sequence fits.
        """
        config, world = self.config, self.ranks.world
        config.check(world)
        if self.held_out.length != config.seq_len:
            self.held_out = self._held_out_windows()
            self._choose_attention()
        wanted = config.micro_batch
        if not wanted:
            on_cpu = self.device.type == "cpu"
            wanted = max(1, CPU_TOKENS // config.seq_len) if on_cpu else self.measured_micro_batch()
        config.micro_batch = self.pieces.micro_batch = min(wanted, config.largest_share(world))
        config.grad_accum = config.pieces(world)

    def rehearse(self) -> None:
        """Compute gradients of pieces as the next step will, and drop them: this compiles, and shows whether they fit.

        Raises:
            MemoryError: they do not.
        """
        share = len(self.config.share(self.ranks.rank, self.ranks.world))
        size = min(self.config.micro_batch, share)
        for count in {size, share % size} - {0}:
            if not self._fits(count):
                release(self.device)
                raise MemoryError(
                    f"{count} sequences of {self.config.seq_len} do not fit into the memory at once"
                )

    def state_dict(self) -> dict[str, Any]:
        """All that decides how training goes on, as tensors, numbers, text and dicts of them; the same on every rank."""
        open_again = {name: AUTOMATIC[name] for name in self.automatic}
        real = {name: self.shape[name] for name in ("d_model", "layers", "heads")}  # others may be asked for
        return {
            "seed": self.seed,
            "config": dataclasses.asdict(self.config) | {"grad_accum": 0} | open_again | real,
            "iteration": self.iteration,
            "born": self.born,
            "position": self.position,
            "block": self.windows.block,
            "val_bpb": self.val_bpb,
            "best_bpb": self.best_bpb,
            "evaluations_since_best": self.evaluations_since_best,
            "shape": self.shape,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> bool:
        """Go on where `saved` was taken, with this object's own `config`.

        False if that was a model of another shape: its weights are of no use here, so new ones go on in its place, and
        the course of the learning rate begins anew.
        """
        self.iteration, self.position, self.born = saved["iteration"], saved["position"], saved["born"]
        self.windows = Windows(self._text.train.to(self.device), self.seed, saved["block"])
        if saved["shape"] != self.shape:
            self.born = self.iteration
            return False
        self.val_bpb, self.best_bpb = saved["val_bpb"], saved["best_bpb"]
        self.evaluations_since_best = saved["evaluations_since_best"]
        self.model.load_state_dict(saved["model"])
        group = self.optimizer.param_groups[0]
        own = {"lr": group["lr"], "weight_decay": group["weight_decay"]}
        self.optimizer.load_state_dict(saved["optimizer"])
        self.optimizer.param_groups[0].update(own)
        if saved["scaler"] and self.scaler.is_enabled():
            self.scaler.load_state_dict(saved["scaler"])
        return True

    @property
    def shape(self) -> dict[str, int]:
        """The sizes of the weights as they are."""
        rows, width = self.model.table.shape
        model = self.model
        return {"rows": rows, "d_model": width, "layers": len(model.blocks), "heads": model.heads}

    def _smaller(self, before: int, now: int) -> None:
        self.config.micro_batch = now
        self.config.grad_accum = self.config.pieces(self.ranks.world)
        self.on_smaller(before, now)

    def _held_out_windows(self) -> HeldOut:
        text, config = self._text, self.config
        return HeldOut(text.held_out, text.lengths, config.seq_len, config.eval_tokens, self.device)

    def _choose_attention(self) -> None:
        """Measure again which kernel is fastest, if sequences or activations are others than at the last time: a kernel
        that does not take them leaves attention to the plain formula, whose time and memory grow with T²."""
        config, dtype = self.config, self.model.activations
        if self._attended == (config.seq_len, dtype):
            return
        batch = config.micro_batch or max(1, FIRST_TOKENS // config.seq_len)
        heads = self.model.heads
        shape = (batch, heads, config.seq_len, self.model.table.shape[1] // heads)
        if note := choose_attention(shape, dtype, self.device):
            self.notes.append(note)
        self._attended = config.seq_len, dtype

    def measured_micro_batch(self) -> int:
        """The fastest micro-batch that fits, by steps of real sizes; of several ranks' findings the smallest.

        Raises:
            MemoryError: not even one sequence fits.
        """
        share, length = self.config.largest_share(self.ranks.world), self.config.seq_len
        first, most = (min(share, max(1, tokens // length)) for tokens in (FIRST_TOKENS, MOST_TOKENS))
        unmade = 0 if self.optimizer.state else 2 * self.gradient.flat.nbytes  # AdamW's, of its first step
        limit = limit_bytes(self.device) - unmade
        try:
            size, trials = choose_micro_batch(self._trial, start=first, most=most, limit=limit)
        except MemoryError:
            size, trials = choose_micro_batch(self._trial, start=1, most=first, limit=limit)
        tried = ", ".join(f"{t.size}: {t.size * length / t.seconds:,.0f} tokens/s" for t in trials)
        self.notes.append(f"micro-batch chosen by measurement: {size} ({tried})")
        return int(min(self.ranks.gather(size)))

    def _trial(self, size: int) -> Trial | None:
        """Two steady passes of `size` sequences without a step; the first of three compiles."""
        reset_peak(self.device)
        began = 0.0
        fits = True
        for turn in range(3):
            if turn == 1:
                began = time.monotonic()
            fits = fits and self._fits(size)
        seconds, peak = (time.monotonic() - began) / 2, peak_bytes(self.device)
        release(self.device)
        return Trial(size, peak or 0, seconds) if fits else None

    def _fits(self, size: int) -> bool:
        """Whether `size` sequences go forward and backward; the gradient is dropped. Waits for the device."""
        inputs, targets = self.windows.take(self.position, size, self.config.seq_len)
        try:
            torch.autograd.backward(self.nats(inputs, targets))
            wait_for(self.device)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return False
        finally:
            self.gradient.clear()
        return True
