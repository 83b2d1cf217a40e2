"""Loads that wait for input or for environments."""

from __future__ import annotations

import csv
import io
import json
import math
import multiprocessing
import queue
import random
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import hoptui
from benchmarks.labelled.catalogue import labelled
from benchmarks.labelled.models import mlp, synchronize, trainer

WIDTH = 256


def batch(size: int) -> torch.Tensor:
    """Rows made in Python."""
    rows = []
    for _ in range(size):
        rows.append([math.sin(random.random()) for _ in range(WIDTH)])  # noqa: PERF401 # here
    return torch.tensor(rows)  # here


@labelled(gpu="data-bound", cpu="data-bound", helpers=(batch,))
def rows_in_python(run: hoptui.Run, device: str) -> None:
    step = trainer(mlp(device))
    while not run.stopping:
        loss = step(batch(256)[:64].to(device))
        run.log(loss=loss, samples=256)


class SlowItems(Dataset[torch.Tensor]):
    """Items that take two milliseconds each."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)  # here
        return torch.full((WIDTH,), float(index % 7))


@labelled(gpu="data-bound", cpu="data-bound", helpers=(SlowItems,))
def loader_without_workers(run: hoptui.Run, device: str) -> None:
    step = trainer(mlp(device))
    for x in DataLoader(SlowItems(), batch_size=32):
        loss = step(x.to(device))
        run.log(loss=loss, samples=32)
        if run.stopping:
            break


@labelled(gpu="data-bound", cpu="data-bound")
def loader_with_too_few_workers(run: hoptui.Run, device: str) -> None:
    step = trainer(mlp(device))
    for x in DataLoader(SlowItems(), batch_size=32, num_workers=2):  # here
        loss = step(x.to(device))
        run.log(loss=loss, samples=32)
        if run.stopping:
            break


def augment(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Turn and blur an image."""
    turned: np.ndarray[Any, Any] = np.rot90(image, random.randrange(4)).astype(np.float32)
    for _ in range(3):
        turned = (turned + np.roll(turned, 1, 0) + np.roll(turned, 1, 1)) / 3  # here
    return turned


@labelled(gpu="data-bound", cpu="data-bound", helpers=(augment,))
def images_augmented_in_the_loop(run: hoptui.Run, device: str) -> None:
    images = np.random.rand(16, 256, 256).astype(np.float32)
    step = trainer(mlp(device))
    while not run.stopping:
        x = np.stack([augment(image) for image in images])
        loss = step(torch.from_numpy(x).to(device).reshape(-1, WIDTH)[:64])
        run.log(loss=float(loss), samples=16)


WORD = re.compile(r"\w+|\W")


def tokenize(text: str) -> list[int]:
    """Number the words of a text."""
    return [hash(word.lower()) % 1000 for word in WORD.findall(text)]  # here


@labelled(gpu="data-bound", cpu="data-bound", helpers=(tokenize,))
def text_tokenized_in_the_loop(run: hoptui.Run, device: str) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 2000
    step = trainer(mlp(device))
    while not run.stopping:
        tokens = tokenize(text)
        x = torch.tensor(tokens[: 32 * WIDTH], dtype=torch.float32).view(-1, WIDTH) / 1000
        run.log(loss=step(x.to(device)), tokens=len(tokens))


def read_rows(path: Path) -> Iterator[list[float]]:
    """Read a table of numbers again and again."""
    while True:
        with path.open() as file:
            for row in csv.reader(file):  # here
                yield [float(cell) for cell in row]  # here


@labelled(gpu="data-bound", cpu="data-bound", helpers=(read_rows,))
def table_read_row_by_row(run: hoptui.Run, device: str) -> None:
    path = Path(tempfile.mkdtemp()) / "rows.csv"
    path.write_text("\n".join(",".join(f"{random.random():.6f}" for _ in range(WIDTH)) for _ in range(2000)))
    rows, step = read_rows(path), trainer(mlp(device))
    while not run.stopping:
        x = torch.tensor([next(rows) for _ in range(256)])
        run.log(loss=step(x[:64].to(device)), samples=256)


@labelled(gpu="data-bound", cpu="data-bound")
def json_lines(run: hoptui.Run, device: str) -> None:
    lines = [json.dumps({"x": [random.random() for _ in range(WIDTH)]}) for _ in range(512)]
    step = trainer(mlp(device))
    while not run.stopping:
        decoded = [json.loads(line)["x"] for line in lines]  # here
        run.log(loss=step(torch.tensor(decoded[:64]).to(device)), samples=512)


@labelled(gpu="data-bound", cpu="data-bound")
def file_of_numbers(run: hoptui.Run, device: str) -> None:
    path = Path(tempfile.mkdtemp()) / "tokens.bin"
    np.random.randint(0, 1000, 1 << 24, dtype=np.uint16).tofile(path)
    step = trainer(mlp(device))

    def get_batch(size: int) -> torch.Tensor:
        data = np.memmap(path, dtype=np.uint16, mode="r")
        starts = np.random.randint(0, len(data) - WIDTH, size)
        parts = [torch.from_numpy(data[i : i + WIDTH].astype(np.int64)) for i in starts]  # here
        return torch.stack(parts).float() / 1000

    while not run.stopping:
        x = get_batch(2048)
        run.log(loss=step(x[:64].to(device, non_blocking=True)), tokens=x.numel())


@labelled(gpu="data-bound", cpu="data-bound")
def queue_of_a_slow_thread(run: hoptui.Run, device: str) -> None:
    ready: queue.Queue[torch.Tensor] = queue.Queue(2)
    step = trainer(mlp(device))

    def produce() -> None:
        while not run.stopping:
            time.sleep(0.05)
            ready.put(torch.randn(64, WIDTH))

    threading.Thread(target=produce, daemon=True).start()
    while not run.stopping:
        x = ready.get()  # here
        run.log(loss=step(x.to(device)), samples=64)


