"""Trainings on pictures and scenes: segmentation, quantisation, pruning, self-supervision, and light."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import importlib
import importlib.util
import itertools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"


class TrainCollate:
    """Augments the pictures and masks of a batch, and stacks them."""

    def __init__(self) -> None:
        from torchvision.transforms import v2

        self.flip = v2.RandomHorizontalFlip()
        self.warp = v2.ElasticTransform(alpha=60.0, sigma=6.0)

    def __call__(self, samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        images, masks = [], []
        for image, mask in samples:
            both = torch.cat([image, mask[None].float()])
            both = self.flip(both)
            both = self.warp(both)  # here
            images.append(both[:3])
            masks.append(both[3].round().long())
        return torch.stack(images), torch.stack(masks)


@labelled(gpu="data-bound", cpu="data-bound", needs=("torchvision",), helpers=(TrainCollate,))
def cell_membranes_segmented(run: hoptui.Run, device: str) -> None:
    """Microscope pictures go through torchvision's elastic transform in the collate function.

    The displacements of a picture of 192 x 192 are blurred with a kernel of 49 x 49: 2 x 37 000 x 2401 =
    177 million products, more than 15 ms. A batch has 6: more than 90 ms. The network works on an eighth of
    the width: less than 15 ms.
    """
    pictures = TensorDataset(torch.rand(60, 3, 192, 192), torch.randint(0, 2, (60, 192, 192)))
    loader = DataLoader(pictures, batch_size=6, shuffle=True, collate_fn=TrainCollate())
    model = nn.Sequential(
        nn.Conv2d(3, 16, 8, stride=8),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 2, 1),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    while not run.stopping:
        for image, mask in loader:
            logits = model(image.to(device))
            loss = F.cross_entropy(logits, mask[:, ::8, ::8].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(image))
            if run.stopping:
                break


class LearnedStepSize(nn.Module):
    """Rounds activations to 4 bits with a learned step for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.full((channels, 1, 1), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        scaled = (x / self.step).clamp(-8, 7)
        rounded = scaled + (scaled.round() - scaled).detach()
        return rounded * self.step


@labelled(gpu="memory-bandwidth-bound", cpu="healthy")
def lsq_calibration(run: hoptui.Run, device: str) -> None:
    """The steps of a quantised network are fitted to the recorded activations of four layers.

    On a GPU: the activations of a layer are 64 x 64 x 256 x 256 numbers, 1.07 GB. Scaling, clamping,
    rounding, the error and the gradients read or write them about 40 times: 170 GB for four layers, more
    than 35 ms at 4.8 TB/s. There are no products of matrices. On the CPU: 4 x 16 x 64 x 64 numbers.
    """
    shape = (4, 16, 64, 64) if device == "cpu" else (64, 64, 256, 256)
    recorded = [torch.randn(shape, device=device) for _ in range(4)]
    quantizers = nn.ModuleList(LearnedStepSize(shape[1]) for _ in recorded).to(device)
    opt = torch.optim.Adam(quantizers.parameters(), lr=1e-3)
    while not run.stopping:
        opt.zero_grad()
        total = 0.0
        for quantize, x in zip(quantizers, recorded, strict=True):
            loss = (quantize(x) - x).square().mean()
            loss.backward()
            total = total + loss.detach()
        opt.step()
        run.log(loss=total, samples=shape[0])


def slimmed(layers: list[nn.Conv2d], n: int) -> list[nn.Conv2d]:
    """Return the layers without the weakest output channel of layer n."""
    first, second = layers[n], layers[n + 1]
    weakest = int(first.weight.detach().abs().sum((1, 2, 3)).argmin())
    keep = [c for c in range(first.out_channels) if c != weakest]
    where = first.weight.device
    left = nn.Conv2d(first.in_channels, len(keep), 3, padding=1, device=where)
    right = nn.Conv2d(len(keep), second.out_channels, 3, padding=1, device=where)
    with torch.no_grad():
        left.weight.copy_(first.weight[keep])
        left.bias.copy_(first.bias[keep])  # type: ignore[union-attr, index]
        right.weight.copy_(second.weight[:, keep])
        right.bias.copy_(second.bias)  # type: ignore[union-attr, arg-type]
    return [*layers[:n], left, right, *layers[n + 2 :]]


@labelled(gpu="compiling", cpu="compiling")
def network_slimming(run: hoptui.Run, device: str) -> None:
    """The weakest channel of a compiled network is taken out after each step of fine-tuning.

    The smaller network is compiled anew: seven convolutions with their backward pass are traced in more than
    100 ms. A step with 4 pictures of 16 x 16 and at most 16 channels takes less than 20 ms.
    """
    widths = [3, 16, 16, 16, 16, 16, 16, 10]

    def dense() -> list[nn.Conv2d]:
        return [nn.Conv2d(a, b, 3, padding=1).to(device) for a, b in itertools.pairwise(widths)]

    layers, n = dense(), 0
    while not run.stopping:
        if layers[n].out_channels == 4:
            layers, n = (dense(), 0) if n == len(layers) - 2 else (layers, n + 1)
        layers = slimmed(layers, n)
        net = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
        torch.compiler.reset()
        compiled = torch.compile(net, backend="aot_eager")
        opt = torch.optim.SGD(net.parameters(), lr=0.01)
        x, y = torch.rand(4, 3, 16, 16, device=device), torch.randint(0, 10, (4,), device=device)
        loss = F.cross_entropy(compiled(x).mean((2, 3)), y)
        loss.backward()
        opt.step()
        run.log(loss=loss.item(), samples=4)


@labelled(gpu="host-bound", cpu="host-bound", needs=(PACKAGE, "sklearn"), adapter=True)
def lit_simsiam_linear_probe(run: AdapterRun, device: str) -> None:
    """SimSiam under Lightning, whose callback fits scikit-learn's logistic regression to the features.

    A fit of 10 classes to 400 x 128 numbers with 40 rounds of L-BFGS takes more than 100 ms. The step of a
    perceptron on two views of 64 small pictures takes less than 20 ms.
    """
    from sklearn.linear_model import LogisticRegression

    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)

    class SimSiam(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(192, 128), nn.ReLU(), nn.Linear(128, 128))
            self.predictor = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 128))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            (x,) = batch
            z1 = self.encoder(x + 0.1 * torch.randn_like(x))
            z2 = self.encoder(x.flip(-1))
            loss = -F.cosine_similarity(self.predictor(z1), z2.detach()).mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    class LinearProbe(pl.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.x, self.y = torch.rand(400, 3, 8, 8), np.random.default_rng(0).integers(0, 10, 400)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            with torch.no_grad():
                feats = pl_module.encoder(self.x.to(pl_module.device)).cpu().numpy()
            feats = (feats - feats.mean(0)) / (feats.std(0) + 1e-6)
            probe = LogisticRegression(C=100.0, max_iter=40, tol=1e-9)
            probe.fit(feats, self.y)  # here
            pl_module.log("probe", probe.score(feats, self.y))  # here

    trainer = pl.Trainer(
        accelerator="cpu" if device == "cpu" else "gpu",
        devices=1,
        max_steps=run.iterations,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[HoptuiCallback(run.name), LinearProbe()],
    )
    views = DataLoader(TensorDataset(torch.rand(1024, 3, 8, 8)), batch_size=64, shuffle=True)
    trainer.fit(SimSiam(), views)


class HashGrid(nn.Module):
    """Features of a point in space, from tables that are indexed by a hash of the nearest corners."""

    def __init__(self, levels: int, log2_size: int) -> None:
        super().__init__()
        self.mask = (1 << log2_size) - 1
        size = 1 << log2_size
        self.tables = nn.ParameterList(torch.empty(size, 2).uniform_(-1e-4, 1e-4) for _ in range(levels))

    def forward(self, xyz: Tensor) -> Tensor:
        feats = []
        for n, table in enumerate(self.tables):
            scaled = xyz * (64 * 1.6**n)
            corner, offset = scaled.long(), scaled.frac()
            indices, weights = [], []
            for dx, dy, dz in itertools.product((0, 1), repeat=3):
                x, y, z = corner[:, 0] + dx, corner[:, 1] + dy, corner[:, 2] + dz
                indices.append((x ^ (y * 2_654_435_761) ^ (z * 805_459_861)) & self.mask)
                near = torch.tensor([dx, dy, dz], device=xyz.device)
                weights.append(torch.where(near == 1, offset, 1 - offset).prod(-1))
            rows = table.index_select(0, torch.stack(indices).flatten()).view(8, -1, 2)
            feats.append((torch.stack(weights)[..., None] * rows).sum(0))
        return torch.cat(feats, -1)


@labelled(gpu="memory-latency-bound memory-bandwidth-bound", cpu="healthy")
def instant_ngp_in_pytorch(run: hoptui.Run, device: str) -> None:
    """A field of densities is learned with hashed tables, in plain PyTorch.

    On a GPU: 8 tables of 33 million rows of 8 bytes, 268 MB each, which no cache holds. 2 million points
    read 8 rows of each and add their gradients to them: 134 million reads and 268 million atomic additions
    at random addresses, of which some thousand million are done in a second: more than 50 ms. Tensors of
    points and tables are read and written in order for about 60 GB: some 15 ms. So random access is the
    limit, and at times the bus. On the CPU: 4 tables of 65 536 rows and 4096 points.
    """
    cpu = device == "cpu"
    points = 4096 if cpu else 2_097_152
    with torch.device(device):
        grid = HashGrid(4, 16) if cpu else HashGrid(8, 25)
        head = nn.Linear(2 * len(grid.tables), 1)
    opt = torch.optim.SGD([*grid.parameters(), *head.parameters()], lr=0.1)
    while not run.stopping:
        xyz = torch.rand(points, 3, device=device)
        density = (xyz * 6).sin().prod(-1, keepdim=True)
        loss = F.mse_loss(head(grid(xyz)), density)
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(loss=loss.item(), samples=points)


@labelled(gpu="memory-latency-bound", cpu="healthy")
def irradiance_of_a_panorama(run: hoptui.Run, device: str) -> None:
    """A network learns the brightness of points; light is drawn from a panorama by its distribution.

    On a GPU: 134 million draws are each found by a binary search in 16.8 million sums, 67 MB. That is 24
    reads that depend on each other, and ten of them miss the first cache: 43 GB from the second cache, more
    than 8 ms. The bus carries some 12 GB in this time, less than 3 ms, and there is no arithmetic to speak
    of. The network sees 262 144 points of 3 numbers: less than 1 ms. On the CPU: 65 536 sums, 16 384 draws.
    """
    cpu = device == "cpu"
    texels, points, spp = (65_536, 512, 32) if cpu else (16_777_216, 262_144, 512)
    radiance = torch.rand(texels, device=device) + 0.1
    cdf = radiance.cumsum(0, dtype=torch.float64)
    cdf = (cdf / cdf[-1]).float()
    net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    while not run.stopping:
        normals = F.normalize(torch.randn(points, 3, device=device), dim=-1)
        with torch.no_grad():
            drawn = torch.searchsorted(cdf, torch.rand(points, spp, device=device), out_int32=True)
            light = radiance[drawn.clamp_(max=texels - 1)].mean(-1, keepdim=True)
        loss = F.mse_loss(net(normals), light)
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(loss=loss.item(), samples=points)
