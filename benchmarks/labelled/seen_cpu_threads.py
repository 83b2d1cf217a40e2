"""Trainings on the CPU beside a thread that computes in Python, and leaves them little of the interpreter."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import asyncio
import collections
import json
import math
import os
import random
import statistics
import string
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled

HOURS = 24 * 365
WINDOW, BATCH = 36, 24
ALPHABET = string.ascii_lowercase + " .,"
LETTER = "dear sir madam yours truly we regret to inform you that the parcel has not arrived"
WORDS = LETTER.split()
LENGTH = 120
COMPLEMENT = {"A": "T", "T": "A", "C": "G", "G": "C"}
INDEX = {b: i for i, b in enumerate("ACGT")}


class Step(NamedTuple):
    """A step of a game."""

    obs: list[float]
    act: int
    rew: float
    nxt: list[float]


def qnet() -> nn.Module:
    """Return a network that rates the five moves."""
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


class Pursuit:
    """A game of pursuit."""

    def reset(self) -> list[float]:
        self.p = [random.uniform(-1, 1) for _ in range(8)]
        return list(self.p)

    def step(self, a: int) -> tuple[list[float], float]:
        self.p[a] += 0.1 if random.random() < 0.5 else -0.1
        d = math.hypot(self.p[0] - self.p[2], self.p[1] - self.p[3])
        return list(self.p), -d


class Replay:
    """The last steps, and how much each of them counts."""

    def __init__(self, size: int) -> None:
        self.items: collections.deque[Step] = collections.deque(maxlen=size)
        self.weights = [1.0] * size

    def sample(self, n: int) -> list[Step]:
        ids = [random.randrange(len(self.items)) for _ in range(n)]
        return [self.items[i] for i in ids]


def curate(replay: Replay, over: threading.Event) -> None:
    """Keep the weights of steps fresh."""
    while not over.is_set():
        snapshot = list(replay.items)
        for i, s in enumerate(snapshot):  # here
            novelty = sum((a - b) * (a - b) for a, b in zip(s.obs, s.nxt, strict=True))  # here
            replay.weights[i] = (abs(s.rew) + novelty) ** 0.6 * 0.999 ** (len(snapshot) - i)  # here


@labelled(cpu="host-bound", helpers=(curate,))
def replay_dqn(run: hoptui.Run, device: str) -> None:
    """A double DQN learns a small game of pursuit. A thread computes weights of the replay in Python.

    Without the thread it is 37 times faster, measured with a real-time priority.
    """
    torch.manual_seed(3)
    env, replay = Pursuit(), Replay(4000)
    online, target = qnet().to(device), qnet().to(device)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    obs = env.reset()
    for _ in range(2000):
        a = random.randrange(5)
        nxt, rew = env.step(a)
        replay.items.append(Step(obs, a, rew, nxt))
        obs = nxt
    over = threading.Event()
    curator = threading.Thread(target=curate, args=(replay, over), daemon=True, name="curator")
    curator.start()
    done = 0
    try:
        while not run.stopping:
            with torch.no_grad():
                scores = online(torch.tensor(obs, device=device))
                a = int(scores.argmax()) if random.random() > 0.1 else random.randrange(5)
            nxt, rew = env.step(a)
            replay.items.append(Step(obs, a, rew, nxt))
            obs = nxt
            seen, acts, rews, following = zip(*replay.sample(32), strict=True)
            chosen = torch.tensor(acts, device=device).unsqueeze(1)
            q = online(torch.tensor(seen, device=device)).gather(1, chosen).squeeze(1)
            with torch.no_grad():
                after = torch.tensor(following, device=device)
                best = online(after).argmax(1, keepdim=True)
                goal = torch.tensor(rews, device=device) + 0.97 * target(after).gather(1, best).squeeze(1)
            loss = nn.functional.smooth_l1_loss(q, goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done % 500 == 0:
                target.load_state_dict(online.state_dict())
            run.log(loss=loss.item(), samples=32)
    finally:
        over.set()
        curator.join()


class Forecaster(nn.Module):
    """An LSTM cell that reads hour by hour."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(1, width)
        self.out = nn.Linear(width, 1)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], self.width)
        c = x.new_zeros(x.shape[0], self.width)
        for k in range(x.shape[1]):
            h, c = self.cell(x[:, k : k + 1], (h, c))
        out: Tensor = self.out(h).squeeze(1)
        return out


class DriftReport:
    """Compares sliding months with the year, again and again; re-arms its own timer."""

    def __init__(self, values: list[float], every: float = 0.01) -> None:
        self.values, self.every = values, every
        self.latest: dict[int, tuple[float, float]] = {}
        self.over = threading.Event()

    def arm(self) -> None:
        timer = threading.Timer(self.every, self.refresh)
        timer.daemon = True
        timer.start()
        self.timer = timer

    def refresh(self) -> None:
        for day in range(365 - 28):
            if self.over.is_set():
                return
            chunk = self.values[day * 24 : (day + 28) * 24]
            spread = statistics.variance(chunk)  # here
            self.latest[day] = (statistics.mean(chunk), spread)  # here
        self.arm()

    def end(self) -> None:
        self.over.set()
        self.timer.join()


