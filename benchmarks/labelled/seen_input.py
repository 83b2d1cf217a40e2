"""Loads of an earlier held-out lot, development loads since: they wait for input."""

from __future__ import annotations

import lzma
import math
import multiprocessing
import queue
import random
import struct
import tempfile
import threading
import wave
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled

SPAWN = multiprocessing.get_context("spawn")


def log_mel(path: Path, filters: Any, window: Any) -> Any:
    """The log-mel spectrogram of a recording in a WAV file."""
    with wave.open(str(path)) as file:
        pcm = np.frombuffer(file.readframes(file.getnframes()), np.int16)  # here
    frames = np.lib.stride_tricks.sliding_window_view(pcm / 32768, 512)[::128]  # here
    power = np.abs(np.fft.rfft(frames * window)) ** 2  # here
    return np.log(power @ filters + 1e-6).astype(np.float32)  # here


@labelled(gpu="data-bound", cpu="data-bound", helpers=(log_mel,))
def keywords_from_recordings(run: hoptui.Run, device: str) -> None:
    """Audio: spectrograms are computed again for each batch."""
    random_numbers = np.random.default_rng(0)
    filters, window = random_numbers.random((257, 40)), np.hanning(512)
    net = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 12)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{i}.wav" for i in range(24)]
        for path in paths:
            with wave.open(str(path), "wb") as file:
                file.setparams((1, 2, 16_000, 0, "NONE", ""))
                file.writeframes(random_numbers.integers(-9000, 9000, 64_000, np.int16).tobytes())
        while not run.stopping:
            clips = [log_mel(path, filters, window) for path in random.sample(paths, 12)]
            x = torch.from_numpy(np.stack(clips)).to(device).mean(1)
            loss = functional.cross_entropy(net(x), torch.randint(0, 12, (12,), device=device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=12)


@labelled(gpu="data-bound", cpu="data-bound")
def shards_unpacked_in_a_thread(run: hoptui.Run, device: str) -> None:
    """A language model: one thread unpacks shards of tokens, slower than the model needs them."""
    tokens = np.random.default_rng(1).integers(0, 256, 600_000, np.uint16)
    shard, ready, done = lzma.compress(tokens.tobytes(), preset=1), queue.Queue[Any](2), threading.Event()

    def unpack() -> None:
        while not done.is_set():
            ids = np.frombuffer(lzma.decompress(shard), np.uint16)  # here
            with suppress(queue.Full):
                ready.put(ids[: 16 * 33].reshape(16, 33).astype(np.int64), timeout=0.2)

    thread = threading.Thread(target=unpack, daemon=True)
    thread.start()
    embedding, head = nn.Embedding(256, 64).to(device), nn.Linear(64, 256).to(device)
    optimizer = torch.optim.AdamW([*embedding.parameters(), *head.parameters()], 3e-4)
    while not run.stopping:
        ids = torch.from_numpy(ready.get()).to(device)  # here
        logits = head(embedding(ids[:, :-1]))
        loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), lr=3e-4, tokens=512, samples=16)
    done.set()
    thread.join()


class NeighbourSampler:
    """Batches of a graph: two hops of neighbours, with their nodes numbered again."""

    def __init__(self, nodes: int) -> None:
        draw = random.Random(2)
        self.near = {node: [draw.randrange(nodes) for _ in range(12)] for node in range(nodes)}

    def sample(self, roots: list[int]) -> tuple[Tensor, Tensor]:
        """The nodes, shape (N,), and the edges between them, shape (2, E)."""
        number = {node: i for i, node in enumerate(roots)}
        edges, frontier = [], roots
        for _ in range(2):
            found = []
            for node in frontier:  # here
                for other in random.sample(self.near[node], 8):  # here
                    if other not in number:  # here
                        number[other] = len(number)  # here
                    edges.append((number[other], number[node]))  # here
                    found.append(other)  # here
            frontier = found
        return torch.tensor(list(number)), torch.tensor(edges).T  # here


@labelled(gpu="data-bound", cpu="data-bound", helpers=(NeighbourSampler,))
def neighbours_of_a_graph(run: hoptui.Run, device: str) -> None:
    """GraphSAGE: the neighbourhoods are drawn in Python."""
    sampler, features = NeighbourSampler(20_000), torch.randn(20_000, 16, device=device)
    layer, head = nn.Linear(16, 16).to(device), nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], 0.01)
    while not run.stopping:
        nodes, edges = sampler.sample(random.sample(range(20_000), 128))
        x, (source, target) = layer(features[nodes.to(device)]), edges.to(device)
        x = torch.relu(x.index_add(0, target, x[source]))
        loss = functional.cross_entropy(head(x[:128]), torch.zeros(128, dtype=torch.long, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), edges=edges.shape[1], samples=128)


ROW = struct.Struct("<I12fB3s")
COUNTRIES = {b"DEU": 0, b"FRA": 1, b"ITA": 2, b"ESP": 3}


