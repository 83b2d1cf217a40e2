"""Trainings for broadcasting: old films, colours, titles of programmes, loudness, and a codec for speech."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import difflib
import importlib
import importlib.util
import itertools
import random
from collections import deque
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"


class ResBlock(nn.Module):
    """Two convolutions with a way around them, and no normalization."""

    def __init__(self, feats: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(feats, feats, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(feats, feats, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.conv1(x)))  # type: ignore[no-any-return]


class EDSR(nn.Module):
    """Makes pictures twice as large."""

    def __init__(self, resblocks: int, feats: int) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, feats, 3, padding=1)
        self.body = nn.Sequential(*(ResBlock(feats) for _ in range(resblocks)))
        self.tail = nn.Sequential(nn.Conv2d(feats, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(x)
        return self.tail(x + self.body(x))  # type: ignore[no-any-return]


@labelled(gpu="compute-bound power-limited", cpu="healthy")
def edsr_for_old_films(run: hoptui.Run, device: str) -> None:
    """The wide EDSR makes frames of old films larger, in bfloat16 and with the channels last.

    On a GPU: 20 blocks have 40 convolutions with 320 channels, on 16 x 96 x 96 places: 272 GFLOP each, so 33
    TFLOP with the backward pass, more than 33 ms at 989 TFLOPS, and more than 55 ms at 600. A field of 94 MB
    is read or written some 14 times a block: 26 GB, less than 9 ms. The 700 launches need less than 9 ms. On
    the CPU: 2 blocks with 16 channels, on 4 x 48 x 48 places, in float32.
    """
    torch.backends.cudnn.benchmark = True
    cpu = device == "cpu"
    blocks, feats, frames, side = (2, 16, 4, 48) if cpu else (20, 320, 16, 96)
    model = EDSR(blocks, feats).to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.99))
    while not run.stopping:
        large = torch.rand(frames, 3, 2 * side, 2 * side, device=device)
        small = F.avg_pool2d(large, 2).to(memory_format=torch.channels_last)
        with torch.autocast(device, torch.bfloat16, enabled=not cpu):
            restored = model(small)
        loss = F.l1_loss(restored.float(), large)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=frames)


class LiftGammaGain(nn.Module):
    """The three controls of a colourist, for each colour."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Parameter(torch.zeros(3, 1, 1))
        self.gamma = nn.Parameter(torch.zeros(3, 1, 1))
        self.gain = nn.Parameter(torch.zeros(3, 1, 1))

    def forward(self, frames: Tensor) -> Tensor:
        return (frames * self.gain.exp() + self.lift).clamp(1e-3, 1.0) ** self.gamma.exp()


@labelled(gpu="transfer-bound", cpu="healthy")
def graded_frames_for_the_monitor(run: hoptui.Run, device: str) -> None:
    """Colours are matched to those of another camera, and all graded frames go to the host for the monitor.

    On a GPU: 8 frames of 3840 x 2160 in float32 are 0.8 GB, which go to fresh, pageable memory: more than 65
    ms at 12 GB/s. Some 70 passes over 0.8 GB, forward and backward, take 56 GB: less than 16 ms. On the CPU:
    one frame of 960 x 540, which stays where it is.
    """
    frames, height, width = (1, 540, 960) if device == "cpu" else (8, 2160, 3840)
    grade = LiftGammaGain().to(device)
    optimizer = torch.optim.Adam(grade.parameters(), lr=0.01)
    monitor: deque[Tensor] = deque(maxlen=1)
    with torch.device(device):
        first = torch.rand(frames, 3, height, width)
        second = (0.9 * first + 0.02) ** 1.1
    while not run.stopping:
        graded = grade(first)
        loss = (graded - second).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.append(graded.detach().cpu())  # here
        run.log(loss=loss.item(), samples=frames)


