from __future__ import annotations

from dataclasses import replace

import torch

from hoptui_trainer.vision.augmentation import NONE, Augmentation, distorted

ALL = Augmentation(turn=0.3, zoom=0.2, shift=0.1, flip=True)


def dot(row: int, column: int, count: int = 1) -> torch.Tensor:
    images = torch.zeros(count, 1, 9, 9, dtype=torch.uint8)
    images[:, :, row, column] = 255
    return images


def test_without_distortion_the_images_come_back_themselves() -> None:
    images = dot(1, 1)
    assert distorted(images, torch.arange(1), 0, NONE) is images


def test_a_distortion_depends_on_the_position_alone() -> None:
    images = dot(4, 5, 6)
    whole = distorted(images, torch.arange(6), 7, ALL)
    part = distorted(images[3:5], torch.tensor([3, 4]), 7, ALL)
    assert torch.equal(whole[3:5], part)
    assert not torch.equal(whole[3], whole[4])
    assert not torch.equal(distorted(images, torch.arange(6), 8, ALL), whole)


def test_a_flip_mirrors_every_second_image_and_nothing_else() -> None:
    found = distorted(dot(2, 1, 400), torch.arange(400), 1, replace(NONE, flip=True))
    mirrored = (found[:, 0, 2, 7] > 254).sum()
    assert (found[:, 0, 2, 1] > 254).sum() + mirrored == 400
    assert 150 < mirrored < 250


def test_an_image_is_moved_by_the_part_of_its_side_at_most() -> None:
    third = replace(NONE, shift=1 / 9)
    found = distorted(dot(4, 4, 300), torch.arange(300), 1, third)
    rows, columns = found[:, 0].sum(2), found[:, 0].sum(1)
    place = torch.arange(9.0)
    for weight in (rows, columns):
        centre = (weight * place).sum(1) / weight.sum(1)
        assert (centre - 4).abs().max() <= 1.001
        assert (centre - 4).abs().max() > 0.9


def test_a_turn_keeps_the_middle_and_the_distance_from_it() -> None:
    turned = distorted(dot(4, 4, 20), torch.arange(20), 1, replace(NONE, turn=1.0))
    assert (turned[:, 0, 4, 4] > 254).all()
    away = distorted(dot(4, 7, 20), torch.arange(20), 1, replace(NONE, turn=1.5))
    rows = (away[:, 0].sum(2) * torch.arange(9.0)).sum(1) / away[:, 0].sum((1, 2))
    columns = (away[:, 0].sum(1) * torch.arange(9.0)).sum(1) / away[:, 0].sum((1, 2))
    distance = ((rows - 4) ** 2 + (columns - 4) ** 2).sqrt()
    assert ((distance - 3).abs() < 0.25).all()
    assert rows.max() - rows.min() > 2
