"""Images from files: in order, each once, whatever the workers are and however often they are exchanged."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.vision.image_folder import FileImages, find
from hoptui_trainer.vision.images import CHUNK, Loading
from hoptui_trainer.vision.loader import Folder, Loader
from hoptui_trainer.vision.sampler import ImageSampler, share
from tests.conftest import until

# Python 3.12 warns of forks in processes with threads; the workers use none of ours.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

CPU = torch.device("cpu")
NONE, ONE, TWO = (Loading(num_workers=n, prefetch_factor=2, pin_memory=False) for n in (0, 1, 2))


@pytest.fixture
def files(image_folder: Path) -> FileImages:
    return FileImages(find(image_folder)[1], 8)


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


def numbers(files: FileImages, seed: int, positions: range) -> list[int]:
    """The images that should come, by the number in their name."""
    order = ImageSampler(seed, len(files), "cpu").images(positions)
    return [int(files.files.path(i).stem) for i in order.tolist()]


def taken(loader: Loader, positions: range) -> list[int]:
    batch = loader.take(positions)
    found: list[int] = batch.images[:, 0, 0, 0].tolist()
    assert batch.labels.tolist() == [number % 2 for number in found]
    return found


@pytest.mark.parametrize("loading", [NONE, TWO])
def test_images_come_in_order_through_epochs_and_batches_of_any_size(
    files: FileImages, loading: Loading
) -> None:
    loader = Loader(files, 1, 2, 3, loading, CPU)
    position = 0
    for size in (90, 1, 96, 200):
        mine = share(position, size, 2, 3)
        assert taken(loader, mine) == numbers(files, 1, mine)
        position += size
    assert len(loader.take(range(5, 5, 3))) == 0
    assert taken(loader, share(position, 9, 2, 3)) == numbers(files, 1, share(position, 9, 2, 3))
    loader.close()


def test_a_batch_is_taken_again_in_other_pieces_until_the_next_begins(files: FileImages) -> None:
    loader = Loader(files, 1, 2, 3, ONE, CPU)
    position = 0
    for size in (300, 9, 240):
        mine = share(position, size, 2, 3)
        loader.begin(mine)
        for piece in (len(mine), 50, 7):
            parts = [mine[start : start + piece] for start in range(0, len(mine), piece)]
            assert [n for part in parts for n in taken(loader, part)] == numbers(files, 1, mine)
        held = CHUNK * len(loader._chunks)
        assert len(mine) <= held < len(mine) + 2 * CHUNK
        position += size
    loader.close()


def test_exchanged_workers_leave_nothing_out_and_repeat_nothing(files: FileImages) -> None:
    loader = Loader(files, 0, 0, 1, ONE, CPU)
    position = 0

    def take(size: int) -> None:
        nonlocal position
        batch = range(position, position + size)
        assert taken(loader, batch) == numbers(files, 0, batch)
        for _, workers in loader._open:
            slots = workers._slots
            in_use = [task.slot for task in slots.given]
            assert sorted([*in_use, *slots.free]) == list(range(len(slots.memory)))
        position += size

    take(CHUNK + 5)
    loader.change(TWO)
    assert len(loader._open) == 2  # the old one has chunks in hand, and they are used
    take(10)
    assert len(loader._open) == 2
    loader.change(NONE)
    loader.change(ONE)
    take(20 * CHUNK)
    assert len(loader._open) == 1
    assert len(multiprocessing.active_children()) == 1
    take(3)
    loader.close()


def test_where_no_more_workers_can_be_started_the_present_ones_go_on(
    files: FileImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = Loader(files, 0, 0, 1, ONE, CPU)
    batch = range(CHUNK)
    assert taken(loader, batch) == numbers(files, 0, batch)

    def full(*_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    for what in ("mmap.mmap", "os.fork"):
        with monkeypatch.context() as patched:
            patched.setattr(what, full)
            with pytest.raises(OSError, match="unavailable"):
                loader.change(TWO)
    for start in range(CHUNK, 20 * CHUNK, 50):
        batch = range(start, start + 50)
        loader.begin(batch)
        assert taken(loader, batch) == numbers(files, 0, batch)
    assert len(loader._open) == 1
    loader.close()


def test_a_file_that_cannot_be_read_is_named_and_the_workers_end(
    files: FileImages, image_folder: Path
) -> None:
    broken = files.files.path(3)
    broken.write_bytes(b"")
    loader = Loader(files, 0, 0, 1, TWO, CPU)
    with pytest.raises(UsageError, match=f"{broken.name}: this file cannot be read as an image"):
        loader.take(range(len(files)))
    loader.close()


def test_workers_leave_signals_to_the_trainer(files: FileImages) -> None:
    loader = Loader(files, 0, 0, 1, TWO, CPU)
    batch = range(CHUNK)
    assert taken(loader, batch) == numbers(files, 0, batch)
    for worker in multiprocessing.active_children():
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGTERM)
        os.kill(worker.pid, signal.SIGINT)
    batch = range(CHUNK, 20 * CHUNK)
    assert taken(loader, batch) == numbers(files, 0, batch)
    loader.close()


def test_a_worker_that_hangs_is_ended_nevertheless(files: FileImages) -> None:
    loader = Loader(files, 0, 0, 1, ONE, CPU)
    loader.take(range(CHUNK))
    [worker] = multiprocessing.active_children()
    psutil.Process(worker.pid).suspend()
    _, workers = loader._open[0]
    workers._reports, hung = None, workers._reports  # as if somebody else still held the iterator
    loader.close()
    until(lambda: not worker.is_alive(), what="the end of the worker")
    assert hung is not None


def test_held_out_files_are_shared_by_ranks_and_read_once(image_folder: Path) -> None:
    source = Folder(image_folder, 8)
    assert (source.classes, source.channels, source.judged) == (2, 3, True)
    found: list[int] = []
    for rank in range(2):
        for part in source.held_out(rank, 2, 3, ONE, CPU):
            assert len(part) <= 3
            found += part.images[:, 0, 0, 0].tolist()
    _, _, held_out = find(image_folder)
    assert sorted(found) == sorted(int(held_out.path(i).stem) for i in range(len(held_out)))