def _programmes(rng: random.Random, number: int) -> list[str]:
    """Return titles of programmes, some of which are nearly the same."""
    words = "the a of evening morning news sport garden kitchen harbour night live late best world river song"
    titles = []
    for _ in range(number):
        title = " ".join(rng.choices(words.split(), k=7))
        titles.append(f"{title} (part {rng.randint(1, 9)})")
    return titles


def nearest_other(titles: list[str], floor: float = 0.2) -> list[int]:
    """Return for each title which other title of the batch looks most like it."""
    best, found = [floor] * len(titles), list(range(len(titles)))
    for i, title in enumerate(titles):
        matcher = difflib.SequenceMatcher(b=title, autojunk=False)  # here
        for j in range(i):
            matcher.set_seq1(titles[j])  # here
            ratio = matcher.ratio()  # here
            if ratio > best[i]:
                best[i], found[i] = ratio, j
            if ratio > best[j]:
                best[j], found[j] = ratio, i
    return found


@labelled(gpu="host-bound", cpu="host-bound", helpers=(nearest_other,))
def titles_that_look_alike(run: hoptui.Run, device: str) -> None:
    """Titles of programmes are embedded by their letters. Negatives are those that difflib finds most alike.

    72 titles make 2556 pairs, and to compare 40 letters with 40 takes difflib more than 30 microseconds: more
    than 76 ms. The bag of 72 x 40 letters and its step need less than 6 ms.
    """
    rng = random.Random(12)
    letters = nn.EmbeddingBag(4096, 64, mode="mean").to(device)
    project = nn.Linear(64, 32).to(device)
    parameters = [*letters.parameters(), *project.parameters()]
    optimizer = torch.optim.Adagrad(parameters, lr=0.02)
    while not run.stopping:
        titles = _programmes(rng, 72)
        alike = torch.tensor(nearest_other(titles), device=device)  # here
        pairs = [[(ord(a) * 64 + ord(b)) % 4096 for a, b in itertools.pairwise(t)] for t in titles]
        starts = np.cumsum([0, *map(len, pairs[:-1])])
        flat = torch.tensor([n for each in pairs for n in each], device=device)
        vectors = F.normalize(project(letters(flat, torch.tensor(starts, device=device))), dim=-1)
        noisy = F.normalize(vectors + 0.1 * torch.randn_like(vectors), dim=-1)
        loss = F.triplet_margin_loss(vectors, noisy, vectors[alike], margin=0.3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=72)