def iterate_minibatches(path: Path, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Decode records of a file for ever."""
    while True:
        with path.open("rb") as file:
            while len(block := file.read(ROW.size * size)) == ROW.size * size:
                rows, labels = [], []
                for customer, *numbers, churned, country in ROW.iter_unpack(block):  # here
                    one_hot = [float(i == COUNTRIES[country]) for i in range(4)]  # here
                    scaled = [math.copysign(math.log1p(abs(n)), n) for n in numbers]  # here
                    rows.append([*scaled, *one_hot, float(customer % 7)])  # here
                    labels.append(float(churned))  # here
                yield torch.tensor(rows), torch.tensor(labels)  # here


@labelled(gpu="data-bound", cpu="data-bound", helpers=(iterate_minibatches,))
def customers_of_a_binary_file(run: hoptui.Run, device: str) -> None:
    """Tabular data: each record is decoded by itself."""
    net = nn.Sequential(nn.Linear(17, 32), nn.SiLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    draw = random.Random(3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "customers.bin"
        names = list(COUNTRIES)
        rows = [(i, *(draw.gauss(0, 9) for _ in range(12)), i % 2, names[i % 4]) for i in range(16_384)]
        path.write_bytes(b"".join(ROW.pack(*row) for row in rows))
        for x, y in iterate_minibatches(path, 4096):
            if run.stopping:
                break
            loss = functional.binary_cross_entropy_with_logits(net(x.to(device))[:, 0], y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(x))


class PackedImages:
    """Images whose rows are differences to the row above and packed by zlib, as in a PNG file."""

    def __init__(self, count: int) -> None:
        pixels = np.random.default_rng(4).integers(0, 9, (count, 96, 288), np.uint8)
        self.packed = [zlib.compress(each.tobytes(), 6) for each in pixels]

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield torch.stack([self.decode(random.choice(self.packed)) for _ in range(48)])

    def decode(self, packed: bytes) -> Tensor:
        """One image of shape (3, 32, 32)."""
        rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(96, 288)  # here
        image = np.zeros((96, 288), np.uint8)
        above = image[0]
        for i, row in enumerate(rows):  # here
            above = image[i] = row + above  # here
        y, x = random.randrange(64), random.randrange(64)
        crop = image.reshape(96, 96, 3)[y : y + 32, x : x + 32]
        return torch.from_numpy(crop.astype(np.float32) / 255).permute(2, 0, 1)  # here


@labelled(gpu="data-bound", cpu="data-bound", helpers=(PackedImages,))
def packed_images(run: hoptui.Run, device: str) -> None:
    """Vision: an iterator decodes images when the batch is needed."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    batches = iter(PackedImages(200))
    while not run.stopping:
        images = next(batches).to(device)
        loss = functional.cross_entropy(net(images), torch.zeros(48, dtype=torch.long, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=48)


def produce_pairs(pairs: Any) -> None:
    """Corrupt sentences for ever, in a process."""
    while True:
        text = [random.choice("abcdefgh ") for _ in range(60_000)]
        noisy = [random.choice("xyz") if random.random() < 0.1 else each for each in text]
        pairs.put(("".join(text).encode(), "".join(noisy).encode()))


@labelled(gpu="data-bound", cpu="data-bound")
def sentences_of_two_processes(run: hoptui.Run, device: str) -> None:
    """A denoiser of text: two processes produce pairs, and the loop waits for each."""
    pairs: Any = SPAWN.Queue(4)
    makers = [SPAWN.Process(target=produce_pairs, args=(pairs,), daemon=True) for _ in range(2)]
    for maker in makers:
        maker.start()
    net = nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 256)).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    while not run.stopping:
        text, noisy = pairs.get()  # here
        wanted, given = (
            torch.frombuffer(bytearray(each[:1024]), dtype=torch.uint8) for each in (text, noisy)
        )
        loss = functional.cross_entropy(net(given.to(device).long()), wanted.to(device).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=1)
    for maker in makers:
        maker.terminate()
        maker.join()
    pairs.close()


def two_views(image: Tensor) -> tuple[Tensor, Tensor]:
    """Two random crops of an image of shape (3, 160, 160), blurred and with other colours."""
    views = []
    for _ in range(2):
        y, x = random.randrange(32), random.randrange(32)
        view = image[:, y : y + 128, x : x + 128].flip(2) * random.uniform(0.6, 1.4)  # here
        view = functional.avg_pool2d(view, 9, stride=1, padding=4)  # here
        view = functional.interpolate(view[None], size=96, mode="bicubic")[0]  # here
        views.append((view - view.mean()) / view.std())  # here
    return views[0], views[1]


@labelled(gpu="data-bound", cpu="data-bound", helpers=(two_views,))
def contrastive_pairs(run: hoptui.Run, device: str) -> None:
    """SimCLR: the views are made one by one on the host."""
    images = torch.rand(64, 3, 160, 160)
    net = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(432, 64)).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    while not run.stopping:
        with run.phase("augment"):
            pairs = [two_views(images[i]) for i in random.sample(range(64), 16)]
        a, b = (
            functional.normalize(net(torch.stack(views).to(device))) for views in zip(*pairs, strict=True)
        )
        loss = functional.cross_entropy(a @ b.T / 0.1, torch.arange(16, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=16)
