"""Everything a vision run is made of, and how it becomes a checkpoint and comes back."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

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
from trainer.common.precision import autocast, choose_precision, grad_scaler, use
from trainer.common.random import key
from trainer.common.ranks import Ranks
from trainer.common.streams import stream
from trainer.vision.config import VisionConfig
from trainer.vision.distort import distorted
from trainer.vision.images import Feed, Images, Loading, Resident, Source
from trainer.vision.model import Shape, ViT
from trainer.vision.order import share

AUTOMATIC: Mapping[str, Any] = {"micro_batch": 0, "precision": "auto", "compile": "auto"}
"""Knobs and their values that are settled when training starts; a checkpoint keeps that they were left open."""
BETAS = (0.9, 0.95)
FIRST, MOST = 64, 1024
"""Images of the smallest and of the largest micro-batch that is tried on a GPU."""
CPU_MICRO_BATCH = 256
"""On a CPU no choice may depend on a timing: one seed gives one result."""


class TrainingState:
    """The state of one run between two iterations, on one device of one rank.

    `config` is the one that the run's knobs change; whatever changes it calls `fit`, `rebuild` or `reload` afterwards.
    `position` counts the images of the stream that the run has learned from; `on_smaller` hears of a micro-batch that was
    halved because memory ran out. All ranks hold the same but for their part of a batch. `close` ends the workers.

    Raises:
        UsageError: the device cannot do what `config` asks for.
        ValueError: the sizes do not fit together.
        MemoryError: not even one image fits.
    """

    def __init__(
        self, config: VisionConfig, seed: int, device: torch.device, ranks: Ranks, source: Source
    ) -> None:
        self.config, self.seed, self.device, self.ranks, self.source = config, seed, device, ranks, source
        self.automatic = {name for name, value in AUTOMATIC.items() if getattr(config, name) == value}
        self.notes: list[str] = []
        self.on_smaller: Callable[[int, int], None] = lambda before, now: None
        self.iteration = 0
        self.position = 0
        self.accuracy: float | None = None
        self._feed: Feed | None = None
        self._loads = self.loading
        self._distortion_key = key(seed, "distortion")
        self._computed: set[int] = set()

        shape = Shape(
            image_size=source.image_size,
            channels=source.channels,
            classes=source.classes,
            patch_size=config.patch_size,
            d_model=config.d_model,
            layers=config.layers,
            heads=config.heads,
        )
        self.model = ViT(shape, seed).to(device)
        self.gradient = FlatGradient(self.model.parameters())
        self.optimizer = make_optimizer(self.model, config.weight_decay, device)
        self.pieces = Pieces(1, device, ranks, self._smaller)
        self.rebuild()
        self.fit()

    @property
    def feed(self) -> Feed:
        """The training images of this rank from `position` on; workers start with the first use."""
        if self._feed is None:
            mine = share(self.position, self.config.batch_size, self.ranks.rank, self.ranks.world)
            self._feed = self.source.feed(self.seed, mine.start, mine.step, self.loading, self.device)
        return self._feed

    @property
    def loading(self) -> Loading:
        """How `config` wants images loaded."""
        names = [field.name for field in dataclasses.fields(Loading)]
        return Loading(**{name: getattr(self.config, name) for name in names})

    def losses(self, batch: Images, positions: Tensor) -> Tensor:
        """Summed cross-entropy (nats) over images that are distorted as their positions (n,) say, and how many of them
        were classified right; (2,) float32, of which the first is differentiable."""
        images = distorted(batch.images, positions, self._distortion_key, self.source.distortion)
        count = len(batch)
        again = steady(self.compile_mode) if count in self._computed else contextlib.nullcontext()
        with again, autocast(self.precision, self.device):
            found = self._losses(images, batch.labels)
        self._computed.add(count)
        return found

    def right(self, batch: Images) -> Tensor:
        """How many images are classified right (0-d), without distortion and without gradients. Never compiled: parts of
        held-out images come in many sizes, and few of them."""
        with torch.no_grad(), autocast(self.precision, self.device):
            right: Tensor = (self.model(batch.images).argmax(-1) == batch.labels).sum()
        return right

    def rebuild(self) -> None:
        """Bring number format and compilation to what `config` now has.

        Raises:
            UsageError: the device cannot do it; nothing has changed.
        """
        config, device = self.config, self.device
        precision = choose_precision(cast(Precision, config.precision), device)
        mode = config.compile
        if mode == "auto":
            mode = "default" if device.type == "cuda" else "off"
        use(precision)
        self.precision, self.compile_mode = precision, cast(CompileMode, mode)
        config.precision, config.compile = precision, mode
        self.scaler = grad_scaler(precision, device)
        self._computed.clear()

        model = self.model

        def losses(images: Tensor, labels: Tensor) -> Tensor:
            logits = model(images)
            right = (logits.argmax(-1) == labels).sum()
            return torch.stack((functional.cross_entropy(logits, labels, reduction="sum"), right))

        self._losses = compiled(losses, self.compile_mode)

    def fit(self) -> None:
        """Bring micro-batches to the sizes that `config` now has; a `micro_batch` of 0 is chosen.

        Raises:
            ValueError: the batch has no image for some rank, or is read into memory that is too small; nothing has changed.
            MemoryError: not even one image fits.
        """
        config, world = self.config, self.ranks.world
        if config.batch_size < world:
            raise ValueError(f"batch_size = {config.batch_size}: {world} ranks need an image each")
        largest = config.largest_share(world)
        if not isinstance(self.source, Resident):
            needed = largest * self.ranks.local_world * self.source.channels * self.source.image_size**2
            if needed > (limit := limit_bytes(torch.device("cpu"))):
                raise ValueError(
                    f"batch_size = {config.batch_size}: its images take {needed / 1e9:.1f} GB of this machine's memory, "
                    f"which has {limit / 1e9:.1f} GB for them"
                )
        config.micro_batch = self.pieces.micro_batch = min(config.micro_batch or self._chosen(), largest)
        config.grad_accum = config.pieces(largest)

    def reload(self) -> None:
        """Load images as `config` now says.

        Raises:
            ValueError: they are in device memory, and nothing loads them.
        """
        if self.loading == self._loads:
            return
        if isinstance(self.source, Resident):
            raise ValueError(f"the images ({self.source.name}) are in device memory: nothing loads them")
        self._loads = self.loading
        if self._feed is not None:
            self._feed.change(self._loads)

    def close(self) -> None:
        """End the workers that load images."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def __enter__(self) -> TrainingState:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """All that decides how training goes on, as tensors, numbers, text and dicts of them; the same on every rank."""
        open_again = {name: AUTOMATIC[name] for name in self.automatic}
        return {
            "seed": self.seed,
            "config": dataclasses.asdict(self.config) | {"grad_accum": 0} | open_again,
            "iteration": self.iteration,
            "position": self.position,
            "images": self.source.count,
            "accuracy": self.accuracy,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on where `saved` was taken, with this object's own `config`."""
        self.close()
        self.iteration, self.position, self.accuracy = (
            saved["iteration"],
            saved["position"],
            saved["accuracy"],
        )
        self.model.load_state_dict(saved["model"])
        own = [
            {name: group[name] for name in ("lr", "weight_decay")} for group in self.optimizer.param_groups
        ]
        self.optimizer.load_state_dict(saved["optimizer"])
        for group, values in zip(self.optimizer.param_groups, own, strict=True):
            group.update(values)
        if saved["scaler"] and self.scaler.is_enabled():
            self.scaler.load_state_dict(saved["scaler"])

    def _smaller(self, before: int, now: int) -> None:
        self.config.micro_batch = now
        self.config.grad_accum = self.config.pieces(self.config.largest_share(self.ranks.world))
        self.on_smaller(before, now)

    def _chosen(self) -> int:
        """The smallest of what each rank finds best: by measurement on a GPU, by a rule on a CPU."""
        largest = self.config.largest_share(self.ranks.world)
        if self.device.type == "cpu":
            return min(largest, CPU_MICRO_BATCH)
        planned = (
            0 if self.optimizer.state else 2 * self.gradient.flat.nbytes
        )  # AdamW's, made in its first step
        limit = limit_bytes(self.device) - planned
        first = min(largest, FIRST)
        try:
            size, trials = choose_micro_batch(self._trial, start=first, most=min(largest, MOST), limit=limit)
        except MemoryError:
            size, trials = choose_micro_batch(self._trial, start=1, most=first, limit=limit)
        tried = ", ".join(f"{trial.size}: {trial.size / trial.seconds:,.0f} images/s" for trial in trials)
        self.notes.append(f"micro-batch chosen by measurement: {size} ({tried})")
        return int(min(self.ranks.gather(size)))

    def _trial(self, size: int) -> Trial | None:
        """Two steady passes over `size` images without a step; the first of three compiles."""
        source = self.source
        shape = (size, source.channels, source.image_size, source.image_size)
        noise = stream(self.seed, "trial images", self.device)  # zeros would draw less power than images do
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=noise, device=self.device)
        batch = Images(images, torch.zeros(size, dtype=torch.int64, device=self.device))
        positions = torch.arange(size, device=self.device)
        reset_peak(self.device)
        began = math.nan
        fits = True
        try:
            for turn in range(3):
                if turn == 1:
                    wait_for(self.device)
                    began = time.monotonic()
                torch.autograd.backward(self.losses(batch, positions)[0])
            wait_for(self.device)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        seconds, peak = (time.monotonic() - began) / 2, peak_bytes(self.device)
        self.gradient.clear()
        release(self.device)
        return Trial(size, peak or 0, seconds) if fits else None


def make_optimizer(model: ViT, weight_decay: float, device: torch.device) -> torch.optim.AdamW:
    """AdamW in one fused kernel, decaying matrices alone. Its learning rate is one tensor, filled before each step."""
    lr = torch.zeros((), device=device)
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and name != "position"]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or name == "position"]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=BETAS, fused=True)
