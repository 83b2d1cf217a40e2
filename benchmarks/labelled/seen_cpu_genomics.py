"""Trainings for genomics on the CPU: enhancers, haplotypes, codons, nanopores, and contact maps."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import queue
import random
import tempfile
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import labelled

COMPLEMENT = {"A": "T", "C": "G", "G": "C", "T": "A", "N": "N"}
COLUMN = {"A": 0, "C": 1, "G": 2, "T": 3}


class BlockedGenome:
    """A chromosome in a file of blocks that are compressed one by one, with an index of their places."""

    BLOCK = 16_384

    def __init__(self, path: Path, blocks: int) -> None:
        rng = random.Random(3)
        self.path, self.index = path, [0]
        with path.open("wb") as file:
            for _ in range(blocks):
                packed = zlib.compress(
                    "".join(rng.choices("ACGTN", (30, 20, 20, 30, 1), k=self.BLOCK)).encode()
                )
                file.write(packed)
                self.index.append(self.index[-1] + len(packed))

    def fetch(self, start: int, length: int) -> str:
        """Return a piece of the chromosome."""
        first, last = start // self.BLOCK, (start + length - 1) // self.BLOCK
        with self.path.open("rb") as file:
            file.seek(self.index[first])
            parts = [
                zlib.decompress(file.read(self.index[n + 1] - self.index[n]))  # here
                for n in range(first, last + 1)
            ]
        offset = start - first * self.BLOCK
        return b"".join(parts)[offset : offset + length].decode()


class EnhancerWindows(Dataset[tuple[Tensor, Tensor]]):
    """Windows around enhancers, half of which are read on the other strand."""

    def __init__(self, genome: BlockedGenome, length: int = 2048) -> None:
        self.genome, self.length = genome, length
        rng = random.Random(7)
        room = genome.BLOCK * (len(genome.index) - 1) - length
        self.sites = [(rng.randrange(room), rng.random() < 0.5, rng.random()) for _ in range(4096)]

    def __len__(self) -> int:
        return len(self.sites)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        start, reverse, activity = self.sites[i]
        sequence = self.genome.fetch(start, self.length)  # here
        if reverse:
            sequence = "".join(COMPLEMENT[base] for base in reversed(sequence))  # here
        onehot = torch.zeros(4, self.length)
        for position, base in enumerate(sequence):  # here
            if base in COLUMN:  # here
                onehot[COLUMN[base], position] = 1.0  # here
        return onehot, torch.tensor(activity)


@labelled(cpu="data-bound", helpers=(BlockedGenome, EnhancerWindows))
def enhancer_activity(run: hoptui.Run, device: str) -> None:
    """The activity of enhancers is learned from windows of a chromosome in a blocked file.

    A batch has 16 windows of 2048 bases, which Python goes over once or twice. Measured with a timer, the
    loader takes 96 % of an iteration of 0.35 s, and the network and its update 4 %.
    """
    with tempfile.TemporaryDirectory() as folder:
        windows = EnhancerWindows(BlockedGenome(Path(folder, "chr21.blk"), 200))
        loader = DataLoader(windows, batch_size=16, shuffle=True)
        model = nn.Sequential(
            nn.Conv1d(4, 24, 15, stride=4), nn.GELU(), nn.MaxPool1d(4), nn.Conv1d(24, 32, 7), nn.GELU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 1),
        ).to(device)  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        while not run.stopping:
            for onehot, activity in loader:  # here
                predicted = model(onehot.to(device)).squeeze(1)
                loss = F.mse_loss(predicted, activity.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss.item(), samples=len(onehot))
                if run.stopping:
                    break


def switch_error(guess: list[list[int]], truth: list[list[int]]) -> float:
    """Return how often the phase of a pair of haplotypes changes sides."""
    switches = places = 0
    for mine, real in zip(guess, truth, strict=True):
        side = -1
        for a, b in zip(mine, real, strict=True):  # here
            same = int(a == b)  # here
            if side >= 0:  # here
                switches += same != side  # here
                places += 1  # here
            side = same  # here
    return switches / max(places, 1)


def dosage_r2(guess: list[list[int]], truth: list[list[int]]) -> float:
    """Return the mean squared correlation of the alleles over the sites."""
    total = 0.0
    for site in range(len(truth[0])):
        xs = [row[site] for row in guess]  # here
        ys = [row[site] for row in truth]  # here
        mx, my = sum(xs) / len(xs), sum(ys) / len(ys)  # here
        top = sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True))  # here
        down = sum((x - mx) ** 2 for x in xs) * sum((y - my) ** 2 for y in ys)  # here
        total += top * top / down if down > 0 else 0.0
    return total / len(truth[0])


@labelled(cpu="host-bound", helpers=(switch_error, dosage_r2))
def haplotype_imputation(run: hoptui.Run, device: str) -> None:
    """Missing alleles are filled in by a convolution, and two figures of quality are logged at each step.

    The figures go over 64 x 800 alleles in Python, some seven times. Measured with a timer, they take
    86 % of an iteration of 0.26 s, and the network 12 %.
    """
    torch.manual_seed(0)
    sites, people = 800, 64
    founders = torch.randint(0, 2, (12, sites), device=device)
    net = nn.Sequential(
        nn.Conv1d(2, 8, 9, padding=4),
        nn.ReLU(),
        nn.Conv1d(8, 8, 9, padding=4),
        nn.ReLU(),
        nn.Conv1d(8, 1, 1),
    ).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    iteration = 0
    while not run.stopping:
        breaks = torch.randint(0, 12, (people, sites // 100), device=device).repeat_interleave(100, 1)
        alleles = founders.gather(0, breaks)
        known = (torch.rand(people, sites, device=device) < 0.3).float()
        logits = net(torch.stack([alleles * known, known], 1)).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logits, alleles.float())
        opt.zero_grad()
        loss.backward()
        opt.step()
        called, truth = (logits > 0).int().tolist(), alleles.tolist()
        ser = switch_error(called, truth)  # here
        r2 = dosage_r2(called, truth)  # here
        iteration += 1
        run.log(loss=loss.item(), switch_error=ser, r2=r2, samples=people)


class CodonTransformer(nn.Module):
    """Predicts the next codon of a gene."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(66, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, 66)
        self.mask: Tensor
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(128))

    def forward(self, codons: Tensor) -> Tensor:
        hidden = self.blocks(self.embed(codons), mask=self.mask, is_causal=True)
        logits: Tensor = self.out(hidden)
        return logits


