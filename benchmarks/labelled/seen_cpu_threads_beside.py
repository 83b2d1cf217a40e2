"""Trainings on the CPU beside threads that leave them the interpreter: they wait, or compute in C."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import queue
import random
import tempfile
import threading
import time
import wave
import zlib
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled

SIZE = 64
RATE, SAMPLES, SPECIES = 8000, 4096, 12
BUCKETS, CUISINES = 4096, 9
PANTRY = (
    "basil tomato garlic soy ginger lime chili cumin butter cream rice noodle bean corn "
    "paprika saffron olive mint yoghurt sesame coconut thyme leek pork prawn"
)
INGREDIENTS = PANTRY.split()
STATE: dict[str, Any] = {"step": 0, "loss": None, "since": time.time()}


def block(a: int, b: int) -> nn.Module:
    """Return a convolution with what follows it."""
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))


class SmallUNet(nn.Module):
    """A U-Net of three levels."""

    def __init__(self) -> None:
        super().__init__()
        self.d1, self.d2, self.d3 = block(3, 16), block(16, 32), block(32, 48)
        self.u2, self.u1 = block(48 + 32, 32), block(32 + 16, 16)
        self.last = nn.Conv2d(16, 1, 1)
        self.up = nn.Upsample(scale_factor=2)
        self.down = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        a = self.d1(x)
        b = self.d2(self.down(a))
        c = self.d3(self.down(b))
        b = self.u2(torch.cat([self.up(c), b], 1))
        logits: Tensor = self.last(self.u1(torch.cat([self.up(b), a], 1)))
        return logits


def make_batch(rng: np.random.Generator, n: int = 6) -> tuple[Tensor, Tensor]:
    """Return tiles and their masks."""
    img = rng.standard_normal((n, 3, SIZE, SIZE), dtype="float32")
    mask = (img.mean(1, keepdims=True) > 0.2).astype("float32")
    return torch.from_numpy(img), torch.from_numpy(mask)


def prefetch(q: Queue[tuple[Tensor, Tensor]], seed: int, over: threading.Event) -> None:
    """Make batches ahead."""
    rng = np.random.default_rng(seed)
    while not over.is_set():
        q.put(make_batch(rng))


def pack_masks(results: dict[str, float], over: threading.Event) -> None:
    """Compress masks from time to time."""
    raw = (np.random.default_rng(0).random((6, 1024, 1024)) > 0.7).tobytes()
    while not over.is_set():
        packed = zlib.compress(raw, 5)
        results["ratio"] = len(packed) / len(raw)
        time.sleep(0.4)


def let_end(q: Queue[Any]) -> None:
    """Make room for a thread that puts its last batch into a full queue."""
    if q.full():
        q.get_nowait()


@labelled(cpu="healthy")
def tile_segment(run: hoptui.Run, device: str) -> None:
    """A small U-Net finds buildings in aerial tiles. A thread makes batches, another one packs masks.

    Both work in C, without the interpreter. Without them, and with batches made in the loop, it is 3 %
    slower, measured with a real-time priority.
    """
    q: Queue[tuple[Tensor, Tensor]] = queue.Queue(maxsize=4)
    results: dict[str, float] = {}
    over = threading.Event()
    threads = [
        threading.Thread(target=prefetch, args=(q, 2, over), daemon=True),
        threading.Thread(target=pack_masks, args=(results, over), daemon=True),
    ]
    for thread in threads:
        thread.start()
    net = SmallUNet().to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    try:
        while not run.stopping:
            img, mask = q.get()
            loss = nn.functional.binary_cross_entropy_with_logits(net(img.to(device)), mask.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(img))
    finally:
        over.set()
        let_end(q)
        for thread in threads:
            thread.join()


class Calibration:
    """Repeated orthogonalisation (Newton-Schulz) of a large mixing matrix."""

    def __init__(self, n: int = 900) -> None:
        self.m = np.random.default_rng(4).standard_normal((n, n)) / (2.5 * n**0.5)
        self.tmp, self.gram = np.empty_like(self.m), np.empty_like(self.m)
        self.rounds = 0
        self.over = threading.Event()

    def loop(self) -> None:
        x = self.m.copy()
        while not self.over.is_set():
            np.matmul(x.T, x, out=self.gram)
            np.matmul(x, self.gram, out=self.tmp)
            x *= 1.5
            self.tmp *= 0.5
            x -= self.tmp
            self.rounds += 1
            if self.rounds % 12 == 0:
                np.copyto(x, self.m)
                time.sleep(0.1)


class PoseNet(nn.Module):
    """A perceptron from markers to angles."""

    def __init__(self, markers: int = 40, joints: int = 22, width: int = 512) -> None:
        super().__init__()
        self.inp = nn.Linear(markers * 3, width)
        self.mid = nn.ModuleList(nn.Linear(width, width) for _ in range(5))
        self.out = nn.Linear(width, joints * 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.inp(x))
        for m in self.mid:
            h = h + torch.relu(m(h))
        angles: Tensor = self.out(h)
        return angles


def batches(size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield markers and angles without end."""
    mix = torch.randn(120, 66) / 11
    pool = torch.randn(16 * size, 120)
    angles = torch.tanh(pool @ mix)
    while True:
        for k in torch.randperm(16).tolist():
            yield pool[k * size : (k + 1) * size], angles[k * size : (k + 1) * size]


