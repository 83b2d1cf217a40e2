"""Images in device memory: handwritten digits to learn from, and synthetic ones to measure speed with.

A clip is its frames one after another: (F·C, H, W), where an image is (C, H, W).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hoptui_trainer.common.counter_rng import key, shuffled
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.init_rng import stream
from hoptui_trainer.common.memory_budget import limit_bytes
from hoptui_trainer.vision.augmentation import NONE, Augmentation
from hoptui_trainer.vision.config import DIGIT_SIZE
from hoptui_trainer.vision.sampler import ImageSampler

HELD_OUT = 360
"""Of the 1,797 digits."""
POOL_BYTES = 1 << 28
"""Size of the synthetic images together: small beside the activations of a model, larger than any cache."""
MOST_SYNTHETIC = 16_384
SYNTHETIC_CLASSES = 1000
CHUNK = 32
"""Images, or frames of clips, that one worker reads and hands over at a time."""


@dataclass(frozen=True)
class Images:
    """uint8 images (N, C, H, W), or clips (N, F·C, H, W), and their labels (N,) int64."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Images:
        return Images(self.images.to(device, non_blocking=True), self.labels.to(device, non_blocking=True))


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How images are brought from a disk: processes that read them, chunks that each is ahead, pinned memory
    or not."""

    num_workers: int
    prefetch_factor: int
    pin_memory: bool

    @property
    def chunks(self) -> int:
        """How many are being read or wait to be taken, at most, and the one that is handed over."""
        return self.num_workers * self.prefetch_factor + 1 if self.num_workers else 1


class Feed(Protocol):
    """Gives the training images of one rank in the order of their positions."""

    def begin(self, positions: range) -> None:
        """Wait until the images at the next `positions` are in memory, and let go of those before them."""
        ...

    def take(self, positions: range) -> Images:
        """The images at `positions`, on the device: of those that were begun, as often as wanted, or the next
        ones."""
        ...

    def change(self, loading: Loading) -> None:
        """Load otherwise from now on; no image is left out or comes twice."""
        ...

    def close(self) -> None:
        """End what works for it."""
        ...


class Source(Protocol):
    """Images to train on (`count`) and to judge by: uint8, `channels` × `image_size`², in `classes` classes.
    With more than one of `frames`, each is a clip of as many images.

    `name` is for users. `judged` is true if there are held-out images whose labels mean something.
    """

    name: str
    count: int
    classes: int
    frames: int
    channels: int
    image_size: int
    distortion: Augmentation
    judged: bool

    def feed(self, seed: int, first: int, step: int, loading: Loading, device: torch.device) -> Feed:
        """What gives the images at position `first` and at every `step`-th one after it."""
        ...

    def held_out(
        self, rank: int, world: int, size: int, loading: Loading, device: torch.device
    ) -> Iterator[Images]:
        """A rank's part of the held-out images, at most `size` at a time, on the device."""
        ...


def sample_shape(source: Source) -> tuple[int, int, int]:
    """Of one image (C, H, W), or of one clip (F·C, H, W)."""
    return source.frames * source.channels, source.image_size, source.image_size


def chunk_size(frames: int) -> int:
    """Images or clips that one worker reads and hands over at a time."""
    return max(1, CHUNK // frames)


class Resident:
    """A source in device memory, which waits for nothing."""

    def __init__(
        self,
        name: str,
        classes: int,
        train: Images,
        held_out: Images | None = None,
        distortion: Augmentation = NONE,
        frames: int = 1,
    ) -> None:
        self.name, self.classes, self.distortion, self.frames = name, classes, distortion, frames
        self.count, depth, self.image_size, _ = train.images.shape
        self.channels = depth // frames
        self.judged = held_out is not None
        self._train, self._held_out = train, held_out

    def feed(self, seed: int, first: int, step: int, loading: Loading, device: torch.device) -> Feed:
        return _ResidentFeed(self._train.to(device), seed, device)

    def held_out(
        self, rank: int, world: int, size: int, loading: Loading, device: torch.device
    ) -> Iterator[Images]:
        if self._held_out is None:
            return
        mine = Images(self._held_out.images[rank::world], self._held_out.labels[rank::world])
        for start in range(0, len(mine), size):
            yield Images(mine.images[start : start + size], mine.labels[start : start + size]).to(device)


class _ResidentFeed:
    def __init__(self, train: Images, seed: int, device: torch.device) -> None:
        self._train = train
        self._order = ImageSampler(seed, len(train), device)

    def begin(self, positions: range) -> None:
        pass

    def take(self, positions: range) -> Images:
        index = self._order.images(positions)
        return Images(self._train.images[index], self._train.labels[index])

    def change(self, loading: Loading) -> None:
        pass

    def close(self) -> None:
        pass


def digits() -> Resident:
    """1,797 handwritten digits of 8 × 8 pixels, shipped with scikit-learn; 360 of them are held out.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UsageError(
            "--data digits: the digits come with scikit-learn: pip install scikit-learn"
        ) from None
    table, target = load_digits(return_X_y=True)
    images = (
        (torch.from_numpy(table) * (255 / 16)).round().to(torch.uint8).view(-1, 1, DIGIT_SIZE, DIGIT_SIZE)
    )
    labels = torch.from_numpy(target).long()
    # The first and the last were written by different writers: a shuffled split has both on both sides.
    order = shuffled(key(0, "held-out digits"), len(labels), 0, "cpu")
    held_out, train = order[:HELD_OUT], order[HELD_OUT:]
    return Resident(
        "digits",
        10,
        Images(images[train], labels[train]),
        Images(images[held_out], labels[held_out]),
        Augmentation(turn=0.17, zoom=0.1, shift=0.06),
    )


def synthetic(image_size: int, device: torch.device, frames: int = 1) -> Resident:
    """Random pixels with random labels, as images or as clips of `frames`: for speed alone, there is nothing
    in them to learn.

    Raises:
        UsageError: there is no memory for one of them.
    """
    generator = stream(0, "synthetic images", device)
    depth = 3 * frames
    limit = limit_bytes(device, 1)
    if depth * image_size**2 > limit:
        raise UsageError(
            f"--image-size, --frames: one sample takes {depth * image_size**2 / 1e9:.1f} GB of memory, and "
            f"{limit / 1e9:.1f} may be used; a smaller one fits"
        )
    count = min(MOST_SYNTHETIC, max(1, POOL_BYTES // (depth * image_size**2)))
    shape = (count, depth, image_size, image_size)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator, device=device)
    labels = torch.randint(0, SYNTHETIC_CLASSES, shape[:1], generator=generator, device=device)
    return Resident("synthetic", SYNTHETIC_CLASSES, Images(images, labels), frames=frames)