@labelled(cpu="host-bound", helpers=(DriftReport,))
def electricity_forecast(run: hoptui.Run, device: str) -> None:
    """An LSTM cell foresees the use of electricity an hour ahead. Threads of a timer compute a drift report.

    Each thread computes means and variances with `statistics`, and starts the timer of the next one.
    Without them it is 20 times faster, measured with a real-time priority.
    """
    rng = np.random.default_rng(11)
    t = np.arange(HOURS)
    daily, weekly = 9 * np.sin(t * 2 * np.pi / 24), 4 * np.sin(t * 2 * np.pi / 168)
    series = 40 + daily + weekly + rng.normal(0, 1.2, HOURS)
    series = ((series - series.mean()) / series.std()).astype("float32")
    model = Forecaster().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    report = DriftReport([float(v) for v in series])
    report.arm()
    try:
        while not run.stopping:
            at = rng.integers(0, HOURS - WINDOW - 1, BATCH)
            x = torch.from_numpy(np.stack([series[i : i + WINDOW] for i in at])).to(device)
            y = torch.from_numpy(series[at + WINDOW]).to(device)
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            run.log(loss=loss.item(), samples=BATCH)
    finally:
        report.end()


def make_document(n_words: int = 400) -> str:
    """Return a letter with some noise."""
    noise = ["&amp;", "\t", "--", "\u00e9", "<br>", "!!", "3%"]
    return " ".join(random.choice(WORDS if random.random() < 0.85 else noise) for _ in range(n_words))


def scrub(text: str) -> str:
    """Return the letters and digits of a text, without tags."""
    kept, inside, previous = [], False, " "
    for ch in text:  # here
        inside = (ch == "<") or (inside and previous != ">")  # here
        if not inside and (ch.isalnum() or ch in " .,") and not (ch == previous == " "):  # here
            kept.append(ch.lower())  # here
        previous = ch  # here
    return "".join(kept)


def scrub_all(docs: list[str], over: threading.Event) -> None:
    """Scrub documents again and again."""
    total = 0
    while not over.is_set():
        for d in docs:
            total += len(scrub(d))


