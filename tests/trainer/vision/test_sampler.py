from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hoptui_trainer.vision.sampler import ImageSampler, share


@given(
    count=st.integers(1, 40),
    start=st.integers(0, 100),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    world=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_batches_and_ranks_cut_one_stream_and_change_nothing_in_it(
    count: int, start: int, sizes: list[int], world: int
) -> None:
    whole = ImageSampler(3, count, "cpu").images(range(start, start + sum(sizes)))
    found = torch.full((sum(sizes),), -1)
    for rank in range(world):
        order, position = ImageSampler(3, count, "cpu"), start
        expected = share(start, sum(sizes), rank, world).start
        for size in sizes:
            mine = share(position, size, rank, world)
            if mine:
                # A rank's own stream has no holes, whatever the sizes of batches.
                assert mine.start == expected
                expected = mine[-1] + world
            found[[p - start for p in mine]] = order.images(mine)
            position += size
    assert torch.equal(found, whole)


def test_every_epoch_has_every_image_once_in_an_order_of_its_own() -> None:
    order = ImageSampler(0, 50, "cpu")
    first, second = (order.images(range(start, start + 50)) for start in (0, 50))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(50))
    assert first.tolist() != second.tolist()
    assert first.tolist() != list(range(50))
    assert ImageSampler(1, 50, "cpu").images(range(50)).tolist() != first.tolist()


def test_the_stream_can_be_entered_anywhere() -> None:
    whole = ImageSampler(0, 7, "cpu").images(range(310))
    assert torch.equal(ImageSampler(0, 7, "cpu").images(range(303, 310)), whole[-7:])
