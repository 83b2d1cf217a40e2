"""Trainings that wait for their input: threads, generators, rows of a table, and clouds of points."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import bz2
import gzip
import itertools
import queue
import re
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


class ReadAhead(threading.Thread):
    """Unpacks scans in a thread, and keeps up to two batches ready."""

    def __init__(self, packed: list[bytes], batch_size: int) -> None:
        super().__init__(daemon=True)
        self.packed, self.batch_size = packed, batch_size
        self.ready: queue.Queue[Tensor] = queue.Queue(maxsize=2)
        self.finished = threading.Event()

    def run(self) -> None:
        n = 0
        while not self.finished.is_set():
            scans = []
            for _ in range(self.batch_size):
                raw = bz2.decompress(self.packed[n % len(self.packed)])  # here
                scans.append(np.frombuffer(raw, np.int16)[: 32 * 32].astype(np.float32) / 4096)
                n += 1
            batch = torch.from_numpy(np.stack(scans))
            while not self.finished.is_set():
                try:
                    self.ready.put(batch, timeout=0.5)
                    break
                except queue.Full:
                    continue

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield self.ready.get()  # here


@labelled(gpu="data-bound", cpu="data-bound", helpers=(ReadAhead,))
def one_thread_unpacks_scans(run: hoptui.Run, device: str) -> None:
    """A thread unpacks medical scans ahead of training, and is slower than training.

    A scan of 0.8 million values in bzip2 takes more than 50 ms, and a batch has 4: more than 200 ms. The
    autoencoder sees 1024 values of each, and needs less than 10 ms.
    """
    rng = np.random.default_rng(0)
    packed = [bz2.compress(rng.integers(0, 4096, 800_000).astype(np.int16).tobytes(), 1) for _ in range(2)]
    net = nn.Sequential(nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 1024)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    loader = ReadAhead(packed, batch_size=4)
    loader.start()
    try:
        for scan in loader:
            x = scan.to(device)
            loss = F.l1_loss(net(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(x))
            if run.stopping:
                break
    finally:
        loader.finished.set()


WORD = re.compile(r"[a-z]+|[0-9]+|[^\sa-z0-9]+")


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a packed file, again and again."""
    while True:
        with gzip.open(path, "rt") as text:
            yield from text


def merged(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Merge the letters of a word pair by pair, the most frequent pair first."""
    parts = list(word)
    while len(parts) > 1:
        pairs = itertools.pairwise(parts)
        rank, n = min((ranks.get(pair, 1 << 30), n) for n, pair in enumerate(pairs))  # here
        if rank == 1 << 30:
            break
        parts[n : n + 2] = [parts[n] + parts[n + 1]]
    return parts


def tokens_of(lines: Iterator[str], ranks: dict[tuple[str, str], int]) -> Iterator[int]:
    """Yield the tokens of lines."""
    for line in lines:
        for word in WORD.findall(line.lower()):  # here
            for part in merged(word, ranks):
                yield hash(part) % 512


def blocks_of(tokens: Iterator[int], size: int) -> Iterator[Tensor]:
    """Pack tokens into blocks without padding."""
    block = []
    for token in tokens:
        block.append(token)
        if len(block) == size:
            yield torch.tensor(block)
            block = []


def batches_of(blocks: Iterator[Tensor], batch_size: int) -> Iterator[Tensor]:
    """Stack blocks."""
    while True:
        yield torch.stack([next(blocks) for _ in range(batch_size)])


@labelled(gpu="data-bound", cpu="data-bound", helpers=(merged, tokens_of))
def generators_merge_byte_pairs(run: hoptui.Run, device: str) -> None:
    """A chain of generators reads packed text, splits it, merges pairs in Python, and packs blocks.

    A word of some 27 letters is gone over a dozen times: more than 40 microseconds for a dozen tokens. A
    batch has 32 x 1025 tokens: more than 100 ms. The model predicts the last token from the mean of those
    before: less than 15 ms.
    """
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlu"))
    words = ["".join(rng.choice(letters, int(n))) for n in rng.integers(18, 36, 3000)]
    ranks = {(str(a), str(b)): n for n, (a, b) in enumerate(rng.choice(letters, (60, 2)))}
    embed, out = nn.Embedding(512, 32).to(device), nn.Linear(32, 512).to(device)
    opt = torch.optim.AdamW([*embed.parameters(), *out.parameters()], lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "books.txt.gz")
        with gzip.open(path, "wt") as text:
            text.writelines(" ".join(words[n : n + 10]) + ".\n" for n in range(0, len(words), 10))
        stream = batches_of(blocks_of(tokens_of(lines_of(path), ranks), 1025), 32)
        for batch in stream:
            ids = batch.to(device)
            loss = F.cross_entropy(out(embed(ids[:, :-1]).mean(1)), ids[:, -1])
            opt.zero_grad()
            loss.backward()
            opt.step()
            run.log(loss=loss.item(), tokens=batch.numel())
            if run.stopping:
                return


class FirstSeconds:
    """Cuts the first values of each recording."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        waves = torch.stack([torch.tensor(each["audio"][: self.length]) for each in features])
        return {"x": waves, "labels": torch.tensor([each["label"] for each in features])}


@labelled(gpu="data-bound", cpu="data-bound", needs=("transformers", "accelerate", "datasets"), adapter=True)
def recordings_as_lists_of_floats(run: AdapterRun, device: str) -> None:
    """Recordings are a column of lists in a table of `datasets`, and the Trainer reads them row by row.

    A row of 300 000 floats becomes a Python list in more than 10 ms, and a batch has 8: more than 80 ms.
    The network sees the first 512 of them, and the Trainer needs less than 20 ms with it.
    """
    import datasets
    from transformers import Trainer, TrainingArguments

    from hoptui.integrations.transformers import HoptuiCallback

    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 4))

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.body(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    rng = np.random.default_rng(0)
    recordings = [rng.standard_normal(300_000).astype(np.float32) for _ in range(16)]
    table = datasets.Dataset.from_dict({"audio": recordings, "label": [n % 4 for n in range(16)]})
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=run.iterations,
            per_device_train_batch_size=8,
            use_cpu=device == "cpu",
            remove_unused_columns=False,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=20,
        )
        trainer = Trainer(
            model=Probe(),
            args=args,
            train_dataset=table,
            data_collator=FirstSeconds(512),
            callbacks=[HoptuiCallback(run.name)],
        )
        trainer.train()  # here


