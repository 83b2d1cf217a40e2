"""A classifier of short sounds. Each clip is a compressed file, and the loader computes its spectrogram.

The number of loader processes is a knob, and so is how the 8-bit samples are expanded.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.loops.script import Script, options

LENGTH, WINDOW, HOP, CLASSES = 16_000, 512, 80, 8
EPOCH = 200_000
"""Clips of an epoch. Files are read many times in it."""


def write_clips(folder: Path, count: int) -> list[Path]:
    """Write tones with noise as mu-law samples, and return the files."""
    random, time = np.random.default_rng(0), np.arange(LENGTH) / LENGTH
    paths = []
    for i in range(count):
        wave = 0.5 * np.sin(2 * np.pi * 220 * (1 + i % CLASSES) * time) + 0.1 * random.standard_normal(LENGTH)
        coded = np.sign(wave) * np.log1p(255 * np.abs(wave).clip(0, 1)) / np.log(256)
        paths.append(folder / f"{i}.z")
        paths[-1].write_bytes(zlib.compress(((coded + 1) * 127.5).astype(np.uint8).tobytes(), 6))
    return paths


def expand(codes: np.ndarray) -> np.ndarray:
    """Return the samples of mu-law codes."""
    y = codes / 127.5 - 1
    wave: np.ndarray = np.sign(y) * (256.0 ** np.abs(y) - 1) / 255
    return wave


class Clips(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, paths: list[Path], method: str) -> None:
        self.paths, self.method = paths, method
        self.table = expand(np.arange(256)).astype(np.float32)

    def __len__(self) -> int:
        return EPOCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        index %= len(self.paths)
        codes = np.frombuffer(zlib.decompress(self.paths[index].read_bytes()), np.uint8)
        if self.method == "table":
            wave = self.table[codes]
        elif self.method == "formula":
            wave = expand(codes).astype(np.float32)
        else:
            wave = np.array([self.table[code] for code in codes], np.float32)
        frames = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::HOP]
        power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW).astype(np.float32))[:, :128]) ** 2
        return torch.from_numpy(np.log(power.T + 1e-6).astype(np.float32)), index % CLASSES


def train(script: Script, paths: list[Path]) -> None:
    """Train until stopped."""
    device, large = script.device, script.device == "cuda"
    batch, width = (96, 1024) if large else (16, 16)
    model = nn.Sequential(
        nn.Conv1d(128, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Conv1d(width, 2 * width, 5, stride=2), nn.BatchNorm1d(2 * width), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * width, CLASSES),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    with hoptui.connect(script.name) as run:
        readers = run.knob(
            "readers", 0, choices=[0, 1, 4, 8, 16] if large else [0, 1, 2], effect="speed", cost="rebuild"
        )
        method = run.knob(
            "expansion", "loop", choices=["loop", "formula", "table"], effect="speed", cost="rebuild"
        )

        def clips() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            while True:
                built = readers.value, method.value
                data = Clips(paths, method.value)
                for each in DataLoader(data, batch, shuffle=True, num_workers=readers.value, drop_last=True):
                    yield each
                    if (readers.value, method.value) != built:
                        break

        source = clips()
        for _ in run.iterations():
            x, y = next(source)
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=batch)


def main(script: Script) -> None:
    """Write the clips to a folder, and train on them."""
    with tempfile.TemporaryDirectory() as folder:
        train(script, write_clips(Path(folder), 3000 if script.device == "cuda" else 600))


if __name__ == "__main__":
    options(main)
