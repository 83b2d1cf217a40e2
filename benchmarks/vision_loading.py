"""Images of 256² from files, scaled to 224² and copied to the device: ours, and a plain `DataLoader` as one
writes it, in turns.

`python -m benchmarks.vision_loading [--quick]`. Both read the same files, 32 at a time, with as many worker
processes, into pinned memory where there is a GPU. Nothing else is done with them, so this is the most that
training could get.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from benchmarks.diagnosis import pictures
from benchmarks.measure import report, spread, tell
from hoptui_trainer.common.device import choose_device
from hoptui_trainer.vision.images import CHUNK, Loading
from hoptui_trainer.vision.loader import Folder

FILES, SIDE, SIZE, AHEAD = 2_048, 256, 224, 4
TURNS, SPELL_S = 5, 4.0
FIRST = 16
"""Chunks that do not count: workers start, and files come into the page cache."""

Take = Callable[[], object]
"""Brings the next chunk to the device."""


class Plain(Dataset[tuple[Tensor, int]]):
    """The same images, read as usual: each scaled in floating point, collated and sent by `DataLoader`."""

    def __init__(self, root: Path) -> None:
        self._paths = sorted(root.rglob("*.npy"))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path = self._paths[index]
        image = torch.from_numpy(np.load(path)).permute(2, 0, 1).float()
        scaled = functional.interpolate(image[None], (SIZE, SIZE), mode="bilinear", antialias=True)
        return scaled[0].round().to(torch.uint8), int(path.parent.name)


@contextmanager
def plain(root: Path, workers: int, device: torch.device) -> Iterator[Take]:
    loader = DataLoader(
        Plain(root),
        batch_size=CHUNK,
        shuffle=True,
        num_workers=workers,
        prefetch_factor=AHEAD,
        pin_memory=device.type == "cuda",
        persistent_workers=True,
    )
    chunks = itertools.chain.from_iterable(itertools.repeat(loader))
    yield lambda: [part.to(device, non_blocking=True) for part in next(chunks)]


@contextmanager
def ours(root: Path, workers: int, device: torch.device) -> Iterator[Take]:
    loading = Loading(num_workers=workers, prefetch_factor=AHEAD, pin_memory=True)
    with closing(Folder(root, SIZE).feed(0, 0, 1, loading, device)) as feed:
        starts = itertools.count(step=CHUNK)

        def take() -> object:
            start = next(starts)
            feed.begin(range(start, start + CHUNK))
            return feed.take(range(start, start + CHUNK))

        yield take


def spell(take: Take, seconds: float) -> tuple[float, float]:
    """Images a second, and milliseconds of this process's CPU time for each chunk."""
    for _ in range(FIRST):
        take()
    count, began, busy = 0, time.perf_counter(), time.process_time()
    while (took := time.perf_counter() - began) < seconds:
        take()
        count += 1
    return count * CHUNK / took, (time.process_time() - busy) / count * 1e3


def compared(root: Path, workers: int, device: torch.device, seconds: float, turns: int) -> dict[str, Any]:
    """Both in turns, with so many workers."""
    rates: dict[str, list[float]] = {"ours": [], "plain": []}
    costs: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(turns):
        for name, way in (("ours", ours), ("plain", plain)):
            with way(root, workers, device) as take:
                rate, cost = spell(take, seconds)
            rates[name].append(rate)
            costs[name].append(cost)
    return {
        "images_per_s": {name: spread(values, 0) for name, values in rates.items()},
        "main_process_ms_a_chunk": {name: spread(values, 2) for name, values in costs.items()},
        "ratio": spread([a / b for a, b in zip(rates["ours"], rates["plain"], strict=True)], 2),
    }


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vision_loading")
    parser.add_argument("--quick", action="store_true", help="a second of each; keeps no result")
    given = parser.parse_args(list(arguments))
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    device = choose_device("auto")
    torch.set_num_threads(1)  # copies within the host would keep threads spinning on the cores that read
    cores = len(os.sched_getaffinity(0))
    counts = [1] if given.quick else sorted({1, 2, max(2, cores // 4), max(2, cores // 2)})
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hoptui-images-") as folder:
        root = pictures(Path(folder), 256 if given.quick else FILES, SIDE)
        for workers in counts:
            seconds, turns = (0.5, 1) if given.quick else (SPELL_S, TURNS)
            name = f"{workers} worker{'s'[: workers != 1]}"
            found[name] = tell(name, compared(root, workers, device, seconds, turns))
    return (
        {"cases": found} if given.quick else report("vision_loading", {"device": str(device), "cases": found})
    )


if __name__ == "__main__":
    main(sys.argv[1:])
