"""Trainings for museums on the CPU: paintings, sherds, drawings with captions, and cards of a catalogue."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import io
import random
import shutil
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import labelled


class Paintings(Dataset[tuple[Tensor, int]]):
    """Photographs of paintings as JPEG, and who painted them."""

    def __init__(self, number: int, train: bool = True) -> None:
        from PIL import Image
        from torchvision import transforms as T

        rng = np.random.default_rng(81)
        self.files = []
        for n in range(number):
            coarse = rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)
            picture = Image.fromarray(coarse).resize((800, 600), Image.Resampling.BICUBIC)
            buffer = io.BytesIO()
            picture.save(buffer, "JPEG", quality=90)
            self.files.append((buffer.getvalue(), n % 12))
        views = [T.RandomResizedCrop(96), T.RandomHorizontalFlip(), T.ColorJitter(0.3, 0.3, 0.3)]
        self.transform = T.Compose([*(views if train else [T.Resize((96, 96))]), T.ToTensor()])

    def __len__(self) -> int:
        return 20 * len(self.files)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        from PIL import Image

        blob, painter = self.files[i % len(self.files)]
        picture = Image.open(io.BytesIO(blob)).convert("RGB")  # here
        return self.transform(picture), painter  # here


@labelled(cpu="data-bound", needs=("torchvision", "PIL"), helpers=(Paintings,))
def painters_by_brushwork(run: hoptui.Run, device: str) -> None:
    """A small convolutional network tells painters apart. One worker decodes and changes the photographs.

    A batch has 24 photographs of 800 x 600. Measured with a timer and one thread, the loop waits for them
    for 90 % of an iteration of 0.1 s, and the network takes 9 %.
    """
    torch.manual_seed(81)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=4), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 12),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(Paintings(60), batch_size=24, shuffle=True, num_workers=1, drop_last=True)
    epoch = 0
    while not run.stopping:
        right = seen = 0
        for pictures, painters in loader:  # here
            pictures, painters = pictures.to(device), painters.to(device)
            scores = model(pictures)
            loss = F.cross_entropy(scores, painters, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((scores.argmax(1) == painters).sum())
            seen += len(painters)
            run.log(loss=loss.item(), accuracy=right / seen, epoch=epoch, samples=len(painters))
            if run.stopping:
                break
        epoch += 1


def stable_pairs(affinity: list[list[float]]) -> list[int]:
    """Return for each left sherd the right one, so that no two would rather have each other."""
    n = len(affinity)
    wishes = [sorted(range(n), key=row.__getitem__, reverse=True) for row in affinity]  # here
    standing = []
    for j in range(n):
        order = sorted(range(n), key=lambda i: affinity[i][j], reverse=True)  # here
        standing.append({i: place for place, i in enumerate(order)})  # here
    free, asked, partner = deque(range(n)), [0] * n, [-1] * n
    while free:
        i = free.popleft()  # here
        j = wishes[i][asked[i]]  # here
        asked[i] += 1  # here
        held = partner[j]  # here
        if held < 0 or standing[j][i] < standing[j][held]:  # here
            partner[j] = i
            if held >= 0:
                free.append(held)
        else:
            free.append(i)  # here
    found = [0] * n
    for j, i in enumerate(partner):
        found[i] = j
    return found


@labelled(cpu="host-bound", helpers=(stable_pairs,))
def sherds_of_one_vase(run: hoptui.Run, device: str) -> None:
    """Two towers learn which sherds were one vase. After each step, sherds are paired by deferred acceptance.

    There are 450 on each side. Measured with a timer and one thread, the pairing takes 87 % of an
    iteration of 0.09 s, and the towers 5 %.
    """
    torch.manual_seed(82)

    def tower() -> nn.Module:
        return nn.Sequential(nn.Linear(40, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 32)).to(device)

    left, right = tower(), tower()
    scale = nn.Parameter(torch.tensor(2.0, device=device))
    optimizer = torch.optim.AdamW([*left.parameters(), *right.parameters(), scale], lr=1e-3)
    clay = torch.randn(4000, 40, device=device)
    best = 0.0
    while not run.stopping:
        vases = clay[torch.randint(0, 4000, (450,), device=device)]
        edge, other = vases + 0.4 * torch.randn_like(vases), vases + 0.4 * torch.randn_like(vases)
        affinity = F.normalize(left(edge)) @ F.normalize(right(other)).T * scale.exp()
        target = torch.arange(450, device=device)
        loss = F.cross_entropy(affinity, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pairs = stable_pairs(affinity.detach().tolist())  # here
        matched = sum(i == j for i, j in enumerate(pairs)) / len(pairs)
        best = max(best, matched)
        run.log(loss=loss.item(), matched=matched, best=best, samples=450)


class CaptionedDrawings(nn.Module):
    """An encoder of drawings and one of captions, which meet in one space."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.picture = nn.Sequential(
            nn.Conv2d(1, 24, 4, stride=2, padding=1), nn.GroupNorm(4, 24), nn.SiLU(),
            nn.Conv2d(24, 48, 3, padding=1), nn.GroupNorm(4, 48), nn.SiLU(),
            nn.Conv2d(48, 96, 4, stride=2, padding=1), nn.GroupNorm(4, 96), nn.SiLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, width),
        )  # fmt: skip
        self.word = nn.Embedding(words, width)
        self.place = nn.Parameter(0.02 * torch.randn(16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.text = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, pictures: Tensor, captions: Tensor) -> Tensor:
        seen = F.normalize(self.picture(pictures))
        said = F.normalize(self.text(self.word(captions) + self.place).mean(1))
        logits: Tensor = self.scale.exp() * seen @ said.T
        return logits


@labelled(cpu="healthy")
def drawings_with_captions(run: hoptui.Run, device: str) -> None:
    """Drawings and their captions are brought together by contrast within a batch.

    Measured with a timer and one thread, 98 % of an iteration of 0.07 s is in the model, its backward
    pass and its optimizer.
    """
    torch.manual_seed(83)
    drawings = torch.rand(600, 1, 48, 48, device=device)
    captions = torch.randint(0, 2000, (600, 16), device=device)
    model = CaptionedDrawings(2000, 96).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.1)
    while not run.stopping:
        for rows in torch.randperm(600, device=device).split(40):
            logits = model(drawings[rows], captions[rows])
            target = torch.arange(len(rows), device=device)
            loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                model.scale.clamp_(0, 4.6)
                hits = (logits.argmax(1) == target).float().mean()
            run.log(loss=loss.item(), hits=hits.item(), samples=len(rows))
            if run.stopping:
                return