class TinyTransformer(nn.Module):
    """A transformer over characters."""

    mask: Tensor

    def __init__(self, dim: int = 48, heads: int = 4, depth: int = 3, ctx: int = 64) -> None:
        super().__init__()
        self.tok = nn.Embedding(len(ALPHABET), dim)
        self.pos = nn.Parameter(torch.randn(ctx, dim) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(dim, len(ALPHABET))
        self.register_buffer("mask", torch.triu(torch.full((ctx, ctx), float("-inf")), 1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos
        for b in self.blocks:
            x = b(x, src_mask=self.mask)
        logits: Tensor = self.head(x)
        return logits


@labelled(cpu="host-bound", helpers=(scrub,))
def letters_lm(run: hoptui.Run, device: str) -> None:
    """A small transformer learns the characters of letters. A thread of a pool scrubs documents.

    The thread reads them character by character. Without it training is 58 times faster, measured with a
    real-time priority.
    """
    docs = [make_document() for _ in range(50)]
    text = scrub(" ".join(docs))
    ids = torch.tensor([ALPHABET.index(c) for c in text if c in ALPHABET], device=device)
    net = TinyTransformer().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
    over = threading.Event()
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="scrub")
    pool.submit(scrub_all, docs, over)
    try:
        while not run.stopping:
            starts = torch.randint(0, len(ids) - 65, (12,))
            window = torch.stack([ids[s : s + 65] for s in starts])
            loss = F.cross_entropy(net(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=12)
    finally:
        over.set()
        pool.shutdown()


def new_sequence(positive: int) -> str:
    """Return a random sequence. A positive one has a TATA box."""
    bases = [random.choice("ACGT") for _ in range(LENGTH)]
    if positive:
        k = random.randrange(LENGTH - 6)
        bases[k : k + 6] = "TATAAT"
    return "".join(bases)


class Breeder(threading.Thread):
    """Mutates and mirrors sequences in place so that later exports are more varied."""

    def __init__(self, pool: list[tuple[str, int]], rate: float, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.pool, self.rate, self.over = pool, rate, over

    def mutate(self, seq: str) -> str:
        out = []
        for base in seq:  # here
            if random.random() < self.rate:  # here
                base = "ACGT"[int(random.random() * 4)]  # here
            out.append(COMPLEMENT[base])  # here
        return "".join(reversed(out))

    def run(self) -> None:
        while not self.over.is_set():
            slot = random.randrange(len(self.pool))
            seq, label = self.pool[slot]
            self.pool[slot] = (self.mutate(seq), label)


class Archiver(threading.Thread):
    """Compresses weights from time to time."""

    def __init__(self, blob: bytes, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.blob, self.over = blob, over
        self.sizes: list[int] = []

    def run(self) -> None:
        while not self.over.is_set():
            self.sizes = [*self.sizes[-9:], len(zlib.compress(self.blob, 6))]
            time.sleep(0.3)


@labelled(cpu="host-bound", helpers=(Breeder,))
def promoter_cnn(run: hoptui.Run, device: str) -> None:
    """A convolutional network finds promoters. One thread compresses weights, and another mutates sequences.

    The first one lets go of the interpreter. The second one works base by base in Python. Without both it
    is 6 times faster, measured with a real-time priority.
    """
    random.seed(5)
    pool = [(new_sequence(i % 2), i % 2) for i in range(1500)]
    encoded = torch.stack([torch.tensor([INDEX[b] for b in s]) for s, _ in pool]).to(device)
    target = torch.tensor([float(y) for _, y in pool], device=device)
    net = nn.Sequential(
        nn.Embedding(4, 8), nn.Flatten(), nn.Unflatten(1, (8, LENGTH)),
        nn.Conv1d(8, 24, 7, padding=3), nn.BatchNorm1d(24), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(24, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(32, 32, 3, padding=1), nn.BatchNorm1d(32), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
        nn.Flatten(), nn.Linear(32, 1),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    criterion = nn.BCEWithLogitsLoss()
    over = threading.Event()
    workers = (Archiver(os.urandom(1 << 20) * 3, over), Breeder(pool, 0.03, over))
    for worker in workers:
        worker.start()
    try:
        while not run.stopping:
            rows = torch.randint(0, len(target), (64,))
            logits = net(encoded[rows]).squeeze(1)
            loss = criterion(logits, target[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=64)
    finally:
        over.set()
        for worker in workers:
            worker.join()


@dataclass
class Config:
    """Sizes of a shop and of its model."""

    users: int = 3000
    goods: int = 2000
    dim: int = 96
    batch: int = 1024
    lr: float = 5e-3


class Tower(nn.Module):
    """An encoder of users or of goods."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, dim)
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(4))
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for lin in self.layers:
            x = x + nn.functional.gelu(lin(x))
        normed: Tensor = self.norm(x)
        return normed


class BasketService:
    """Counts which goods are bought together."""

    def __init__(self, cfg: Config) -> None:
        self.lines = [
            json.dumps({"user": random.randrange(cfg.users), "items": random.sample(range(cfg.goods), 40)})
            for _ in range(300)
        ]
        self.pairs: dict[tuple[int, int], int] = {}
        self.over = threading.Event()

    async def receive(self) -> None:
        while True:
            await self.inbox.put(random.choice(self.lines))

    async def count(self) -> None:
        while not self.over.is_set():
            basket = json.loads(await self.inbox.get())["items"]
            for i, a in enumerate(basket):
                for b in basket[i + 1 :]:  # here
                    key = (a, b) if a < b else (b, a)  # here
                    self.pairs[key] = self.pairs.get(key, 0) + 1  # here
            if len(self.pairs) > 200_000:
                self.pairs.clear()

    async def main(self) -> None:
        """Receive and count until it is over. `asyncio.run` cancels what still receives then."""
        self.inbox: asyncio.Queue[str] = asyncio.Queue(maxsize=50)
        both = asyncio.create_task(self.receive()), asyncio.create_task(self.count())
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)


@labelled(cpu="host-bound", helpers=(BasketService,))
def shop_rank(run: hoptui.Run, device: str) -> None:
    """Two towers rank goods of a shop. A service of asyncio in a thread counts what is bought together.

    It counts the pairs of each basket in Python. Without the thread it is 48 times faster, measured with a
    real-time priority.
    """
    cfg = Config()
    user_tower, goods_tower = Tower(cfg.users, cfg.dim).to(device), Tower(cfg.goods, cfg.dim).to(device)
    optimizer = torch.optim.Adagrad([*user_tower.parameters(), *goods_tower.parameters()], lr=cfg.lr)
    service = BasketService(cfg)
    serving = threading.Thread(target=lambda: asyncio.run(service.main()), daemon=True)
    serving.start()
    try:
        while not run.stopping:
            u = torch.randint(0, cfg.users, (cfg.batch,), device=device)
            g = (u * 7 + torch.randint(0, 25, (cfg.batch,), device=device)) % cfg.goods
            scores = user_tower(u) @ goods_tower(g).T / cfg.dim**0.5
            loss = nn.functional.cross_entropy(scores, torch.arange(cfg.batch, device=device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=cfg.batch)
    finally:
        service.over.set()
        serving.join()