class LoudnessOfSpots(Dataset[tuple[Tensor, Tensor]]):
    """Spots with loudness and true peak after EBU R 128, which are measured when a spot is read."""

    rate = 48_000

    def __init__(self, number: int, seconds: int) -> None:
        self.number, self.samples = number, seconds * self.rate
        noise = np.random.default_rng(2).standard_normal((2, 3 * self.samples)) * 3000
        self.tape = noise.astype(np.int16)

    def loudness(self, sound: Any) -> Any:
        """Return the loudness of each block of 400 ms, in LUFS."""
        from scipy import signal

        shelf = [1.5351, -2.6917, 1.1984], [1.0, -1.6907, 0.7325]
        highpass = [1.0, -2.0, 1.0], [1.0, -1.9900, 0.9901]
        for b, a in (shelf, highpass):
            sound = signal.lfilter(b, a, sound)  # here
        blocks = np.lib.stride_tricks.sliding_window_view(sound**2, self.rate * 4 // 10, axis=-1)  # here
        return -0.691 + 10 * np.log10(blocks[:, :: self.rate // 10].mean(-1).sum(0) + 1e-9)  # here

    def true_peak(self, sound: Any) -> float:
        """Return the highest level between the samples."""
        from scipy import signal

        return float(np.abs(signal.resample_poly(sound, 4, 1, axis=-1)).max())  # here

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * 9973 % (self.tape.shape[1] - self.samples)
        sound = self.tape[:, start : start + self.samples] / 32768.0
        curve = torch.from_numpy(self.loudness(sound)).float()  # here
        return curve, torch.tensor(self.true_peak(sound))  # here


@labelled(
    gpu="data-bound",
    cpu="data-bound",
    needs=("scipy", PACKAGE),
    adapter=True,
    helpers=(LoudnessOfSpots,),
)
def lit_loudness_of_spots(run: AdapterRun, device: str) -> None:
    """Under Lightning, a network learns true peaks from curves of loudness. Two workers measure the spots.

    8 seconds in stereo are 768 000 samples. Two filters, the blocks of 400 ms, and a sound that is made four
    times as dense take more than 20 ms. A batch of 16 is more than 320 ms of work, and more than 160 ms with
    two workers. The network works on 77 blocks: less than 15 ms under Lightning.
    """
    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)

    class PeakRegressor(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(1, 16, 5, padding=2)
            self.out = nn.Linear(16, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            curve, peak = batch
            hidden = F.silu(self.conv((curve[:, None] + 23) / 10)).mean(-1)
            return F.mse_loss(self.out(hidden)[:, 0], peak)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    spots = DataLoader(
        LoudnessOfSpots(4000, 8), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True
    )
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
    trainer.fit(PeakRegressor(), spots)


class MambaBlock(nn.Module):
    """A selective state space, whose scan is a loop over the places, as in mamba-minimal."""

    def __init__(self, d_inner: int, d_state: int, dt_rank: int) -> None:
        super().__init__()
        self.d_state, self.dt_rank = d_state, dt_rank
        self.in_proj = nn.Linear(d_inner, 2 * d_inner, bias=False)
        self.x_proj = nn.Linear(d_inner, dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(dt_rank, d_inner)
        self.A_log = nn.Parameter(torch.arange(1.0, d_state + 1).log().repeat(d_inner, 1))
        self.D = nn.Parameter(torch.ones(d_inner))
        self.out_proj = nn.Linear(d_inner, d_inner, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.in_proj(F.layer_norm(x, x.shape[-1:])).chunk(2, -1)
        u = F.silu(u)
        dt, b, c = self.x_proj(u).split([self.dt_rank, self.d_state, self.d_state], -1)
        dt = F.softplus(self.dt_proj(dt))
        decay = torch.exp(dt[..., None] * -self.A_log.exp())
        entering = (dt * u)[..., None] * b[:, :, None]
        state = torch.zeros_like(decay[:, 0])
        ys = []
        for decay_i, entering_i, c_i in zip(decay.unbind(1), entering.unbind(1), c.unbind(1), strict=True):
            state = decay_i * state + entering_i
            ys.append((state @ c_i[..., None])[..., 0])
        y = torch.stack(ys, 1) + u * self.D
        return x + self.out_proj(y * F.silu(gate))  # type: ignore[no-any-return]


@labelled(gpu="launch-bound", cpu="healthy")
def speech_codec_by_selective_scan(run: hoptui.Run, device: str) -> None:
    """The next frames of a codec for speech are predicted by two blocks of Mamba, without its kernels.

    On a GPU: 600 places have three operations forward and some eight backward in each of two blocks: 13 000,
    which take the host more than 5 microseconds each: more than 65 ms. 2 x 48 x 16 numbers take the GPU some
    2 each: 26 ms. On the CPU: 32 places, and 32 x 96 x 16 numbers.
    """
    batch, places, width = (32, 32, 96) if device == "cpu" else (2, 600, 48)
    codes = 256
    net = nn.Sequential(
        nn.Embedding(codes, width), *(MambaBlock(width, 16, 4) for _ in range(2)), nn.Linear(width, codes)
    ).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=0.1)
    while not run.stopping:
        heard = torch.randint(0, codes, (batch, places + 1), device=device)
        loss = F.cross_entropy(net(heard[:, :-1]).transpose(1, 2), heard[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        run.log(loss=loss.item(), samples=batch)