@labelled(cpu="healthy")
def codon_usage(run: hoptui.Run, device: str) -> None:
    """A transformer reads codons of genes that are in memory, and is tested on others at each tenth step.

    Measured with a timer, 99 % of an iteration of 0.37 s is in the model, its backward pass and its
    optimizer.
    """
    torch.manual_seed(1)
    genes = torch.randint(0, 66, (2000, 129), device=device)
    held_out = torch.randint(0, 66, (16, 129), device=device)
    model = CodonTransformer(128, 4).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    step, perplexity = 0, float("nan")
    while not run.stopping:
        batch = genes[torch.randint(0, len(genes), (16,))]
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            with torch.inference_mode():
                logits = model(held_out[:, :-1])
                perplexity = F.cross_entropy(logits.flatten(0, 1), held_out[:, 1:].flatten()).exp().item()
        step += 1
        run.log(loss=loss.item(), perplexity=perplexity, samples=len(batch))


class SignalReader(threading.Thread):
    """Unpacks the currents of reads, takes steps out of them, and hands over batches of chunks."""

    def __init__(self, path: Path, reads: int, batch: int, ahead: int = 2) -> None:
        super().__init__(daemon=True)
        self.path, self.reads, self.batch = path, reads, batch
        self.ready: queue.Queue[tuple[Tensor, Tensor]] = queue.Queue(maxsize=ahead)
        self.over = threading.Event()

    def decode(self, blob: bytes) -> Any:
        """Return a signal from its differences, which are written as bytes of variable length."""
        values, current, shift, part = [], 0, 0, 0
        for byte in zlib.decompress(blob):  # here
            part |= (byte & 127) << shift  # here
            shift += 7  # here
            if byte < 128:  # here
                current += (part >> 1) ^ -(part & 1)  # here
                values.append(current)  # here
                part = shift = 0  # here
        signal = np.array(values, np.float32)
        middle = np.median(signal)
        return (signal - middle) / (1.4826 * np.median(np.abs(signal - middle)) + 1e-6)

    def run(self) -> None:
        rng = random.Random(5)
        while not self.over.is_set():
            chunks = []
            for _ in range(self.batch):
                blob = Path(self.path, f"{rng.randrange(self.reads)}.vbz").read_bytes()
                chunks.append(self.decode(blob)[:4000])  # here
            signal = torch.from_numpy(np.stack(chunks))[:, None]
            letters = torch.randint(1, 5, (self.batch, 40))
            while not self.over.is_set():
                try:
                    self.ready.put((signal, letters), timeout=0.1)
                    break
                except queue.Full:
                    continue


