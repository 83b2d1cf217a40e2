"""Images from files, read by worker processes that can be exchanged while training goes on.

When the loading changes, the old workers deliver what they have begun, and the new ones, started at once,
begin with the chunk after that. So nothing is read in vain, nothing is left out and nothing waits for
processes to start.

Workers read into memory that they share with the trainer from the beginning, and send it a word when they
have. A tensor that is sent is new shared memory each time, whose handle is fetched over a socket:
docs/internals/benchmark_log.md has what that costs.
"""

from __future__ import annotations

import math
import mmap
import multiprocessing
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.vision.augmentation import Augmentation
from hoptui_trainer.vision.image_folder import FileImages, find
from hoptui_trainer.vision.images import Feed, Images, Loading, chunk_size
from hoptui_trainer.vision.sampler import ImageSampler

LEFT_TO_THE_TRAINER = (signal.SIGINT, signal.SIGTERM)
PHOTOS = Augmentation(turn=0.0, zoom=0.15, shift=0.08, flip=True)


class Folder:
    """A source of files: see `image_folder.find` for how images and clips lie in it, and for what is held
    out.

    Raises:
        UsageError: the folder holds no images, or no clips, one folder a class.
    """

    def __init__(self, root: Path, image_size: int, frames: int = 1) -> None:
        names, train, held_out = find(root, frames)
        unit = "clips" if frames > 1 else "images"
        self.name, self.count, self.classes = f"{root} ({len(train):,} {unit})", len(train), len(names)
        self.frames, self.channels, self.image_size = frames, 3, image_size
        self.distortion = PHOTOS
        self.judged = len(held_out) > 0
        self._train = FileImages(train, image_size, frames)
        self._held_out = FileImages(held_out, image_size, frames)

    def feed(self, seed: int, first: int, step: int, loading: Loading, device: torch.device) -> Feed:
        return Loader(self._train, seed, first, step, loading, device)

    def held_out(
        self, rank: int, world: int, size: int, loading: Loading, device: torch.device
    ) -> Iterator[Images]:
        mine = range(rank, len(self._held_out), world)
        size = min(size, chunk_size(self.frames))
        chunks = [list(mine[i : i + size]) for i in range(0, len(mine), size)]
        workers = Workers(self._held_out, chunks, loading, device)
        try:
            for chunk in workers:
                yield chunk.to(device)
        finally:
            workers.close()


class Loader:
    """A feed of the images at position `first` and every `step`-th one after it.

    What was begun stays in the host's memory until the next `begin`: a batch for which the device's memory is
    too short is taken again in smaller pieces.
    """

    def __init__(
        self, files: FileImages, seed: int, first: int, step: int, loading: Loading, device: torch.device
    ) -> None:
        self._files, self._device, self._chunk = files, device, chunk_size(files.frames)
        self._order = ImageSampler(seed, len(files), "cpu")
        self._first, self._step = first, step
        self._chunks: list[Images] = []
        self._open: deque[tuple[_Ahead, Workers]] = deque()
        self._begin(first, loading)

    def begin(self, positions: range) -> None:
        """Forget the images before `positions`, and wait for the workers until those there are read."""
        passed = self._place(positions.start) // self._chunk
        del self._chunks[:passed]
        self._first += passed * self._chunk * self._step
        self._read(positions)

    def take(self, positions: range) -> Images:
        """The images at `positions`, of which none may lie before those begun; waits for what is not read
        yet."""
        self._read(positions)
        start, count = self._place(positions.start), len(positions)
        found = Images(
            torch.empty(count, *self._files.shape, dtype=torch.uint8, device=self._device),
            torch.empty(count, dtype=torch.int64, device=self._device),
        )
        filled = 0
        while filled < count:
            number, first = divmod(start + filled, self._chunk)
            part = slice(first, first + count - filled)
            more = len(self._chunks[number].labels[part])
            found.images[filled : filled + more].copy_(self._chunks[number].images[part], non_blocking=True)
            found.labels[filled : filled + more].copy_(self._chunks[number].labels[part], non_blocking=True)
            filled += more
        return found

    def change(self, loading: Loading) -> None:
        """Let new workers load `loading`'s way what the present ones have not begun.

        Raises:
            OSError: they cannot be started; the present ones go on.
        """
        ahead, _ = self._open[-1]
        self._begin(ahead.next, loading)
        ahead.ended = True

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        for _, workers in self._open:
            workers.close()
        self._open.clear()

    def _begin(self, position: int, loading: Loading) -> None:
        ahead = _Ahead(self._order, position, self._step, self._chunk)
        self._open.append((ahead, Workers(self._files, ahead, loading, self._device)))

    def _place(self, position: int) -> int:
        """Where the image at `position` is, counted from the first that is in memory."""
        place, rest = divmod(position - self._first, self._step)
        assert place >= 0
        assert rest == 0
        return place

    def _read(self, positions: range) -> None:
        assert positions.step == self._step
        while len(self._chunks) * self._chunk <= self._place(positions.start) + max(0, len(positions) - 1):
            while (chunk := next(self._open[0][1], None)) is None:
                self._open.popleft()[1].close()
            self._chunks.append(chunk)


