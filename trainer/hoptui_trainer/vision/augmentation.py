"""Random rotation, scale, shift and mirroring of images, as a function of the seed and the position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hoptui_trainer.common.counter_rng import WORD, uniform

DRAWS = 5


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """The most that an image is turned (radians), scaled (a fraction) and moved (a fraction of its side)
    either way.

    With `flip`, every second one is mirrored left to right.
    """

    turn: float = 0.0
    zoom: float = 0.0
    shift: float = 0.0
    flip: bool = False


NONE = Augmentation()


def distorted(images: Tensor, positions: Tensor, key: int, most: Augmentation) -> Tensor:
    """uint8 images (N, C, H, W) as float32 with the same values' range, each distorted by its position
    (N,). All frames of a clip (N, F·C, H, W) are distorted alike.

    Without any distortion the images themselves come back.
    """
    if most == NONE:
        return images
    draws = uniform(key, positions & WORD, 0, DRAWS)
    turn, zoom, right, down = (2 * draws[:, :4] - 1).unbind(-1)
    angle, scale = turn * most.turn, 1 + zoom * most.zoom
    mirror = torch.where(draws[:, 4] < 0.5, -1.0, 1.0) if most.flip else torch.ones_like(angle)
    # affine_grid counts a side as 2.
    first = torch.stack((angle.cos() * scale * mirror, -angle.sin() * scale, 2 * most.shift * right), -1)
    second = torch.stack((angle.sin() * scale * mirror, angle.cos() * scale, 2 * most.shift * down), -1)
    grid = functional.affine_grid(torch.stack((first, second), 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images.float(), grid, align_corners=False)
