"""The knob `micro_batch_split` of `transformers.Trainer`: in how many parts a batch is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from transformers import Trainer

import hoptui
from hoptui.integrations.micro_batches import (
    Rule,
    even_sizes,
    find_rule,
    row_count,
    row_length,
    weighted_parts,
)
from hoptui.integrations.trainer_internals import (
    obstacle,
    repeatable,
    scaled_loss,
    shifts_labels,
    without_sync,
)

MEMORY_MARGIN = 0.95
"""A larger micro-batch is refused if its estimated memory is more than this part of the GPU's."""


class MicroBatchSplit:
    """How the batches of one training are cut."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._run: hoptui.Run | None = None
        self.parts = 1
        """In how many parts a batch is computed."""
        self._on_gpu = trainer.args.device.type == "cuda"
        self.largest = 0
        """On a GPU: the rows of the largest micro-batch so far."""
        self.longest = 0
        """On a GPU: the elements of the largest input of a row so far."""
        self.measured = True
        """Whether the peak of the memory is of steps as they are computed now."""
        self._rule: Rule | None = None
        self._whole = ""  # why batches are not cut although they should be
        self._seen: tuple[Mapping[str, Any], Any] | None = None
        self._ended = False  # whether a step has ended

    def offer(self, run: hoptui.Run) -> None:
        """Declare the knob, or the reason why there is none."""
        self._run, args = run, self.trainer.args
        rows = int(getattr(self.trainer, "_train_batch_size", None) or args.train_batch_size)
        reason = obstacle(self.trainer)
        if not reason and rows < 2:
            reason = "a micro-batch has one row"
        if reason:
            run.decline("micro_batch_split", reason)
            return
        run.knob(
            "micro_batch_split",
            self.parts,
            choices=[parts for parts in range(1, rows + 1) if rows % parts == 0],
            effect="speed",
            cost="shape",
            keeps="per_device_train_batch_size",
            description=f"parts of a batch of {rows} rows that are computed one after another",
            apply=self.set_parts,
            read=lambda: self.parts,
        )

    def training_step(
        self, step: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Train on one batch."""
        trainer = self.trainer
        self._seen = inputs, args[0] if args else kwargs.get("num_items_in_batch")
        parts = self._cut(inputs) if self.parts > 1 else None
        if self._on_gpu:
            computed = [inputs] if parts is None else [part for part, _ in parts]
            self.largest = max(self.largest, *(row_count(part) or 0 for part in computed))
            self.longest = max(self.longest, row_length(inputs))
            self.measured = True
        if parts is None:
            return step(trainer, model, inputs, *args, **kwargs)
        compute_loss = trainer.compute_loss
        total = None
        try:
            for index, (part, share) in enumerate(parts):
                trainer.compute_loss = scaled_loss(compute_loss, share)
                last = index == len(parts) - 1
                with nullcontext() if last else without_sync(trainer, model):
                    loss = step(trainer, model, part, *args, **kwargs)
                total = loss if total is None else total + loss
        finally:
            del trainer.compute_loss
        return total

    @property
    def seen(self) -> Mapping[str, Any] | None:
        """The last batch of the step that ends, None if there is none."""
        return None if self._seen is None else self._seen[0]

    def end_step(self) -> None:
        """Forget the batch of the step: a subclass may not call `Trainer.training_step` in the next one."""
        self._seen, self._ended = None, True

    def set_parts(self, parts: int) -> None:
        """Cut batches into so many parts.

        Raises:
            ValueError: the batches cannot be cut. The text is for users.
        """
        if parts == self.parts:
            return
        if self._seen is None:
            raise ValueError(self._unreached())
        if self._whole:
            raise ValueError(self._whole)
        inputs, items = self._seen
        if parts > 1 and self._rule is None:
            self._rule = self._find_rule(inputs, items)
        self._check_memory(parts, row_count(inputs) or 0)
        self.parts = parts

    def _unreached(self) -> str:
        if type(self.trainer).training_step is not Trainer.training_step and self._ended:
            return f"{type(self.trainer).__name__}.training_step does not call Trainer.training_step"
        return "no batch has been seen yet: set it again after the first iteration"

    def _cut(self, inputs: Any) -> list[tuple[dict[str, Any], float]] | None:
        """Return the parts of a batch with their shares, None if it has to stay whole."""
        if self._whole:
            return None
        try:
            if self._rule is None:  # the batches were merged before the first step
                assert self._seen is not None
                self._rule = self._find_rule(*self._seen)
            return weighted_parts(inputs, self.parts, self._rule)
        except Exception as error:
            self._whole = f"batches are not cut: {error}"
            if self._run is not None:
                self._run.event(self._whole, level="warning")
            return None

    def _find_rule(self, inputs: Any, items: Any) -> Rule:
        """Find how Trainer normalises the loss, and show that cutting a batch does not change it."""
        trainer, rows = self.trainer, row_count(inputs) or 0
        prepared = trainer._prepare_inputs(inputs)
        rules: list[Rule] = ["sum"] if items is not None else []
        rules += ["shifted labels", "labels"] if shifts_labels(trainer) else ["labels"]
        args = trainer.args
        exact = args.device.type == "cpu" and not (args.bf16 or args.fp16)
        with repeatable(trainer):
            return find_rule(
                lambda part: float(trainer.compute_loss(trainer.model, dict(part), num_items_in_batch=items)),
                prepared,
                max(2, math.ceil(rows / self.parts)),
                [*rules, "rows"],
                1e-4 if exact else 5e-3,
            )

    def _check_memory(self, parts: int, rows: int) -> None:
        """Refuse a micro-batch that would not fit, from the memory that the largest so far took."""
        device, largest = self.trainer.args.device, even_sizes(rows, parts)[0]
        if device.type != "cuda" or largest <= self.largest or not self.largest:
            return
        if not self.measured:
            raise ValueError("no step has shown yet how much memory is needed now: set it again after one")
        kept, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
        total = torch.cuda.get_device_properties(device).total_memory
        needed = kept + (peak - kept) * largest / self.largest
        if needed > MEMORY_MARGIN * total:
            gib = 1 << 30
            raise ValueError(
                f"a micro-batch of {largest} rows would need about {needed / gib:.1f} GiB, and the GPU has "
                f"{total / gib:.1f} GiB"
            )

    def merge_accumulation(self) -> None:
        """Load the micro-batches of an optimizer step as one batch, and cut it again."""
        trainer, args = self.trainer, self.trainer.args
        steps = args.gradient_accumulation_steps
        if steps <= 1 or _rows_are_decided(trainer) or obstacle(trainer):
            return
        args.per_device_train_batch_size *= steps
        args.gradient_accumulation_steps = 1
        trainer._train_batch_size = args.train_batch_size
        self.parts = steps


def _rows_are_decided(trainer: Any) -> bool:
    """Whether something else has decided the batches already, such as an override of the data loader."""
    return type(trainer).get_train_dataloader is not Trainer.get_train_dataloader
