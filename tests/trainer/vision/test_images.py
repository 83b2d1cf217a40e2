from __future__ import annotations

import sys

import pytest
import torch

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.vision import images as rooms
from hoptui_trainer.vision.images import HELD_OUT, Loading, Resident, digits, synthetic
from hoptui_trainer.vision.sampler import ImageSampler, share

CPU = torch.device("cpu")
PLAIN = Loading(num_workers=0, prefetch_factor=1, pin_memory=False)


def held_out_of(source: Resident, world: int = 1, size: int = 100) -> list[torch.Tensor]:
    return [part.images for rank in range(world) for part in source.held_out(rank, world, size, PLAIN, CPU)]


def test_the_digits_are_all_there_and_no_held_out_one_is_trained_on() -> None:
    source = digits()
    feed = source.feed(0, 0, 1, PLAIN, CPU)
    train = feed.take(range(1797 - HELD_OUT))
    held_out = torch.cat(held_out_of(source))
    assert train.images.shape == (1437, 1, 8, 8)
    assert held_out.shape == (360, 1, 8, 8)
    assert train.images.dtype == torch.uint8
    assert train.images.max() == 255
    assert sorted(set(train.labels.tolist())) == list(range(10))
    everything = {bytes(image.flatten().tolist()) for image in torch.cat((train.images, held_out))}
    assert len(everything) == 1797  # no two digits are the same, so none is on both sides


def test_ranks_share_the_held_out_images() -> None:
    source = digits()
    parts = held_out_of(source, world=3, size=50)
    assert sum(map(len, parts)) == HELD_OUT
    assert max(map(len, parts)) == 50
    together = {bytes(image.flatten().tolist()) for image in torch.cat(parts)}
    assert len(together) == HELD_OUT


def test_a_resident_feed_follows_the_order() -> None:
    source = digits()
    feed = source.feed(5, 0, 2, PLAIN, CPU)
    mine = share(100, 30, 1, 2)
    every = digits().feed(5, 0, 1, PLAIN, CPU)
    order = ImageSampler(5, 1797 - HELD_OUT, CPU)
    first = {index: at for at, index in enumerate(order.images(range(1437)).tolist())}
    whole = every.take(range(1437))
    wanted = [first[i] for i in order.images(mine).tolist()]
    assert torch.equal(feed.take(mine).images, whole.images[wanted])


def test_synthetic_images_say_so_and_judge_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "POOL_BYTES", 10 * 3 * 16 * 16)
    before = torch.get_rng_state()
    source, again = synthetic(16, CPU), synthetic(16, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert source.name == "synthetic"
    assert not source.judged
    assert held_out_of(source) == []
    one, other = (s.feed(0, 0, 1, PLAIN, CPU).take(range(10)) for s in (source, again))
    assert one.images.shape == (10, 3, 16, 16)
    assert torch.equal(one.images, other.images)


def test_without_scikit_learn_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UsageError, match=r"^--data digits: .* pip install scikit-learn$"):
        digits()
