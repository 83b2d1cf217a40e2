"""The state of a vision run, and its checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hoptui_trainer.common.batch import largest_share, piece_sizes
from hoptui_trainer.common.compilation import compiled
from hoptui_trainer.common.counter_rng import key
from hoptui_trainer.common.dry_run import Sizes
from hoptui_trainer.common.init_rng import stream
from hoptui_trainer.common.memory_budget import limit_bytes
from hoptui_trainer.common.precision import autocast
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.common.supervised_state import AttentionShape, SupervisedState
from hoptui_trainer.vision.augmentation import distorted
from hoptui_trainer.vision.config import LOADING, VisionConfig
from hoptui_trainer.vision.images import (
    Feed,
    Images,
    Loading,
    Resident,
    Source,
    chunk_size,
    sample_shape,
)
from hoptui_trainer.vision.model import Shape, ViT, is_matrix
from hoptui_trainer.vision.sampler import share

RULE, FIRST, MOST = 256, 64, 1024
"""Images of a micro-batch: on a CPU, and the smallest and the largest that is tried on a GPU."""
USUAL_PATCHES = 196
"""Patches of an image that these are meant for: 224² pixels in patches of 16²."""


class VisionState(SupervisedState[VisionConfig, ViT]):
    """The state of a vision run; a sample of the stream is an image or a clip.

    Whatever changes how `config` loads images calls `reload` afterwards. `close` ends the workers.

    Raises:
        UsageError: the device cannot do what `config` asks for.
        ValueError: the sizes do not fit together.
        MemoryError: not even one image fits.
    """

    FIGURES = (2,)

    def __init__(
        self, config: VisionConfig, seed: int, device: torch.device, ranks: RankGroup, source: Source
    ) -> None:
        super().__init__(config, seed, device, ranks)
        self.source = source
        self._feed: Feed | None = None
        self._loads = self.loading
        self._distortion_key = key(seed, "distortion")

        model = ViT(model_shape(config, source), seed).to(device)
        self._train(model, groups(model, config.weight_decay))

    @property
    def loads(self) -> bool:
        """Whether images come from a disk, and not from the device's own memory."""
        return not isinstance(self.source, Resident)

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
        return Loading(**{name: getattr(self.config, name) for name in LOADING})

    def figures(self, *inputs: Tensor) -> Tensor:
        """`losses` of a piece: images, labels and positions."""
        images, labels, positions = inputs
        return self.losses(Images(images, labels), positions)

    def losses(self, batch: Images, positions: Tensor) -> Tensor:
        """Summed cross-entropy (nats) over images that are distorted by their positions (n,), and how
        many of them were classified right; (2,) float32, of which the first is differentiable."""
        images = distorted(batch.images, positions, self._distortion_key, self.source.distortion)
        with self._shapes.meet(len(batch)), autocast(self.precision, self.device):
            return self._losses(images, batch.labels)

    def judge(self, batch: Images) -> Tensor:
        """Summed cross-entropy (nats) over images, and how many were classified right; (2,) float64, without
        distortion and without gradients. Never compiled: parts of held-out images come in many sizes, and few
        of them."""
        with torch.no_grad(), autocast(self.precision, self.device):
            logits = self.model(batch.images)
        loss = functional.cross_entropy(logits.float(), batch.labels, reduction="sum")
        return torch.stack((loss, (logits.argmax(-1) == batch.labels).sum())).double()

    def choose_batch(self) -> None:
        """Choose `batch_size` if it is 0: all images or clips, what memory holds at once, or the most that an
        automatic batch has.

        Raises:
            MemoryError: memory does not hold one of them.
        """
        if self.config.batch_size:
            return
        available = self.source.count
        if self.loads:  # a batch is read into the machine's memory, half of which is left to what is ahead
            room = limit_bytes(torch.device("cpu"), self.ranks.local_world) // 2
            each = math.prod(sample_shape(self.source))
            available = min(available, min(self.ranks.gather(room // each)) * self.ranks.world)
        self._choose_batch("batch_size", available, 1, self.config.unit)

    def fit(self, *, give_way: bool = False) -> None:
        """Bring micro-batches to the sizes that `config` now has; a `micro_batch` of 0 is chosen.
        With `give_way` it is smaller than asked for if memory is too short.

        Raises:
            ValueError: the batch has no image for some rank, or is read into memory that is too small;
                nothing has changed.
            MemoryError: not even one image fits.
        """
        config, world = self.config, self.ranks.world
        config.check(world)
        self._check_room()
        self._cut(give_way=give_way)

    def prove_sizes(self) -> None:
        """Compute gradients of pieces as the next step will, and drop them: this compiles, and shows whether
        they fit.

        Raises:
            MemoryError: they do not.
        """
        config, world = self.config, self.ranks.world
        # Which it is changes with the position.
        shares = config.batch_size // world, largest_share(config, world)
        self.dry_run.prove(piece_sizes(config.micro_batch, shares), self.sizes.samples)

    def reload(self) -> None:
        """Load images by the present `config`.

        Raises:
            OSError: no more processes can be started; images are loaded as before.
            ValueError: there is no memory for so many that are read ahead; images are loaded as before.
        """
        if self.loading == self._loads:
            return
        self._check_room()
        if self._feed is not None:
            self._feed.change(self.loading)
        self._loads = self.loading

    def close(self) -> None:
        """End the workers that load images."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def __enter__(self) -> VisionState:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """All that decides how training goes on, as tensors, numbers, text and dicts of them; the same on
        every rank."""
        return {
            **self._saved_progress(),
            "images": self.source.count,
            **self._saved_weights(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> bool:
        """Go on where `saved` was taken, with this object's own `config`.

        False if its model has another shape. Then weights that fit are copied, the others stay new (`kept`),
        and the learning-rate schedule starts again.
        """
        self.close()
        return self._load(saved)

    @property
    def sizes(self) -> Sizes:
        """The micro-batches to choose from: smaller ones where a sample has more patches."""
        fewer = max(1, self.model.shape.tokens // USUAL_PATCHES)
        rule, first, most = (max(1, size // fewer) for size in (RULE, FIRST, MOST))
        unit = self.config.unit
        return Sizes(rule, first, most, each=1, unit=unit, samples=unit)

    @property
    def shape(self) -> dict[str, int]:
        """The sizes of the model that a knob can change."""
        shape = self.model.shape
        sizes = {"d_model": shape.d_model, "layers": shape.layers, "heads": shape.heads}
        usual = shape.mlp_width == 4 * shape.d_model  # the only one that older checkpoints have
        return sizes if usual else {**sizes, "mlp_width": shape.mlp_width}

    @property
    def _attention_shape(self) -> AttentionShape:
        shape = self.model.shape
        return AttentionShape(shape.heads, shape.tokens, shape.d_model // shape.heads)

    def _compile(self) -> None:
        model = self.model
        model.checkpointing = self.config.checkpointing
        self._choose_attention()

        def losses(images: Tensor, labels: Tensor) -> Tensor:
            logits = model(images)
            right = (logits.argmax(-1) == labels).sum()
            return torch.stack((functional.cross_entropy(logits, labels, reduction="sum"), right))

        self._losses = compiled(losses, self.compile_mode)

    def _check_room(self) -> None:
        """Refuse what the machine's memory has no room for: a batch from a disk, and what is read ahead of
        it.

        Raises:
            ValueError: one sentence that begins with the name of a knob.
        """
        if not self.loads:
            return
        each = math.prod(sample_shape(self.source))
        batch = each * largest_share(self.config, self.ranks.world)
        ahead = each * chunk_size(self.source.frames) * self.loading.chunks
        # Of the rank that has least: a rank that went on alone would wait for the one that refuses.
        limit = min(self.ranks.gather(limit_bytes(torch.device("cpu"), self.ranks.local_world)))
        room = f"of the machine's memory on each rank, which has {limit / 1e9:.1f} GB for them"
        if batch > limit:
            raise ValueError(
                f"batch_size = {self.config.batch_size}: its {self.config.unit} take {batch / 1e9:.1f} GB "
                f"{room}"
            )
        if batch + ahead > limit:
            raise ValueError(
                f"num_workers × prefetch_factor = {self.loading.chunks - 1}: what is read ahead takes "
                f"{ahead / 1e9:.1f} GB beside a batch of {batch / 1e9:.1f}, {room}"
            )

    def _pass(self, size: int) -> None:
        """Add the gradient of `size` samples of noise: black ones would draw less power than images do."""
        source, noise = self.source, stream(self.seed, "trial images", self.device)
        shape = (size, *sample_shape(source))
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=noise, device=self.device)
        batch = Images(images, torch.zeros(size, dtype=torch.int64, device=self.device))
        torch.autograd.backward(self.losses(batch, torch.arange(size, device=self.device))[0])


def model_shape(config: VisionConfig, source: Source) -> Shape:
    """The sizes of the model for the images of `source`.

    Raises:
        ValueError: the sizes do not fit together.
    """
    return Shape(
        image_size=source.image_size,
        channels=source.channels,
        classes=source.classes,
        patch_size=config.patch_size,
        d_model=config.d_model,
        layers=config.layers,
        heads=config.heads,
        mlp_width=round(config.mlp_ratio * config.d_model),
        frames=source.frames,
        tubelet=config.tubelet,
    )


def groups(model: ViT, weight_decay: float) -> list[dict[str, Any]]:
    """The parameters of a model for its optimizer: matrices, which decay, and others, which do not."""
    matrices = [p for name, p in model.named_parameters() if is_matrix(name, p)]
    others = [p for name, p in model.named_parameters() if not is_matrix(name, p)]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