def _decode(seed: int) -> torch.Tensor:
    time.sleep(0.08)
    return torch.full((64, WIDTH), seed % 7 / 7)


@labelled(gpu="data-bound", cpu="data-bound")
def pool_of_processes(run: hoptui.Run, device: str) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        step = trainer(mlp(device))
        for x in pool.imap(_decode, range(1 << 20)):  # here
            run.log(loss=step(x.to(device)), samples=64)
            if run.stopping:
                break


class Stream(IterableDataset[torch.Tensor]):
    """Samples that are decompressed in Python."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        packed = io.BytesIO()
        np.savez_compressed(packed, x=np.random.rand(64, WIDTH).astype(np.float32))
        while True:
            with np.load(io.BytesIO(packed.getvalue())) as found:
                yield torch.from_numpy(found["x"])  # here


@labelled(gpu="data-bound", cpu="data-bound", helpers=(Stream,))
def stream_of_archives(run: hoptui.Run, device: str) -> None:
    step = trainer(mlp(device))
    for x in DataLoader(Stream(), batch_size=8):
        with run.phase("train"):
            loss = step(x.view(-1, WIDTH)[:64].to(device))
            synchronize(device)
        run.log(loss=loss, samples=len(x))
        if run.stopping:
            break


@labelled(gpu="data-bound", cpu="data-bound", helpers=(batch,))
def phase_with_an_odd_name(run: hoptui.Run, device: str) -> None:
    step = trainer(mlp(device))
    while not run.stopping:
        with run.phase("prepare"):
            x = batch(128).to(device)
        with run.phase("optimize"):
            loss = step(x)
        run.log(loss=loss, samples=128)


class CartEnv:
    """Carts with poles, in Python."""

    def __init__(self, count: int) -> None:
        self.state = [[0.0, 0.0, 0.0, 0.0] for _ in range(count)]

    def step(self, actions: list[int]) -> list[list[float]]:
        """Advance all carts."""
        for state, action in zip(self.state, actions, strict=True):
            for _ in range(4):
                force = 10.0 if action else -10.0
                state[0] += 0.02 * state[1]  # here
                state[1] += 0.02 * force * math.cos(state[2])  # here
                state[2] = math.fmod(state[2] + 0.02 * state[3], 3.0)  # here
                state[3] += 0.02 * (9.8 * math.sin(state[2]) - force) % 5.0  # here
        return self.state


@labelled(gpu="env-bound", cpu="env-bound", helpers=(CartEnv,))
def environments_in_python(run: hoptui.Run, device: str) -> None:
    env, policy = CartEnv(1024), mlp(device, 4, 2)
    actions = [0] * 1024
    while not run.stopping:
        observed = torch.tensor(env.step(actions)).to(device)
        with torch.no_grad():
            actions = policy(observed).argmax(-1).tolist()
        run.log(env_steps=1024)


@labelled(gpu="env-bound", cpu="env-bound")
def gymnasium_one_by_one(run: hoptui.Run, device: str) -> None:
    import gymnasium

    envs = [gymnasium.make("Pendulum-v1") for _ in range(32)]
    for env in envs:
        env.reset()
    policy = mlp(device, 3, 1)
    actions = np.zeros((32, 1), np.float32)
    while not run.stopping:
        observed = []
        for env, action in zip(envs, actions, strict=True):
            found, _, done, late, _ = env.step(action)  # here
            observed.append(found)
            if done or late:
                env.reset()
        with torch.no_grad():
            chosen = policy(torch.from_numpy(np.stack(observed)).float().to(device))
        actions = chosen[:, :1].cpu().numpy()
        run.log(env_steps=32)


def _worker(connection: Connection) -> None:
    while connection.poll(600):
        if connection.recv() is None:
            return
        time.sleep(0.01)
        connection.send([0.0] * 4)


class ProcessEnvs:
    """Environments in processes of their own."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes = []
        for _ in range(count):
            mine, theirs = context.Pipe()
            context.Process(target=_worker, args=(theirs,), daemon=True).start()
            self.pipes.append(mine)

    def step(self, actions: list[int]) -> list[list[float]]:
        """Advance all environments."""
        for pipe, action in zip(self.pipes, actions, strict=True):
            pipe.send(action)
        return [pipe.recv() for pipe in self.pipes]  # here


@labelled(gpu="env-bound", cpu="env-bound", helpers=(ProcessEnvs,))
def environments_in_processes(run: hoptui.Run, device: str) -> None:
    envs, policy = ProcessEnvs(2), mlp(device, 4, 1)
    actions = [0, 0]
    while not run.stopping:
        with torch.no_grad():
            actions = policy(torch.tensor(envs.step(actions)).to(device)).argmax(-1).tolist()
        run.log(env_steps=2)


@labelled(gpu="env-bound data-bound host-bound", cpu="env-bound data-bound host-bound")
def simulator_with_numpy(run: hoptui.Run, device: str) -> None:
    positions = np.random.rand(2000, 2)

    def simulate() -> np.ndarray[Any, Any]:
        distances = np.linalg.norm(positions[:, None] - positions[None], axis=-1)  # here
        return np.asarray(distances.min(1))

    step = trainer(mlp(device, 250, 2))
    while not run.stopping:
        x = torch.from_numpy(simulate()).float().view(-1, 250)
        run.log(loss=step(x[:64].to(device)), env_steps=2000)