def publish(model: Any, folder: Path, version: int, keep: int = 2) -> None:
    """Put a model into an archive that other departments can fetch, and remove old ones."""
    staged = folder / "staged"
    model.save_pretrained(staged)  # here
    shutil.make_archive(str(folder / f"cards-{version:06d}"), "gztar", staged)  # here
    for old in sorted(folder.glob("cards-*.tar.gz"))[:-keep]:
        old.unlink()


@labelled(cpu="save-bound", needs=("transformers",), helpers=(publish,))
def cards_of_a_catalogue(run: hoptui.Run, device: str) -> None:
    """A small GPT-2 learns to write cards of a catalogue. Each version goes into an archive at once.

    Weights of 1.6 MB are packed by gzip. Measured with a timer and one thread, this takes 84 to 87 % of an
    iteration of 0.08 to 0.12 s, and the model 11 to 14 %.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(84)
    config = GPT2Config(
        vocab_size=3000, n_positions=20, n_embd=96, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model: Any = GPT2LMHeadModel(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    rng = random.Random(84)
    kinds = [rng.sample(range(3000), 60) for _ in range(30)]
    version = 0
    with tempfile.TemporaryDirectory() as name:
        while not run.stopping:
            cards = [rng.choices(rng.choice(kinds), k=20) for _ in range(2)]
            ids = torch.tensor(cards, device=device)
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            version += 1
            publish(model, Path(name), version)  # here
            run.log(loss=loss.item(), version=version, samples=len(cards))
