"""Trainings for agriculture on the CPU: weeds, irrigation, yields of counties, milk, and leaves."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


class FieldPhotos(Dataset[tuple[Tensor, Tensor]]):
    """Photographs of a field from a drone, with masks of the weeds."""

    def __init__(self, folder: Path, photos: int, size: tuple[int, int]) -> None:
        from PIL import Image, ImageDraw

        self.folder, self.photos = folder, photos
        rng = np.random.default_rng(9)
        for n in range(photos):
            soil = rng.integers(60, 140, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
            photo, mask = Image.fromarray(soil).resize(size), Image.new("L", size)
            for x, y, r in rng.integers(10, 460, (40, 3)).tolist():
                spot = (x, y, x + r // 12, y + r // 12)
                ImageDraw.Draw(photo).ellipse(spot, fill=(40, 150, 50))
                ImageDraw.Draw(mask).ellipse(spot, fill=255)
            photo.save(folder / f"{n}.jpg", quality=92)
            mask.save(folder / f"{n}.png")

    def __len__(self) -> int:
        return 64 * self.photos

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        from PIL import Image
        from torchvision.transforms import v2
        from torchvision.tv_tensors import Mask

        n = i % self.photos
        photo = Image.open(self.folder / f"{n}.jpg").convert("RGB")  # here
        mask = Mask(Image.open(self.folder / f"{n}.png"))  # here
        change = v2.Compose(
            [
                v2.PILToTensor(),
                v2.RandomRotation(20, interpolation=v2.InterpolationMode.BILINEAR),
                v2.RandomResizedCrop(96, antialias=True),
                v2.ColorJitter(0.3, 0.3, 0.3),
                v2.ToDtype(torch.float32, scale=True),
            ]
        )
        photo, mask = change(photo, mask)  # here
        return photo, (mask[0] > 0).float()


@labelled(cpu="data-bound", needs=("torchvision", "PIL"), helpers=(FieldPhotos,))
def weed_segmentation(run: hoptui.Run, device: str) -> None:
    """Weeds are found on photographs of a drone, which one process of the loader decodes and rotates.

    A batch has eight photographs of 640 x 480 pixels. Measured with a timer, the loop waits for the
    loader for 92 % of an iteration of 0.67 s, and the network takes 7 %.
    """
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 2, stride=2),
    ).to(device)  # fmt: skip
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(FieldPhotos(Path(folder), 12, (640, 480)), batch_size=8, num_workers=1)
        while not run.stopping:
            for photos, masks in loader:  # here
                optimizer.zero_grad()
                logits = net(photos.to(device))[:, 0]
                loss = criterion(logits, masks.to(device))
                loss.backward()
                optimizer.step()
                run.log(loss=loss.item(), samples=len(photos))
                if run.stopping:
                    break


class SoilColumn:
    """Water in the layers of a soil, by Richards' equation with van Genuchten's curves."""

    def __init__(self, layers: int, seed: int) -> None:
        self.head = [-1.0 - 0.02 * n for n in range(layers)]
        self.rng = np.random.default_rng(seed)

    def conductivity(self, head: float) -> float:
        """Return how well water flows."""
        wet = (1 + (3.6 * abs(head)) ** 1.56) ** -0.359  # here
        return float(0.25 * math.sqrt(wet) * (1 - (1 - wet**2.786) ** 0.359) ** 2)  # here

    def hour(self, watering: float, uptake: float) -> None:
        """Let an hour go by in small steps."""
        for _ in range(30):
            flow = [watering]
            for upper, lower in zip(self.head, self.head[1:], strict=False):  # here
                k = 0.5 * (self.conductivity(upper) + self.conductivity(lower))  # here
                flow.append(k * ((upper - lower) / 0.05 + 1))  # here
            flow.append(self.conductivity(self.head[-1]))
            for n, head in enumerate(self.head):  # here
                gain = flow[n] - flow[n + 1] - uptake * math.exp(-0.2 * n)  # here
                self.head[n] = min(-0.01, max(-12.0, head + 0.008 * gain))  # here


@labelled(cpu="env-bound", needs=("stable_baselines3", "gymnasium"), adapter=True, helpers=(SoilColumn,))
def irrigation_policy(run: AdapterRun, device: str) -> None:
    """PPO of Stable-Baselines3 waters a field, whose soil has 40 layers in Python.

    An hour has 30 steps of 40 layers in Python. Measured with a timer, the hours take 80 % of an
    iteration of 0.77 s, and the policy and its updates 13 %.
    """
    import gymnasium
    from gymnasium import spaces
    from stable_baselines3 import PPO

    from hoptui.integrations.sb3 import HoptuiCallback

    class Field(gymnasium.Env):  # type: ignore[misc]
        observation_space = spaces.Box(-12.0, 12.0, (41,), np.float32)
        action_space = spaces.Discrete(3)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.soil, self.hours = SoilColumn(40, 1), 0
            return self.seen(), {}

        def seen(self) -> Any:
            return np.array([*self.soil.head, math.sin(self.hours / 24)], np.float32)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.soil.hour(0.05 * int(action), 0.01 * max(0.0, math.sin(self.hours / 24)))  # here
            self.hours += 1
            stress = sum(head < -4 for head in self.soil.head) / 40
            return self.seen(), -stress - 0.1 * int(action), False, self.hours >= 240, {}

    model = PPO("MlpPolicy", Field(), n_steps=48, batch_size=48, n_epochs=3, seed=0, device=device)
    model.learn(run.iterations * 48, callback=HoptuiCallback(run.name))


class CountyRecords(Dataset[tuple[Any, float]]):
    """Weather, soil and satellite figures of counties. Many are missing."""

    def __init__(self, counties: int, figures: int) -> None:
        rng = np.random.default_rng(11)
        self.x = rng.normal(size=(counties, figures)).astype(np.float32)
        self.x[rng.random(self.x.shape) < 0.15] = np.nan
        self.y = rng.random(counties).astype(np.float32)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Any, float]:
        return self.x[i], float(self.y[i])


def filled_and_scaled(rows: list[tuple[Any, float]]) -> tuple[Tensor, Tensor]:
    """Fill in what is missing from similar counties, and make the columns normal."""
    from sklearn.impute import KNNImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import QuantileTransformer

    prepare = make_pipeline(KNNImputer(n_neighbors=8), QuantileTransformer(n_quantiles=64, subsample=None))
    x = prepare.fit_transform(np.stack([x for x, _ in rows]))  # here
    return torch.as_tensor(x, dtype=torch.float32), torch.tensor([y for _, y in rows])


@labelled(cpu="data-bound", needs=("sklearn",), helpers=(filled_and_scaled,))
def yield_by_county(run: hoptui.Run, device: str) -> None:
    """The harvest of counties is predicted by a perceptron. scikit-learn prepares each batch.

    256 rows of 60 figures are filled in and ranked. Measured with a timer, the loader takes 93 % of an
    iteration of 0.08 s, and the perceptron 6 %.
    """
    loader = DataLoader(CountyRecords(2048, 60), batch_size=256, shuffle=True, collate_fn=filled_and_scaled)
    model = nn.Sequential(
        nn.Linear(60, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 1)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def epoch() -> Any:
        for x, y in loader:  # here
            predicted = model(x.to(device))[:, 0]
            loss = F.smooth_l1_loss(predicted, y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item(), len(x)

    while not run.stopping:
        for loss, samples in epoch():
            run.log(loss=loss, samples=samples)
            if run.stopping:
                break


class HerdBook:
    """Keeps what was predicted of each cow, and ranks the cows of each farm."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.history: dict[int, list[float]] = defaultdict(list)
        self.farm: dict[int, int] = {}

    def enter(self, cows: list[int], farms: list[int], residuals: list[list[float]]) -> None:
        """Enter the errors of a batch."""
        for cow, farm, errors in zip(cows, farms, residuals, strict=True):
            self.farm[cow] = farm
            self.history[cow] = [*self.history[cow], *errors][-self.keep :]

    def ranking(self) -> dict[int, list[int]]:
        """Return the cows of each farm by the trimmed mean of their errors."""
        scores: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for cow, errors in self.history.items():
            ordered = sorted(abs(error) for error in errors)  # here
            cut = len(ordered) // 10
            kept = ordered[cut : len(ordered) - cut]
            mean = sum(kept) / len(kept)  # here
            spread = math.sqrt(sum((error - mean) ** 2 for error in kept) / len(kept))  # here
            scores[self.farm[cow]].append((mean + spread, cow))
        return {farm: [cow for _, cow in sorted(of)] for farm, of in scores.items()}


