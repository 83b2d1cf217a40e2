"""Trainings on speech and music: rooms, streaming recognition, and sequence layers."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"


class WakeWords(Dataset[tuple[Tensor, int]]):
    """Short commands, heard in a room that is drawn for each access."""

    def __init__(self, size: int, seconds: float = 1.0, sr: int = 16_000) -> None:
        rng = np.random.default_rng(0)
        self.size, self.sr = size, sr
        self.clips = rng.standard_normal((64, int(seconds * sr))).astype(np.float32)
        decay = np.exp(-np.arange(4000) / 700)
        self.rooms = (rng.standard_normal((20, 4000)) * decay).astype(np.float32)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, idx: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng(idx)
        clip = self.clips[idx % len(self.clips)]
        room = self.rooms[rng.integers(len(self.rooms))]
        wet = np.convolve(clip, room)[: len(clip)]  # here
        wet = wet / (np.abs(wet).max() + 1e-6)
        noise = rng.standard_normal(len(clip)).astype(np.float32)
        snr = rng.uniform(5, 20)
        mixed = wet + noise * 10 ** (-snr / 20) * wet.std()
        return torch.from_numpy(mixed.astype(np.float32)), idx % 10


@labelled(gpu="data-bound", cpu="data-bound", helpers=(WakeWords,))
def wake_words_in_rooms(run: hoptui.Run, device: str) -> None:
    """Two workers convolve commands with the response of a room before a small network hears them.

    A clip of 16 000 values and a response of 4000 are 64 million products, more than 5 ms on one core. A
    batch has 32 clips: more than 160 ms, or 80 ms with two workers at once. The network reads frames of 160
    values with 32 channels: less than 10 ms.
    """
    train_set = WakeWords(size=6400)
    loader = DataLoader(train_set, batch_size=32, shuffle=True, num_workers=2, drop_last=True)
    net = nn.Sequential(
        nn.Conv1d(1, 32, 160, stride=160),
        nn.ReLU(),
        nn.Conv1d(32, 32, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    while not run.stopping:
        for wave, label in loader:  # here
            logits = net(wave[:, None].to(device))
            loss = F.cross_entropy(logits, label.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(wave))
            if run.stopping:
                break


@labelled(gpu="launch-bound", cpu="healthy", needs=(PACKAGE,), adapter=True)
def lit_streaming_recogniser(run: AdapterRun, device: str) -> None:
    """A recogniser that reads frame by frame and gets its own last letter back, under Lightning.

    A frame has about 12 kernels forward and 20 backward. 160 frames are more than 5000 kernels on 16 x 128
    numbers, each of about 2 microseconds on a GPU: 10 ms. An operation with its part of autograd takes the
    host more than 8 microseconds: more than 40 ms.
    """
    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)
    vocab, frames = 32, 160

    class StreamingRecogniser(pl.LightningModule):  # type: ignore[misc]
        def __init__(self, dim: int = 128) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocab, 32)
            self.cell = nn.GRUCell(40 + 32, dim)
            self.joint = nn.Linear(dim, vocab)
            self.dim = dim

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            feats, chars = batch
            h = feats.new_zeros(len(feats), self.dim)
            last = chars.new_zeros(len(feats))
            loss: Tensor = feats.new_zeros(())
            for t in range(feats.shape[1]):
                h = self.cell(torch.cat([feats[:, t], self.embed(last)], -1), h)
                logits = self.joint(torch.tanh(h))
                loss = loss + F.cross_entropy(logits, chars[:, t])
                last = logits.argmax(-1)
            loss = loss / feats.shape[1]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    corpus = TensorDataset(torch.randn(256, frames, 40), torch.randint(0, vocab, (256, frames)))
    trainer = pl.Trainer(
        accelerator="cpu" if device == "cpu" else "gpu",
        devices=1,
        max_steps=run.iterations,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[HoptuiCallback(run.name)],
    )
    trainer.fit(StreamingRecogniser(), DataLoader(corpus, batch_size=16, shuffle=True))


def associative_scan(decay: Tensor, x: Tensor) -> Tensor:
    """Return h with h[t] = decay[t] * h[t - 1] + x[t], by doubling the distance."""
    shift = 1
    while shift < x.shape[1]:
        x = x + decay * F.pad(x[:, :-shift], (0, 0, shift, 0))
        decay = decay * F.pad(decay[:, :-shift], (0, 0, shift, 0), value=1.0)
        shift *= 2
    return x


class GatedRecurrence(nn.Module):
    """A layer in the manner of minGRU."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.candidate = nn.Linear(dim, hidden), nn.Linear(dim, hidden)
        self.out = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        z = self.gate(x).sigmoid()
        h = associative_scan(1 - z, z * self.candidate(x))
        return self.out(h)  # type: ignore[no-any-return]


@labelled(gpu="memory-bandwidth-bound", cpu="healthy")
def min_gru_on_raw_audio(run: hoptui.Run, device: str) -> None:
    """A gated recurrence over long audio is computed by 13 rounds of elementwise operations.

    On a GPU: 16 x 8192 x 1024 numbers in float32 are 537 MB. A round reads or writes such a tensor about 13
    times forward and 20 times backward: 230 GB in 13 rounds, more than 48 ms at 4.8 TB/s. The projections
    from and to 64 channels are 0.16 TFLOP: less than 6 ms. On the CPU: 2 x 1024 x 128 numbers.
    """
    batch, length, hidden = (2, 1024, 128) if device == "cpu" else (16, 8192, 1024)
    layer = GatedRecurrence(64, hidden).to(device)
    opt = torch.optim.AdamW(layer.parameters(), lr=3e-4)
    while not run.stopping:
        audio = torch.randn(batch, length, 64, device=device)
        predicted = layer(audio[:, :-1])
        loss = F.mse_loss(predicted, audio[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(loss=loss.item(), samples=batch)
