"""Loads whose own Python, logs or checkpoints keep the device waiting."""

from __future__ import annotations

import asyncio
import copy
import gc
import hashlib
import json
import logging
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

import hoptui
from benchmarks.labelled.catalogue import labelled
from benchmarks.labelled.models import mlp, synchronize, trainer

WIDTH = 256


@labelled(gpu="host-bound", cpu="host-bound")
def json_between_steps(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device)), torch.randn(64, WIDTH, device=device)
    rows = [{"step": i, "name": f"row {i}", "value": i / 7} for i in range(20_000)]
    while not run.stopping:
        loss = step(x)
        synchronize(device)
        json.dumps(rows)  # here
        run.log(loss=loss, samples=64)


@labelled(gpu="host-bound", cpu="host-bound")
def statistics_in_python(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device)), torch.randn(64, WIDTH, device=device)
    values = [float(i % 97) for i in range(20_000)]
    while not run.stopping:
        loss = step(x)
        spread = statistics.pstdev(values)  # here
        run.log(loss=loss, spread=spread, samples=64)


@labelled(gpu="host-bound", cpu="host-bound")
def sorts_a_list(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device)), torch.randn(64, WIDTH, device=device)
    values = np.random.rand(150_000).tolist()
    while not run.stopping:
        loss = step(x)
        order = sorted(range(len(values)), key=values.__getitem__)  # here
        run.log(loss=loss, first=order[0], samples=64)


@labelled(gpu="host-bound", cpu="host-bound")
def percentiles_with_numpy(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device)), torch.randn(64, WIDTH, device=device)
    history = np.random.rand(1_000_000)
    while not run.stopping:
        loss = step(x)
        high = float(np.percentile(history, 99))  # here
        run.log(loss=loss, high=high, samples=64)


@labelled(gpu="host-bound", cpu="host-bound")
def sleeps_between_steps(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device)), torch.randn(64, WIDTH, device=device)
    while not run.stopping:
        run.log(loss=step(x), samples=64)
        time.sleep(0.04)  # here


@labelled(gpu="host-bound", cpu="host-bound")
def copies_its_history(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device)), torch.randn(64, WIDTH, device=device)
    history = [{"loss": i / 3, "tags": [i, i + 1]} for i in range(8_000)]
    while not run.stopping:
        loss = step(x)
        kept = copy.deepcopy(history)  # here
        run.log(loss=loss, kept=len(kept), samples=64)


@labelled(gpu="host-bound", cpu="host-bound")
def collects_garbage(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device)), torch.randn(64, WIDTH, device=device)
    kept = [[i] for i in range(400_000)]
    while not run.stopping:
        loss = step(x)
        gc.collect()  # here
        run.log(loss=loss, kept=len(kept), samples=64)


@labelled(gpu="host-bound", cpu="host-bound")
def starts_a_program(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device)), torch.randn(64, WIDTH, device=device)
    while not run.stopping:
        loss = step(x)
        subprocess.run(["sh", "-c", "sleep 0.03"], check=True)  # here
        run.log(loss=loss, samples=64)


@labelled(gpu="host-bound", cpu="host-bound")
def writes_many_log_lines(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device)), torch.randn(64, WIDTH, device=device)
    logger = logging.getLogger("training")
    logger.addHandler(logging.FileHandler(Path(tempfile.mkdtemp()) / "train.log"))
    while not run.stopping:
        loss = step(x)
        for i in range(3_000):
            logger.warning("weight %d of the layer is %f", i, i / 7)  # here
        run.log(loss=loss, samples=64)


@labelled(gpu="host-bound", cpu="host-bound")
def prints_much(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device)), torch.randn(64, WIDTH, device=device)
    with open(os.devnull, "w") as out:  # noqa: PTH123
        while not run.stopping:
            loss = step(x)
            for i in range(60_000):
                print("step", i, "of", 60_000, file=out)  # here
            run.log(loss=loss, samples=64)


@labelled(gpu="host-bound save-bound transfer-bound", cpu="host-bound save-bound")
def hashes_its_weights(run: hoptui.Run, device: str) -> None:
    model = mlp(device, 1024, 4)
    step, x = trainer(model), torch.randn(8, 1024, device=device)
    while not run.stopping:
        loss = step(x)
        digest = hashlib.sha256()
        for weight in model.parameters():
            digest.update(weight.detach().cpu().numpy().tobytes())  # here
        run.log(loss=loss, samples=8)


@labelled(gpu="host-bound", cpu="host-bound")
def steps_of_asyncio(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device)), torch.randn(64, WIDTH, device=device)

    async def reward(i: int) -> float:
        await asyncio.sleep(0)
        return sum(j * i % 7 for j in range(200_000))  # here

    async def train() -> None:
        while not run.stopping:
            rewards = await asyncio.gather(*(reward(i) for i in range(4)))
            run.log(loss=step(x), reward=rewards[0], samples=64)

    asyncio.run(train())


@labelled(gpu="host-bound", cpu="host-bound")
def loop_in_a_thread(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device)), torch.randn(64, WIDTH, device=device)

    def work() -> None:
        while not run.stopping:
            loss = step(x)
            total = 0
            for i in range(400_000):
                total += i ^ 3  # here
            run.log(loss=loss, total=total, samples=64)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@labelled(gpu="host-bound", cpu="host-bound")
def recursion(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device)), torch.randn(64, WIDTH, device=device)
    sys.setrecursionlimit(5000)

    def paths(n: int) -> int:
        return 1 if n < 2 else paths(n - 1) + paths(n - 2)  # here

    while not run.stopping:
        run.log(loss=step(x), paths=paths(22), samples=64)  # here


@labelled(gpu="save-bound", cpu="save-bound")
def saves_each_step(run: hoptui.Run, device: str) -> None:
    model = mlp(device, 1024, 8)
    step, x = trainer(model), torch.randn(1, 1024, device=device)
    path = Path(tempfile.mkdtemp()) / "last.pt"
    while not run.stopping:
        loss = step(x)
        torch.save(model.state_dict(), path)  # here
        run.log(loss=loss, samples=8)


@labelled(gpu="save-bound", cpu="save-bound")
def checkpoints_with_numpy(run: hoptui.Run, device: str) -> None:
    model = mlp(device, 1024, 4)
    step, x = trainer(model), torch.randn(8, 1024, device=device)
    folder = Path(tempfile.mkdtemp())

    def save_checkpoint() -> None:
        for name, weight in model.state_dict().items():
            with (folder / f"{name}.npy").open("wb") as file:
                np.save(file, weight.cpu().numpy())
                os.fsync(file.fileno())  # here

    while not run.stopping:
        loss = step(x)
        save_checkpoint()
        run.log(loss=loss, samples=8)


@labelled(gpu="save-bound", cpu="save-bound")
def pickles_its_buffer(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device)), torch.randn(64, WIDTH, device=device)
    buffer = [{"action": i % 4, "reward": i / 9} for i in range(50_000)]
    path = Path(tempfile.mkdtemp()) / "replay.pkl"
    while not run.stopping:
        loss = step(x)
        with path.open("wb") as file:
            pickle.dump(buffer, file)  # here
        run.log(loss=loss, samples=64)
