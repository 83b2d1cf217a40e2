"""Images in a folder with one subfolder per class: found, split, and read one by one."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hoptui_trainer.common.errors import UsageError

ARRAYS = frozenset({".npy"})
PICTURES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})
HELD_OUT_OF_256 = 13
"""Of 256 hashes of names, those whose files are held out: 5 %."""


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
    """Files as images of `size` × `size` pixels."""

    def __init__(self, files: Files, size: int) -> None:
        self.files, self.size = files, size

    def __len__(self) -> int:
        return len(self.files)

    def read(self, indices: Sequence[int], into: Tensor) -> None:
        """The images at `indices` as the first ones of `into`, uint8 (n, 3, size, size).

        Raises:
            UsageError: a file cannot be read as an image.
        """
        for place, index in enumerate(indices):
            into[place] = read_image(self.files.path(index), self.size)

    def labels(self, indices: Sequence[int]) -> list[int]:
        return [self.files.labels[index] for index in indices]


def find(root: Path) -> tuple[list[str], Files, Files]:
    """The classes under a folder by name, the files to train on and the held-out ones.

    `root/train` and `root/val` are taken if they are there; else `root` itself is split by the files' names,
    so that a file that is added moves no other.

    Raises:
        UsageError: one sentence that names what is missing.
    """
    if not root.is_dir():
        raise UsageError(f"--data {root}: there is no such folder, and it is neither digits nor synthetic")
    parts = (root / "train", root / "val")
    if all(part.is_dir() for part in parts):
        classes = _classes(parts[0])
        missing = set(_classes(parts[1])) - set(classes)
        if missing:
            raise UsageError(f"--data {root}: the class {min(missing)} is in val and not in train")
        train, held_out = (list(_images(part, classes)) for part in parts)
    else:
        classes = _classes(root)
        train, held_out = [], []
        for name, label in _images(root, classes):
            (held_out if _is_held_out(name) else train).append((name, label))
        parts = (root, root)
    if not train:
        raise UsageError(f"--data {root}: no image to train on in folders of it, one a class")
    names = {Path(name).suffix.lower() for name, _ in (*train, *held_out)}
    if names & PICTURES:
        _need_pillow(root)
    return classes, Files(parts[0], train), Files(parts[1], held_out)


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


def _images(folder: Path, classes: Sequence[str]) -> Iterable[tuple[str, int]]:
    for label, name in enumerate(classes):
        for path in sorted((folder / name).rglob("*")):
            if path.suffix.lower() in ARRAYS | PICTURES:
                yield str(path.relative_to(folder)), label


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
