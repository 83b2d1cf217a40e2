"""Trainings for medicine: heartbeats, organs, slides of tissue, films of the heart, and eyes."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"


class TwelveLeads(Dataset[tuple[Tensor, int]]):
    """Recordings of the heart. Their baseline is taken out when they are read."""

    def __init__(self, patients: int, hertz: int = 500) -> None:
        self.patients, self.hertz = patients, hertz
        rng = np.random.default_rng(0)
        beat = np.sin(np.linspace(0, 60, 6 * hertz)) ** 21
        self.raw = beat + rng.standard_normal((32, 12, 6 * hertz)).cumsum(-1) * 0.02

    def __len__(self) -> int:
        return self.patients

    def __getitem__(self, idx: int) -> tuple[Tensor, int]:
        from scipy import signal

        record = np.roll(self.raw[idx % len(self.raw)], idx, -1)
        short = [signal.medfilt(lead, self.hertz // 5 | 1) for lead in record]  # here
        baseline = [signal.medfilt(lead, 3 * self.hertz // 5 | 1) for lead in short]  # here
        sos = signal.butter(3, 35, fs=self.hertz, output="sos")
        clean = signal.sosfiltfilt(sos, record - np.stack(baseline))
        clean /= clean.std(-1, keepdims=True) + 1e-6
        return torch.from_numpy(np.ascontiguousarray(clean, np.float32)), idx % 5


@labelled(gpu="data-bound", cpu="data-bound", needs=(PACKAGE, "scipy"), adapter=True, helpers=(TwelveLeads,))
def lit_arrhythmia(run: AdapterRun, device: str) -> None:
    """Arrhythmias are told apart under Lightning, and two workers clean each record with scipy.

    Median filters over 101 and 301 of 3000 values in 12 leads: 72 000 medians, more than 6 ms a record. A
    batch of 24 takes more than 144 ms, or 72 ms with two workers at once. The network has 24 x 12 channels
    and a first stride of 16: less than 20 ms under Lightning.
    """
    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)

    class Cardiologist(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv1d(12, 32, 15, stride=16),
                nn.BatchNorm1d(32),
                nn.ReLU(),
                nn.Conv1d(32, 32, 7, stride=4),
                nn.ReLU(),
                nn.AdaptiveMaxPool1d(1),
                nn.Flatten(),
                nn.Linear(32, 5),
            )

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            leads, rhythm = batch
            loss = F.cross_entropy(self.net(leads), rhythm)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    class Ward(pl.LightningDataModule):  # type: ignore[misc]
        def train_dataloader(self) -> Any:
            return DataLoader(TwelveLeads(24_000), 24, shuffle=True, num_workers=2, persistent_workers=True)

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
    trainer.fit(Cardiologist(), datamodule=Ward())  # here


def surface_distances(mask: Any, reference: Any, spacing: tuple[float, ...]) -> Any:
    """Return how far each point of a surface is from another surface."""
    ndimage: Any = importlib.import_module("scipy.ndimage")
    edge = mask ^ ndimage.binary_erosion(mask)  # here
    other = reference ^ ndimage.binary_erosion(reference)  # here
    if not edge.any() or not other.any():
        return np.array([float(max(mask.shape))])
    return ndimage.distance_transform_edt(~other, sampling=spacing)[edge]  # here


def _hausdorff() -> Any:
    from torchmetrics import Metric

    class HausdorffDistance95(Metric):  # type: ignore[misc]
        """The 95th percentile of the distances of surfaces, in millimetres."""

        def __init__(self, classes: int, spacing: tuple[float, ...]) -> None:
            super().__init__()
            self.classes, self.spacing = classes, spacing
            self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
            self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

        def update(self, preds: Tensor, target: Tensor) -> None:
            for p, t in zip(preds.cpu().numpy(), target.cpu().numpy(), strict=True):
                for organ in range(1, self.classes):
                    there = surface_distances(p == organ, t == organ, self.spacing)  # here
                    back = surface_distances(t == organ, p == organ, self.spacing)  # here
                    self.total += float(np.percentile(np.concatenate([there, back]), 95))
                    self.count += 1

        def compute(self) -> Tensor:
            mean: Tensor = self.total / self.count.clamp(min=1)
            return mean

    return HausdorffDistance95


@labelled(
    gpu="host-bound",
    cpu="host-bound",
    needs=("scipy", "torchmetrics"),
    helpers=(surface_distances, _hausdorff),
)
def organs_of_the_abdomen(run: hoptui.Run, device: str) -> None:
    """Organs are segmented, and a metric in the manner of torchmetrics measures the surfaces at each step.

    scipy transforms the distances of 72 x 72 x 72 voxels in more than 15 ms, four times for each of two
    cases: more than 120 ms, with the erosions more than 140 ms. The network sees patches of 4 x 4 x 4 voxels,
    and is trained at 18 x 18 x 18: less than 20 ms.
    """
    size, classes = 72, 3
    zyx = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, size)] * 3, indexing="ij"))
    bodies, organs = [], []
    for case in range(8):
        center = torch.rand(2, 3, generator=torch.Generator().manual_seed(case)) - 0.5
        near = torch.stack([(zyx - c[:, None, None, None]).norm(dim=0) < 0.4 for c in center])
        organs.append(near[0].long() + (near[1] & ~near[0]) * 2)
        bodies.append(organs[-1][None].float() + 0.3 * torch.randn(1, size, size, size))
    x, y = torch.stack(bodies).to(device), torch.stack(organs).to(device)
    net = nn.Sequential(nn.Conv3d(1, 32, 4, stride=4), nn.ReLU(), nn.Conv3d(32, classes, 1)).to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    hd95 = _hausdorff()(classes, (1.5, 1.0, 1.0))
    while not run.stopping:
        at = torch.randint(0, len(x), (2,))
        logits, target = net(x[at]), y[at]
        loss = F.cross_entropy(logits, target[:, ::4, ::4, ::4])
        opt.zero_grad()
        loss.backward()
        opt.step()
        coarse = logits.argmax(1)
        fine = coarse.repeat_interleave(4, 1).repeat_interleave(4, 2).repeat_interleave(4, 3)
        hd95.update(fine, target)
        run.log(loss=loss.item(), hd95=hd95.compute().item(), samples=2)
        hd95.reset()


class GatedBag(nn.Module):
    """Attends over the tiles of a slide, with a gate."""

    def __init__(self, dim: int, hidden: int, grades: int) -> None:
        super().__init__()
        self.v, self.u = nn.Linear(dim, hidden), nn.Linear(dim, hidden)
        self.w, self.head = nn.Linear(hidden, 1), nn.Linear(dim, grades)

    def forward(self, tiles: Tensor) -> Tensor:
        weight = self.w(torch.tanh(self.v(tiles)) * torch.sigmoid(self.u(tiles))).softmax(0)
        grade: Tensor = self.head((weight * tiles).sum(0))
        return grade


@labelled(gpu="wrong-device", cpu="healthy", needs=("timm", "accelerate"), adapter=True)
def slides_by_gated_attention(run: AdapterRun, device: str) -> None:
    """Slides are graded from bags of tiles. The encoder of timm was not given to `accelerator.prepare`.

    A ResNet-18 on 10 tiles of 128 x 128 points is 10 x 0.6 billion multiplications, 12 GFLOP: more than 200
    ms on one core, and more than 30 ms on sixteen. The attention over 10 tiles with its step needs less than
    8 ms, and the tiles are cut out of memory.
    """
    import timm
    from accelerate import Accelerator

    from hoptui.integrations.accelerate import HoptuiTracker

    accelerator = Accelerator(cpu=device == "cpu", log_with=HoptuiTracker())
    encoder = timm.create_model("resnet18", pretrained=False, num_classes=0).eval().requires_grad_(False)
    model: Any = GatedBag(512, 128, 4)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.init_trackers(run.name)
    tracked, step = accelerator.get_tracker("hoptui").tracker, 0
    slide = torch.rand(3, 1024, 1024)
    while step < run.iterations and not tracked.stopping:
        corners = torch.randint(0, 1024 - 128, (10, 2)).tolist()
        tiles = torch.stack([slide[:, i : i + 128, j : j + 128] for i, j in corners])
        with torch.no_grad():
            features = encoder(tiles)  # here
        grade = torch.tensor(step % 4, device=accelerator.device)
        loss = F.cross_entropy(model(features.to(accelerator.device)), grade)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        accelerator.log({"loss": loss.item()}, step=step)
    accelerator.end_training()


def roughness(film: Tensor, weights: Tensor, eps: float = 1e-3) -> Tensor:
    """Return the total variation of films of volumes, with a weight for each axis."""
    dz = F.pad(film.diff(dim=1), (0, 0, 0, 0, 0, 1))
    dy = F.pad(film.diff(dim=2), (0, 0, 0, 1))
    dx = F.pad(film.diff(dim=3), (0, 1))
    w = weights.softmax(0)
    return (w[0] * dz.square() + w[1] * dy.square() + w[2] * dx.square() + eps).sqrt().mean()


@labelled(gpu="memory-bandwidth-bound", cpu="healthy")
def heart_from_few_spokes(run: hoptui.Run, device: str) -> None:
    """Volumes of the heart are found from few measurements by Adam, with the total variation as a prior.

    On a GPU: 2 volumes of 448 x 448 x 448 are 180 million numbers, 0.72 GB. The variation, the distance to
    the measurements and their gradients read or write as much about 100 times, and Adam 20 times: 86 GB,
    more than 18 ms at 4.8 TB/s, and some 25 ms at what is reached. They are less than 200 kernels: less than
    4 ms for the host. There is no product of matrices. On the CPU: 2 volumes of 88 x 88 x 88.
    """
    side = 88 if device == "cpu" else 448
    with torch.device(device):
        measured = torch.randn(2, side, side, side)
        spokes = (torch.rand(1, side, side, 1) < 0.25).float()
        heart = nn.Parameter(torch.zeros(2, side, side, side))
        weights = nn.Parameter(torch.zeros(3))
    groups: list[dict[str, Any]] = [{"params": [heart]}, {"params": [weights], "lr": 1e-3}]
    opt = torch.optim.Adam(groups, lr=0.02)
    while not run.stopping:
        misfit = (spokes * (heart - measured)).square().mean()
        loss = misfit + 0.05 * roughness(heart, weights)
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(loss=loss.item(), misfit=misfit.item(), samples=2)


@labelled(gpu="healthy compute-bound", cpu="healthy", needs=("torchvision",))
def retinopathy_with_vit_b_16(run: hoptui.Run, device: str) -> None:
    """Photographs of eyes are graded by torchvision's ViT-B/16 in bf16, from the memory of the GPU.

    On a GPU: 128 photographs are 128 x 17.6 x 2 x 3 = 13.5 TFLOP, some 22 ms at 600 TFLOPS. Activations of
    25 000 x 768 numbers in bf16 are 39 MB. Each of 12 blocks reads or writes about 40 such tensors forward
    and 80 backward, as its perceptron is four times as wide: 56 GB, 13 ms. So the products take about 60 %,
    and norms, GELU and sums the rest. Less than 2000 operations are launched in 16 ms. On the CPU: 32
    photographs of 64 x 64 points and 4 blocks of width 128.
    """
    from torchvision.models import VisionTransformer

    cpu = device == "cpu"
    batch, size = (32, 64) if cpu else (128, 224)
    depth, heads, width = (4, 4, 128) if cpu else (12, 12, 768)
    model = VisionTransformer(size, 16, depth, heads, width, 4 * width, num_classes=5).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not cpu)
    eyes = torch.randn(4 * batch, 3, size, size, device=device)
    grades = torch.randint(0, 5, (4 * batch,), device=device)
    step = 0
    while not run.stopping:
        at = slice(step % 4 * batch, (step % 4 + 1) * batch)
        with torch.autocast(device, torch.bfloat16, enabled=not cpu):
            loss = F.cross_entropy(model(eyes[at]), grades[at])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        run.log(loss=loss.item(), samples=batch)