@labelled(cpu="host-bound", helpers=(HerdBook,))
def milk_yield_curves(run: hoptui.Run, device: str) -> None:
    """A GRU predicts how much milk cows give, and a book ranks all cows of all farms after each step.

    The book sorts 900 lists of 400 numbers. Measured with a timer, this takes 82 % of an iteration of
    0.14 s, and the network 16 %.
    """
    torch.manual_seed(3)
    cows, days = 900, 60
    herd = torch.rand(cows, days + 1, 4, device=device)
    farms = [n % 24 for n in range(cows)]
    gru, head = nn.GRU(4, 16, batch_first=True).to(device), nn.Linear(16, 1).to(device)
    optimizer = torch.optim.RMSprop([*gru.parameters(), *head.parameters()], lr=1e-3)
    book = HerdBook(keep=400)
    for cow in range(cows):
        book.enter([cow], [farms[cow]], [torch.rand(400).tolist()])
    while not run.stopping:
        chosen = torch.randperm(cows)[:48]
        batch = herd[chosen]
        predicted = head(gru(batch[:, :-1])[0])[..., 0]
        residuals = predicted - batch[:, 1:, 0]
        loss = residuals.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        book.enter(chosen.tolist(), [farms[cow] for cow in chosen.tolist()], residuals.tolist())
        best = book.ranking()  # here
        run.log(loss=loss.item(), first=best[0][0], samples=len(chosen))


@labelled(cpu="healthy", needs=("timm",))
def leaf_disease(run: hoptui.Run, device: str) -> None:
    """Diseases of leaves are told apart by a small network of timm with mixup. The pictures are in memory.

    Measured with a timer, 99 % of an iteration of 0.31 s is in the model, its backward pass and its
    optimizer.
    """
    from timm.data.mixup import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.models.vision_transformer import VisionTransformer
    from timm.optim import create_optimizer_v2

    torch.manual_seed(5)
    leaves = TensorDataset(torch.randn(256, 3, 64, 64), torch.randint(0, 10, (256,)))
    loader = DataLoader(leaves, batch_size=16, shuffle=True, drop_last=True)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=10)
    model: Any = VisionTransformer(
        img_size=64, patch_size=8, embed_dim=192, depth=4, num_heads=3, num_classes=10
    ).to(device)
    criterion = SoftTargetCrossEntropy()
    optimizer = create_optimizer_v2(model, opt="lamb", lr=3e-4)
    while not run.stopping:
        for pictures, labels in loader:
            mixed, targets = mixup(pictures.to(device), labels.to(device))
            loss = criterion(model(mixed), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(pictures))
            if run.stopping:
                break