@labelled(cpu="healthy")
def pose_net(run: hoptui.Run, device: str) -> None:
    """A perceptron finds angles of joints from markers. A thread multiplies large matrices with NumPy.

    NumPy works without the interpreter. Without the thread it is 7 % faster, measured with a real-time
    priority.
    """
    calib = Calibration()
    calibrating = threading.Thread(target=calib.loop, daemon=True)
    calibrating.start()
    net = PoseNet().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    try:
        for x, y in batches(256):
            optimizer.zero_grad()
            loss = nn.functional.l1_loss(net(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(x))
            if run.stopping:
                break
    finally:
        calib.over.set()
        calibrating.join()


class StatusPage(http.server.BaseHTTPRequestHandler):
    """Shows the state of training."""

    def do_GET(self) -> None:
        body = json.dumps(STATE).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


def heartbeat(path: Path, stop: threading.Event) -> None:
    """Write the last states into a file twice a second."""
    history: list[dict[str, Any]] = []
    while not stop.wait(0.5):
        history = [*history, dict(STATE, at=time.time())][-200:]
        with path.open("w") as f:
            json.dump({"history": history, "best": min(h["loss"] or 9 for h in history)}, f)


def residual_mlp(width: int, depth: int) -> nn.Module:
    """Return a deep and narrow perceptron."""
    layers: list[nn.Module] = [nn.Linear(30, width)]
    for _ in range(depth):
        layers += [nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.Linear(width, 1))


@labelled(cpu="healthy")
def churn_mlp(run: hoptui.Run, device: str) -> None:
    """A deep and narrow perceptron foresees which customers leave. Threads serve a page and write a file.

    They nearly always wait. Without them it is 3 % faster, measured with a real-time priority.
    """
    g = torch.Generator().manual_seed(8)
    table = torch.randn(20000, 30, generator=g)
    churned = ((table[:, :5].sum(1) + torch.randn(20000, generator=g)) > 1).float().to(device)
    table = table.to(device)
    model = residual_mlp(64, 10).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    loss_fn = nn.BCEWithLogitsLoss()
    STATE.update(step=0, loss=None, since=time.time())
    stop = threading.Event()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StatusPage)
    status = threading.Thread(target=server.serve_forever, name="status", daemon=True)
    status.start()
    path = Path(tempfile.gettempdir(), f"churn-heartbeat-{os.getpid()}.json")
    beating = threading.Thread(target=heartbeat, args=(path, stop), name="heartbeat", daemon=True)
    beating.start()
    try:
        while not run.stopping:
            idx = torch.randint(0, 20000, (128,), generator=g)
            loss = loss_fn(model(table[idx]).squeeze(-1), churned[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            STATE["step"] += 1
            if STATE["step"] % 50 == 0:
                STATE["loss"] = loss.item()
            run.log(loss=loss.item(), samples=128)
    finally:
        stop.set()
        server.shutdown()
        server.server_close()
        status.join()
        beating.join()
        path.unlink(missing_ok=True)


class ClipStore:
    """Stand-in for the object store client: one batch of wav files per request."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.throttle = threading.Event()
        self.files = [self.encode(k % SPECIES) for k in range(96)]

    def encode(self, label: int) -> tuple[int, bytes]:
        tone = np.sin(np.arange(SAMPLES) * (0.05 + 0.03 * label)) * 9000 + self.rng.normal(0, 900, SAMPLES)
        out = io.BytesIO()
        with wave.open(out, "wb") as w:
            w.setnchannels(1)
            w.setsampwidth(2)
            w.setframerate(RATE)
            w.writeframes(tone.astype("<i2").tobytes())
        return label, out.getvalue()

    def request(self, n: int) -> list[tuple[int, bytes]]:
        self.throttle.wait(0.08)
        return [self.files[i] for i in self.rng.integers(0, len(self.files), n)]


def decode(clips: list[tuple[int, bytes]]) -> tuple[Tensor, Tensor]:
    """Return waves and their labels."""
    waves = []
    for _, data in clips:
        with wave.open(io.BytesIO(data)) as w:
            waves.append(np.frombuffer(w.readframes(SAMPLES), "<i2"))
    x = torch.from_numpy(np.stack(waves).astype("float32") / 32768)
    return x.unsqueeze(1), torch.tensor([label for label, _ in clips])


def download(store: ClipStore, clips: Queue[tuple[Tensor, Tensor]], n: int, over: threading.Event) -> None:
    """Request and decode batches ahead."""
    while not over.is_set():
        clips.put(decode(store.request(n)))


class Tagger(nn.Module):
    """A convolutional network over waves."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Conv1d(1, 24, 64, stride=16)
        self.body = nn.Sequential(nn.ReLU(), nn.Conv1d(24, 32, 5, stride=2), nn.ReLU(), nn.Conv1d(32, 32, 5))
        self.head = nn.Linear(32, SPECIES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(self.front(x)).mean(-1))
        return scores


@labelled(cpu="data-bound")
def birdsong(run: hoptui.Run, device: str) -> None:
    """A convolutional network tells birds apart. A thread requests clips from a store that limits requests.

    A request of 16 clips takes 0.08 s, in which the thread waits. Without the thread, and with requests in
    the loop, an iteration takes 0.087 s and training is 17 % slower, measured with a real-time priority.
    """
    store, n = ClipStore(), 16
    clips: Queue[tuple[Tensor, Tensor]] = Queue(maxsize=8)
    over = threading.Event()
    downloading = threading.Thread(target=download, args=(store, clips, n, over), daemon=True)
    downloading.start()
    tagger = Tagger().to(device)
    optimizer = torch.optim.RMSprop(tagger.parameters(), lr=1e-3)
    try:
        while not run.stopping:
            x, y = clips.get()  # here
            loss = nn.functional.cross_entropy(tagger(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=n)
    finally:
        over.set()
        let_end(clips)
        downloading.join()


def write_recipe() -> tuple[str, int]:
    """Return a recipe and its cuisine."""
    cuisine = random.randrange(CUISINES)
    favourites = INGREDIENTS[cuisine * 2 : cuisine * 2 + 8]
    words = [random.choice(favourites if random.random() < 0.6 else INGREDIENTS) for _ in range(25)]
    return "take " + " and ".join(words), cuisine


class PriceWatcher(threading.Thread):
    """Looks whether a list of prices has changed, by its digest."""

    def __init__(self, path: Path, over: threading.Event, every: float = 0.25) -> None:
        super().__init__(name="price-watcher", daemon=True)
        self.path, self.over, self.every = path, over, every
        self.digest, self.changes = "", 0

    def run(self) -> None:
        while not self.over.is_set():
            with self.path.open("rb") as f:
                digest = hashlib.blake2b(f.read()).hexdigest()
            if digest != self.digest:
                self.digest, self.changes = digest, self.changes + 1
            time.sleep(self.every)


def ngram_ids(text: str, n: int = 3) -> list[int]:
    """Return the buckets of the n-grams of a text."""
    ids = []
    for i in range(len(text) - n + 1):
        h = 2166136261
        for ch in text[i : i + n]:  # here
            h = ((h ^ ord(ch)) * 16777619) & 0xFFFFFFFF  # here
        ids.append(h % BUCKETS)
    return ids


def collate(recipes: list[tuple[str, int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return a batch of recipes as buckets, where each begins, and the cuisines."""
    flat: list[int] = []
    offsets = []
    for text, _ in recipes:
        offsets.append(len(flat))
        flat.extend(ngram_ids(text))
    return torch.tensor(flat), torch.tensor(offsets), torch.tensor([c for _, c in recipes])


@labelled(cpu="data-bound", helpers=(ngram_ids,))
def recipe_tags(run: hoptui.Run, device: str) -> None:
    """Cuisines of recipes are told from hashed n-grams. A thread looks for a new list of prices on disk.

    The n-grams are hashed in the loop, in Python. The thread reads and hashes 12 MB four times a second, in
    C. Without the thread it is as fast, measured with a real-time priority.
    """
    random.seed(21)
    recipes = [write_recipe() for _ in range(2000)]
    bag = nn.EmbeddingBag(BUCKETS, 64).to(device)
    head = nn.Sequential(nn.ReLU(), nn.Linear(64, CUISINES)).to(device)
    optimizer = torch.optim.SGD([*bag.parameters(), *head.parameters()], lr=0.3)
    over = threading.Event()
    with tempfile.NamedTemporaryFile(suffix=".csv") as prices:
        prices.write(os.urandom(12 << 20))
        prices.flush()
        watcher = PriceWatcher(Path(prices.name), over)
        watcher.start()
        try:
            while not run.stopping:
                flat, offsets, y = collate(random.sample(recipes, 64))
                scores = head(bag(flat.to(device), offsets.to(device)))
                loss = nn.functional.cross_entropy(scores, y.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss.item(), samples=len(y))
        finally:
            over.set()
            watcher.join()