class Workers(Iterator[Images]):
    """The images of chunks of files, in their order, read by `loading.num_workers` processes (0: by this
    one).

    They start with this object and live until there are no more chunks or `close` is called.

    Raises:
        OSError: there is no memory for what they read, or no more processes can be started.
        UsageError: from `next`: a file cannot be read as an image.
    """

    def __init__(
        self, files: FileImages, chunks: Iterable[list[int]], loading: Loading, device: torch.device
    ) -> None:
        before = set(multiprocessing.active_children())
        self._files = files
        self._pin = loading.pin_memory and device.type == "cuda"
        self._slots = _Slots(loading.chunks, (chunk_size(files.frames), *files.shape))
        loader = DataLoader(
            _Reader(files, self._slots.memory),
            batch_size=None,
            sampler=self._slots.tasks(chunks),
            num_workers=loading.num_workers,
            prefetch_factor=loading.prefetch_factor if loading.num_workers else None,
            multiprocessing_context="fork" if loading.num_workers else None,
            worker_init_fn=_let_the_parent_decide,
            generator=torch.Generator().manual_seed(0),  # else it draws from the global one
        )
        # Blocked until the workers have learned to ignore them: one that comes while they start would end
        # them.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_THE_TRAINER)
        try:
            self._reports: Iterator[str] | None = iter(loader)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self.processes = set(multiprocessing.active_children()) - before

    def __next__(self) -> Images:
        if self._reports is None:
            raise StopIteration
        if wrong := next(self._reports):
            raise UsageError(wrong)
        slot, files = self._slots.given.popleft()
        shared = self._slots.memory[slot, : len(files)]
        images = torch.empty(shared.shape, dtype=torch.uint8, pin_memory=self._pin)
        images.numpy()[:] = shared.numpy()  # torch would wake a thread on every core for it
        self._slots.free.append(slot)
        return Images(images, torch.tensor(self._files.labels(files), pin_memory=self._pin))

    def close(self) -> None:
        # A DataLoader ends its workers when its iterator is let go; one that hangs in a read would not
        # notice.
        self._reports = None
        for process in self.processes:
            process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()
        self.processes = set()


class _Task(NamedTuple):
    """Files to read, and the slot to read them into."""

    slot: int
    files: list[int]


class _Slots:
    """Memory that workers share with the trainer: `memory` (slots, *chunk) uint8, where `chunk` is the shape
    of as many samples as one worker hands over at a time.

    It is handed on by forking and has no name: a container's few megabytes of /dev/shm do not limit it, and
    it is gone with the last process. `given` are the tasks given out, in their order, whose slots are not yet
    back in `free`.
    """

    def __init__(self, count: int, chunk: tuple[int, ...]) -> None:
        shape = (count, *chunk)
        self.memory = torch.frombuffer(mmap.mmap(-1, math.prod(shape)), dtype=torch.uint8).view(shape)
        self.free = deque(range(count))
        self.given: deque[_Task] = deque()

    def tasks(self, chunks: Iterable[list[int]]) -> Iterator[_Task]:
        """Each chunk with a free slot."""
        for files in chunks:
            task = _Task(self.free.popleft(), files)
            self.given.append(task)
            yield task


class _Reader(Dataset[str]):
    """What a worker does: reads files into a slot, and returns what went wrong, because exceptions of
    workers travel badly."""

    def __init__(self, files: FileImages, memory: Tensor) -> None:
        self._files, self._memory = files, memory

    def __getitem__(self, task: _Task) -> str:
        try:
            self._files.read(task.files, self._memory[task.slot])
        except UsageError as error:
            return str(error)
        return ""


class _Ahead:
    """The chunks of `size` samples from a position on, until `ended` is set; `next` is the position of the
    first one not asked for."""

    def __init__(self, order: ImageSampler, position: int, step: int, size: int) -> None:
        self._order, self._step, self._span = order, step, size * step
        self.next = position
        self.ended = False

    def __iter__(self) -> Iterator[list[int]]:
        while not self.ended:
            positions = range(self.next, self.next + self._span, self._step)
            self.next += self._span
            yield self._order.images(positions).tolist()


def _let_the_parent_decide(_: int) -> None:
    """In a worker: a signal to the whole group, such as Ctrl-C or Slurm's SIGTERM, asks the trainer to stop,
    not this."""
    for number in LEFT_TO_THE_TRAINER:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_THE_TRAINER)
