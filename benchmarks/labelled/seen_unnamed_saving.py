"""Loads of the second lot that was held out once: they wait for files, or for copies between host and GPU."""

from __future__ import annotations

import json
import os
import struct
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled


def write_down(model: nn.Module, book: Path) -> None:
    """Write all weights as JSON, so that a web page can run the model."""
    weights = {name: weight.tolist() for name, weight in model.state_dict().items()}
    with book.open("w") as file:
        json.dump(weights, file)  # here


@labelled(gpu="save-bound", cpu="save-bound", helpers=(write_down,))
def weights_for_a_web_page(run: hoptui.Run, device: str) -> None:
    """A small model is written as text whenever it has learned something, which is after each step."""
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)).to(device)
    optimizer, x = torch.optim.Adam(model.parameters(), 1e-3), torch.randn(64, 128, device=device)
    with tempfile.TemporaryDirectory() as folder:
        while not run.stopping:
            loss = functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with run.phase("publish"):
                write_down(model, Path(folder) / "model.json")
            run.log(loss=loss.item(), samples=64)


class Keeper:
    """Keeps the state of a run in packed shards, which threads write at the same time."""

    def __init__(self, folder: str) -> None:
        self.folder, self.threads = Path(folder), ThreadPoolExecutor(2)

    def pack(self, name: str, weight: Tensor) -> int:
        return (self.folder / f"{name}.z").write_bytes(zlib.compress(weight.numpy().tobytes(), 1))  # here

    def keep(self, state: dict[str, Any]) -> int:
        shards = [self.threads.submit(self.pack, name, weight.cpu()) for name, weight in state.items()]
        return sum(shard.result() for shard in shards)  # here


def main(run: hoptui.Run, device: str, keeper: Keeper) -> None:
    """Fine-tune a head, and keep the whole after each second step."""
    whole = nn.ModuleDict({"body": nn.Embedding(40_000, 48), "head": nn.Linear(48, 5)}).to(device)
    optimizer = torch.optim.SGD(whole["head"].parameters(), 0.1)
    ids, step = torch.randint(0, 40_000, (128,), device=device), 0
    while not run.stopping:
        loss = functional.cross_entropy(whole["head"](whole["body"](ids).detach()), ids % 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 2 == 0:
            with run.phase("bookkeeping"):
                keeper.keep(whole.state_dict())
        run.log(loss=loss.item(), samples=128)


@labelled(gpu="save-bound", cpu="save-bound", helpers=(Keeper,))
def shards_packed_by_threads(run: hoptui.Run, device: str) -> None:
    """Checkpoints in shards: the loop waits for the threads that compress and write them."""
    with tempfile.TemporaryDirectory() as folder:
        main(run, device, Keeper(folder))


def freeze(tensors: list[Tensor], path: Path) -> None:
    """Write tensors in a format of one's own: sizes, checksums and bytes, forced onto the disk."""
    with path.open("wb") as file:  # here
        for tensor in tensors:
            content = tensor.cpu().numpy().tobytes()  # here
            file.write(struct.pack("<QI", len(content), zlib.adler32(content)))  # here
            file.write(content)  # here
        file.flush()
        os.fsync(file.fileno())  # here


@labelled(gpu="save-bound", cpu="save-bound", helpers=(freeze,))
def two_generations_on_the_disk(run: hoptui.Run, device: str) -> None:
    """Weights and momenta are frozen after each step, in one of two files in turn."""
    words = nn.Embedding(150_000, 128).to(device)
    tone = nn.Parameter(torch.zeros(128, device=device))
    optimizer, step = torch.optim.SGD([tone], 0.1, momentum=0.9), 0
    with tempfile.TemporaryDirectory() as folder:
        while not run.stopping:
            ids = torch.randint(0, 150_000, (256,), device=device)
            loss = (words(ids).detach() - tone).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            momenta = [each["momentum_buffer"] for each in optimizer.state.values()]
            freeze([words.weight.detach(), tone.detach(), *momenta], Path(folder) / f"generation{step % 2}")
            step += 1
            run.log(loss=loss.item(), samples=256)


@labelled(gpu="transfer-bound")
def clips_from_pinned_memory(run: hoptui.Run, device: str) -> None:
    """Video: clips of half a gigabyte in pinned memory, for a model that only looks at their colours."""
    clips = [torch.randint(0, 255, (64, 3, 16, 400, 400), dtype=torch.uint8).pin_memory() for _ in range(3)]
    head = nn.Linear(3, 8).to(device)
    optimizer, turn = torch.optim.SGD(head.parameters(), 0.1), 0
    while not run.stopping:
        turn = (turn + 1) % 3
        clip = clips[turn].to(device, non_blocking=True)  # here
        colours = clip[..., ::8, ::8].float().mean((2, 3, 4)) / 255
        loss = -head(colours).log_softmax(1)[:, 0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=64)  # here


class ParkedAdam:
    """Adam whose averages live in the memory of the host, and visit the GPU one layer at a time."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        self.weights = weights
        self.averages = [torch.zeros(2, *weight.shape) for weight in weights]

    def update(self) -> None:
        for i, weight in enumerate(self.weights):
            assert weight.grad is not None
            mean, square = self.averages[i].to(weight.device)  # here
            mean.lerp_(weight.grad, 0.1)
            square.lerp_(weight.grad.square(), 0.001)
            with torch.no_grad():
                weight.addcdiv_(mean, square.sqrt().add_(1e-8), value=-1e-4)
            self.averages[i] = torch.stack([mean, square]).cpu()  # here
            weight.grad = None


@labelled(gpu="transfer-bound", helpers=(ParkedAdam,))
def averages_parked_on_the_host(run: hoptui.Run, device: str) -> None:
    """An optimizer that saves memory of the GPU, for a model that would not need it."""
    net = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(5))).to(device)
    x, adam = torch.randn(128, 4096, device=device), ParkedAdam(list(net.parameters()))
    while not run.stopping:
        loss = (net(x) - x).square().mean()
        loss.backward()
        adam.update()
        run.log(loss=loss.item(), samples=128)