def write_reads(folder: Path, reads: int, samples: int) -> None:
    """Write reads of a nanopore as packed differences."""
    rng = np.random.default_rng(2)
    for n in range(reads):
        levels = np.repeat(rng.normal(500, 60, samples // 10), 10) + rng.normal(0, 4, samples)
        packed = bytearray()
        for difference in np.diff(levels.astype(int), prepend=0).tolist():
            zigzag = (difference << 1) ^ (difference >> 63)
            while zigzag > 127:
                packed.append(zigzag & 127 | 128)
                zigzag >>= 7
            packed.append(zigzag)
        Path(folder, f"{n}.vbz").write_bytes(zlib.compress(bytes(packed)))


@labelled(cpu="data-bound", helpers=(SignalReader,))
def nanopore_basecaller(run: hoptui.Run, device: str) -> None:
    """A base caller with CTC gets chunks of signals from a thread.

    The thread reads 32 x 4000 differences byte by byte. Measured with a timer, the loop waits for it for
    79 % of an iteration of 0.55 s. The network needs 0.04 s of processor time.
    """
    net = nn.Sequential(
        nn.Conv1d(1, 12, 9, stride=8),
        nn.SiLU(),
        nn.Conv1d(12, 16, 9, stride=5),
        nn.SiLU(),
        nn.Conv1d(16, 5, 3),
    ).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        write_reads(Path(folder), 48, 4000)
        reader = SignalReader(Path(folder), 48, batch=32)
        reader.start()
        while not run.stopping:
            signal, letters = reader.ready.get()  # here
            scores = net(signal.to(device)).permute(2, 0, 1).log_softmax(-1)
            frames = torch.full((len(signal),), len(scores))
            lengths = torch.full((len(signal),), letters.shape[1])
            loss = F.ctc_loss(scores, letters.to(device), frames, lengths)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(signal))
        reader.over.set()
        reader.join()


class PanelWriter:
    """Writes predicted maps beside the true ones as pictures for a supplement."""

    def __init__(self, folder: str, zoom: int) -> None:
        self.folder, self.zoom = Path(folder), zoom

    def write(self, name: str, predicted: Tensor, true: Tensor) -> None:
        """Write one picture."""
        from PIL import Image

        panel = torch.cat([predicted, true], 1).clamp(0, 1)
        grey = (255 * panel).byte().numpy()
        picture = Image.fromarray(grey).resize((self.zoom * grey.shape[1], self.zoom * grey.shape[0]))
        picture.save(self.folder / f"{name}.png", optimize=True)  # here


@labelled(cpu="save-bound", needs=("PIL",), helpers=(PanelWriter,))
def contact_maps(run: hoptui.Run, device: str) -> None:
    """Contacts of a chromosome are predicted from tracks, and the maps of each batch go to a folder.

    Four PNG files of 576 x 288 pixels are packed as small as possible. Measured with a timer, this takes
    93 % of an iteration of 0.34 s, and the network 6 %.
    """
    torch.manual_seed(4)
    tracks_to_map = nn.Conv1d(6, 12, 5, padding=2).to(device)
    refine = nn.Sequential(nn.Conv2d(12, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1)).to(device)
    optimizer = torch.optim.Adam([*tracks_to_map.parameters(), *refine.parameters()], lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        writer = PanelWriter(folder, zoom=3)
        while not run.stopping:
            tracks = torch.randn(4, 6, 96, device=device)
            near = -(torch.arange(96)[:, None] - torch.arange(96)).abs().float() / 20
            true = torch.sigmoid(near + tracks.mean(1)[:, :, None] + tracks.mean(1)[:, None]).to(device)
            h = tracks_to_map(tracks)
            predicted = refine(h[..., None] * h[..., None, :])[:, 0].sigmoid()
            loss = F.mse_loss(predicted, true)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for n in range(4):
                writer.write(f"region{n}", predicted[n].detach().cpu(), true[n].cpu())  # here
            run.log(loss=loss.item(), samples=4)