def farthest_points(points: Any, count: int) -> Any:
    """Choose points far from each other, one after another."""
    chosen = np.zeros(count, np.int64)
    distance = np.full(len(points), np.inf)
    for n in range(1, count):
        last = points[chosen[n - 1]]
        distance = np.minimum(distance, ((points - last) ** 2).sum(1))  # here
        chosen[n] = distance.argmax()
    return chosen


def _surfaces(count: int) -> Any:
    """Return a dataset of PyG of clouds of points, thinned out for each access."""
    from scipy.spatial import cKDTree
    from torch_geometric.data import Data, Dataset

    class Surfaces(Dataset):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.clouds = np.random.default_rng(0).standard_normal((count, 15_000, 3))

        def len(self) -> int:
            return 64 * count

        def get(self, idx: int) -> Any:
            cloud = self.clouds[idx % count]
            pos = cloud[farthest_points(cloud, 64)]
            _, near = cKDTree(pos).query(pos, k=5)
            edge_index = np.stack([np.repeat(np.arange(64), 4), near[:, 1:].ravel()])
            return Data(
                x=torch.from_numpy(pos).float(),
                edge_index=torch.from_numpy(edge_index),
                y=torch.tensor([idx % 5]),
            )

    return Surfaces()


@labelled(gpu="data-bound", cpu="data-bound", needs=("torch_geometric", "scipy"), helpers=(farthest_points,))
def pyg_thins_out_clouds(run: hoptui.Run, device: str) -> None:
    """Clouds of 15 000 points are thinned out to 64 far ones before the neighbours are looked up.

    Each of 64 rounds goes over 15 000 points with NumPy: more than 15 ms a cloud, and a batch has 8: more
    than 120 ms. Two graph convolutions over 512 nodes need less than 20 ms.
    """
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GraphConv, global_max_pool

    conv1, conv2 = GraphConv(3, 32).to(device), GraphConv(32, 32).to(device)
    lin = nn.Linear(32, 5).to(device)
    parameters = [*conv1.parameters(), *conv2.parameters(), *lin.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.005)
    loader = DataLoader(_surfaces(8), batch_size=8, shuffle=True)
    while not run.stopping:
        for data in loader:
            data = data.to(device)
            h = conv1(data.x, data.edge_index).relu()
            h = conv2(h, data.edge_index).relu()
            loss = F.cross_entropy(lin(global_max_pool(h, data.batch)), data.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=8)
            if run.stopping:
                break
