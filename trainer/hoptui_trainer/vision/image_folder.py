"""Images or clips in a folder with one subfolder per class: found, split, and read one by one.

An image is a file, anywhere in the folder of its class. A clip is a folder of frames in that of its class,
`class/clip/frame.jpg`.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hoptui_trainer.common.errors import UsageError

ARRAYS = frozenset({".npy"})
PICTURES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})
LAYOUT = "with --frames a clip is a folder of frames: class/clip/frame.jpg"
HELD_OUT_OF_256 = 13
"""Of 256 hashes of names, those whose files are held out: 5 %."""


class Found(NamedTuple):
    """An image or a clip in a folder: its path in there, the number of its class, and the end of the names of
    its files."""

    name: str
    label: int
    kind: str


class Files:
    """Paths under a root and their labels. One block of bytes each: a list of a million strings would be
    copied page by page into every forked worker as it counts references."""

    def __init__(self, root: Path, names: Iterable[tuple[str, int]]) -> None:
        self._root = root
        self._ends, self.labels = array("q"), array("q")
        joined = bytearray()
        for name, label in names:
            joined += name.encode("utf-8", "surrogateescape")
            self._ends.append(len(joined))
            self.labels.append(label)
        self._names = bytes(joined)

    def __len__(self) -> int:
        return len(self._ends)

    def path(self, index: int) -> Path:
        start = self._ends[index - 1] if index else 0
        return self._root / self._names[start : self._ends[index]].decode("utf-8", "surrogateescape")


class FileImages:
    """Files as images of `size` × `size` pixels; with more than one of `frames`, folders as clips of them.

    `shape` is that of one: (3, size, size), or (frames·3, size, size) with one frame after another.
    """

    def __init__(self, files: Files, size: int, frames: int = 1) -> None:
        self.files, self.size, self.frames = files, size, frames
        self.shape = (3 * frames, size, size)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, indices: Sequence[int], into: Tensor) -> None:
        """The images or clips at `indices` as the first ones of `into`, uint8 (n, *shape).

        Raises:
            UsageError: a file cannot be read as an image, or a clip has no frames any more.
        """
        for place, index in enumerate(indices):
            path = self.files.path(index)
            if self.frames > 1:
                self._read_clip(path, into[place])
            else:
                into[place] = read_image(path, self.size)

    def _read_clip(self, folder: Path, into: Tensor) -> None:
        frames = into.view(self.frames, 3, self.size, self.size)
        before: tuple[Path | None, Tensor] = None, into
        for frame, path in zip(frames, frame_files(folder, self.frames), strict=True):
            if path != before[0]:
                before = path, read_image(path, self.size)
            frame[:] = before[1]

    def labels(self, indices: Sequence[int]) -> list[int]:
        return [self.files.labels[index] for index in indices]


def find(root: Path, frames: int = 1) -> tuple[list[str], Files, Files]:
    """The classes under a folder by name, the files to train on and the held-out ones; with more than one of
    `frames`, the folders of clips.

    `root/train` and `root/val` are taken if they are there; else `root` itself is split by the names of
    images or clips, so that one that is added moves no other.

    Raises:
        UsageError: one sentence that names what is missing.
    """
    if not root.is_dir():
        raise UsageError(f"--data {root}: there is no such folder, and it is neither digits nor synthetic")
    listed = _clips if frames > 1 else _images
    parts = (root / "train", root / "val")
    if all(part.is_dir() for part in parts):
        classes = _classes(parts[0])
        missing = set(_classes(parts[1])) - set(classes)
        if missing:
            raise UsageError(f"--data {root}: the class {min(missing)} is in val and not in train")
        train, held_out = (list(listed(part, classes)) for part in parts)
    else:
        classes = _classes(root)
        train, held_out = [], []
        for found in listed(root, classes):
            (held_out if _is_held_out(found.name) else train).append(found)
        parts = (root, root)
    if not train:
        what = f"clip to train on ({LAYOUT})" if frames > 1 else "image to train on"
        raise UsageError(f"--data {root}: no {what} in folders of it, one a class")
    if {found.kind for found in (*train, *held_out)} & PICTURES:
        _need_pillow(root)
    names = [[(found.name, found.label) for found in part] for part in (train, held_out)]
    return classes, Files(parts[0], names[0]), Files(parts[1], names[1])


def frame_files(folder: Path, count: int) -> list[Path]:
    """The frames of a clip to take: `count` files of its folder in the order of their names, evenly spaced
    over all of them. Of fewer files, some are taken several times.

    Raises:
        UsageError: there is no frame in it.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if _kind(entry.name) in ARRAYS | PICTURES)
    except OSError as error:
        raise UsageError(f"{folder}: this clip cannot be read ({error.strerror})") from None
    if not names:
        raise UsageError(f"{folder}: there are no frames in this clip")
    return [folder / names[(2 * i + 1) * len(names) // (2 * count)] for i in range(count)]


def read_image(path: Path, size: int) -> Tensor:
    """The middle square of an image, scaled to (3, size, size) uint8. Arrays are (H, W) or (H, W, 3) uint8.

    Raises:
        UsageError: the file cannot be read as an image.
    """
    try:
        image = _array(path) if path.suffix.lower() in ARRAYS else _picture(path, size)
    except Exception as error:  # decoders raise anything, from OSError to SyntaxError
        raise UsageError(f"{path}: this file cannot be read as an image ({error})") from None
    _, height, width = image.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    image = image[:, top : top + side, left : left + side]
    if side != size:
        # Of bytes, colours last, as files have them: torch has a kernel for just that, four times as fast as
        # of floats.
        (image,) = functional.interpolate(
            image[None], (size, size), mode="bilinear", antialias=True, align_corners=False
        )
    return image.expand(3, size, size)


def _array(path: Path) -> Tensor:
    values = np.load(path, allow_pickle=False)
    if values.dtype != np.uint8 or values.ndim not in (2, 3) or values.shape[2:] not in ((), (1,), (3,)):
        raise ValueError(f"an array of {values.dtype}, shape {values.shape}")
    image = torch.from_numpy(values)
    return image[None] if image.ndim == 2 else image.permute(2, 0, 1)


def _picture(path: Path, size: int) -> Tensor:
    from PIL import Image

    with Image.open(path) as picture:
        # A JPEG is decoded at half, a quarter … of its size, where that is enough.
        picture.draft("RGB", (size, size))
        return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)


def _classes(folder: Path) -> list[str]:
    return sorted(
        entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )


def _images(folder: Path, classes: Sequence[str]) -> Iterator[Found]:
    for label, name in enumerate(classes):
        for path in sorted((folder / name).rglob("*")):
            if (kind := _kind(path.name)) in ARRAYS | PICTURES:
                yield Found(str(path.relative_to(folder)), label, kind)


def _clips(folder: Path, classes: Sequence[str]) -> Iterator[Found]:
    for label, name in enumerate(classes):
        for clip in sorted(entry for entry in (folder / name).iterdir() if entry.is_dir()):
            kinds = (_kind(entry.name) for entry in os.scandir(clip))
            if kind := next((kind for kind in kinds if kind in ARRAYS | PICTURES), None):
                yield Found(str(clip.relative_to(folder)), label, kind)


def _kind(name: str) -> str:
    """The end of a file's name, which says how it is read."""
    return Path(name).suffix.lower()


def _is_held_out(name: str) -> bool:
    return (
        hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=1).digest()[0] < HELD_OUT_OF_256
    )


def _need_pillow(root: Path) -> None:
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise UsageError(
            f"--data {root}: its pictures need Pillow: pip install pillow (.npy arrays do not)"
        ) from None
