"""Trainings for archaeology: photographs of sherds, tablets, layers of earth, reliefs, and broken edges."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import hoptui
from benchmarks.labelled.catalogue import labelled


def _photographs(number: int, width: int, height: int) -> Any:
    """Return a data set of photographs in JPEG, as the hub keeps them."""
    from datasets import ClassLabel, Dataset, Features, Image
    from PIL import Image as Picture

    rng = np.random.default_rng(8)
    photographs = []
    for _ in range(number):
        coarse = Picture.fromarray(rng.integers(40, 220, (height // 12, width // 12, 3), np.uint8))
        file = io.BytesIO()
        coarse.resize((width, height), Picture.Resampling.BICUBIC).save(file, "JPEG", quality=92)
        photographs.append({"bytes": file.getvalue(), "path": None})
    columns = {"photograph": photographs, "ware": rng.integers(0, 6, number).tolist()}
    wares = ClassLabel(names=["coarse", "fine", "glazed", "painted", "slipped", "stamped"])
    return Dataset.from_dict(columns, Features({"photograph": Image(), "ware": wares}))


def augment_sherds(examples: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Turn photographs by any angle, and make them small."""
    from PIL import Image as Picture

    pixels = []
    for picture in examples["photograph"]:  # here
        turned = picture.convert("RGB").rotate(random.uniform(0, 360), Picture.Resampling.BICUBIC)  # here
        small = turned.resize((160, 160), Picture.Resampling.LANCZOS)  # here
        pixels.append(torch.from_numpy(np.array(small)).permute(2, 0, 1).float() / 255)
    return {"pixel_values": pixels, "labels": examples["ware"]}


def collate_sherds(examples: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    """Make a batch of examples."""
    pixels = torch.stack([example["pixel_values"] for example in examples])
    return pixels, torch.tensor([example["labels"] for example in examples])


@labelled(
    gpu="data-bound",
    cpu="data-bound",
    needs=("datasets", "PIL", "timm"),
    helpers=(augment_sherds,),
)
def wares_of_photographed_sherds(run: hoptui.Run, device: str) -> None:
    """The wares of sherds with a small ResNet of timm. Two workers decode and turn the photographs.

    A photograph of 1600 x 1200 is decoded in more than 6 ms, and turned with bicubic weights in more than 20:
    more than 26 ms. A batch of 16 is more than 410 ms of work, and more than 205 ms with two workers. The
    ResNet-18 on 160 x 160 pixels needs less than 20 ms for its step. On the CPU: a narrow net on 20 x 20.
    """
    import timm

    photographs = _photographs(48, 1600, 1200).with_transform(augment_sherds)
    loader = DataLoader(
        photographs,
        batch_size=16,
        shuffle=True,
        collate_fn=collate_sherds,
        num_workers=2,
        persistent_workers=True,
    )
    if device == "cpu":
        model: Any = nn.Sequential(
            nn.AvgPool2d(8), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(6)
        )
    else:
        model = timm.create_model("resnet18", pretrained=False, num_classes=6).to(device)
    model(torch.zeros(2, 3, 160, 160, device=device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while not run.stopping:
        for pixels, wares in loader:  # here
            if run.stopping:
                break
            loss = F.cross_entropy(model(pixels.to(device)), wares.to(device), label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(wares))


def asymmetric_focal(logits: Tensor, target: Tensor, positive: float = 1.0, negative: float = 4.0) -> Tensor:
    """Weigh easy signs less, and absent signs even less than those that are there."""
    there = torch.sigmoid(logits)
    absent = (1 - there + 0.05).clamp(max=1)
    cost = target * there.clamp(min=1e-8).log() * (1 - there) ** positive
    cost = cost + (1 - target) * absent.clamp(min=1e-8).log() * (1 - absent) ** negative
    return -cost.mean()


@labelled(gpu="compiling", cpu="compiling")
def signs_on_broken_tablets(run: hoptui.Run, device: str) -> None:
    """Signs are found along the lines of tablets, with a compiled loss. Each tablet has another size.

    A tablet has 8 to 60 lines with 30 to 400 places: 19 000 sizes, so that the loss is nearly always compiled
    anew, forward and backward. That takes more than 200 ms with Inductor on a GPU, and more than 30 ms with
    the backend aot_eager on the CPU. The tagger needs less than 8 ms there and 8 ms here.
    """
    from torch._dynamo import config

    config.recompile_limit = config.accumulated_recompile_limit = 1_000_000
    backend = "aot_eager" if device == "cpu" else "inductor"
    criterion = torch.compile(asymmetric_focal, dynamic=False, backend=backend)
    width = 8 if device == "cpu" else 48
    tagger = nn.Sequential(nn.Conv1d(16, width, 5, padding=2), nn.GELU(), nn.Conv1d(width, 4, 1)).to(device)
    optimizer = torch.optim.RAdam(tagger.parameters(), lr=1e-3)
    while not run.stopping:
        lines, places = random.randint(8, 60), random.randint(30, 400)
        wedges = torch.randn(lines, 16, places, device=device)
        signs = (wedges[:, :4] > 1).float()
        loss = criterion(tagger(wedges), signs)  # here
        optimizer.zero_grad()
        loss.backward()  # here
        optimizer.step()
        run.log(loss=loss.item(), samples=lines)


def dig(rng: random.Random, units: int, relations: int) -> list[tuple[int, int]]:
    """Return which unit of an excavation was seen to lie over which."""
    over = []
    for _ in range(relations):
        upper = rng.randrange(units - 1)
        over.append((upper, min(units - 1, upper + 1 + int(rng.expovariate(0.1)))))
    return over


def phases_of(units: int, over: list[tuple[int, int]]) -> list[int]:
    """Return the phase of each unit from the Harris matrix, where no relation follows from others."""
    import networkx as nx

    seen: Any = nx.DiGraph()
    seen.add_nodes_from(range(units))
    seen.add_edges_from(over)
    matrix = nx.transitive_reduction(seen)  # here
    phase = [0] * units
    for unit in nx.lexicographical_topological_sort(matrix):  # here
        for above in matrix.predecessors(unit):  # here
            phase[unit] = max(phase[unit], phase[above] + 1)  # here
    return phase


@labelled(gpu="host-bound", cpu="host-bound", needs=("networkx",), helpers=(phases_of,))
def layers_of_an_excavation(run: hoptui.Run, device: str) -> None:
    """Finds are dated by a network whose targets come from Harris matrices, which networkx reduces.

    A site has 300 units and 1200 relations. To reduce them, networkx walks down from each unit over half of
    the relations: more than 160 000 of more than 50 nanoseconds, so more than 8 ms. 8 sites take more than 64
    ms. The network with 2400 units of 24 finds needs less than 6 ms with its step.
    """
    rng, units, sites = random.Random(31), 300, 8
    net = nn.Sequential(nn.Linear(24, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adamax(net.parameters(), lr=2e-3)
    while not run.stopping:
        phases = [phases_of(units, dig(rng, units, 4 * units)) for _ in range(sites)]  # here
        target = torch.tensor(phases, dtype=torch.float32, device=device).flatten() / units
        finds = target[:, None] + 0.2 * torch.randn(sites * units, 24, device=device)
        loss = F.smooth_l1_loss(net(finds)[:, 0], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=sites)


class ReliefNet(nn.Module):
    """Finds ditches in reliefs, on a sixteenth of their cells."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(16)
        self.body = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2, 1))

    def forward(self, heights: Tensor) -> Tensor:
        coarse = self.pool(heights)
        scores: Tensor = self.body(coarse - coarse.mean((2, 3), keepdim=True))
        return scores


@labelled(gpu="transfer-bound", cpu="healthy")
def ditches_in_laser_reliefs(run: hoptui.Run, device: str) -> None:
    """A survey lies in the memory of the host. Each step takes 768 tiles of it to the GPU as they are.

    On a GPU: 768 tiles of 512 x 512 heights are 805 MB in pageable memory: more than 40 ms at 20 GB/s, and
    more than 80 ms at the usual 10 GB/s. They are pooled to 32 x 32 cells in less than 1 ms, and the network
    of 8 channels needs less than 7 ms. On the CPU: 32 tiles, which stay where they are, and 64 channels.
    """
    tiles, width = (32, 64) if device == "cpu" else (768, 8)
    survey = torch.randn(64, 1, 512, 512).repeat(2 * tiles // 64 or 1, 1, 1, 1)
    model = ReliefNet(width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    while not run.stopping:
        first = random.randrange(len(survey) - tiles + 1)
        heights = survey[first : first + tiles].to(device)  # here
        ditch = (heights[:, 0, 8::16, 8::16] < -0.5).long()
        loss = F.cross_entropy(model(heights), ditch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=tiles)


def sinkhorn(cost: Tensor, rounds: int, eps: float = 0.05) -> Tensor:
    """Return a soft assignment between two edges, by rounds of Sinkhorn in the domain of logarithms."""
    f = torch.zeros_like(cost[:, :, 0])
    g = torch.zeros_like(cost[:, 0])
    for _ in range(rounds):
        f = -eps * torch.logsumexp((g[:, None] - cost) / eps, 2)
        g = -eps * torch.logsumexp((f[:, :, None] - cost) / eps, 1)
    return torch.exp((f[:, :, None] + g[:, None] - cost) / eps)


@labelled(gpu="launch-bound", cpu="healthy")
def sherds_that_fit_together(run: hoptui.Run, device: str) -> None:
    """Points along two broken edges are described by a network, and matched by rounds of Sinkhorn.

    On a GPU: 150 rounds on 4 pairs of edges with 48 points. A round has two sums with some 12 operations
    forward and 14 backward: 52, so 7800 in a step. They take the host more than 5 microseconds each: more
    than 40 ms, and the GPU 2 or 3: less than 24 ms. On the CPU: 8 rounds on 48 pairs with 96 points.
    """
    pairs, points, rounds = (48, 96, 8) if device == "cpu" else (4, 48, 150)
    describe = nn.Sequential(nn.Conv1d(2, 32, 7, padding=3), nn.ReLU(), nn.Conv1d(32, 16, 1)).to(device)
    optimizer = torch.optim.AdamW(describe.parameters(), lr=1e-3)
    true = torch.arange(points, device=device).expand(pairs, -1)
    while not run.stopping:
        edge = torch.randn(pairs, 2, points, device=device).cumsum(-1) / 4
        worn = edge + 0.05 * torch.randn_like(edge)
        one, other = (F.normalize(describe(each), dim=1) for each in (edge, worn))
        plan = sinkhorn(1 - one.transpose(1, 2) @ other, rounds)
        loss = F.nll_loss((plan + 1e-9).log().transpose(1, 2), true)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=pairs)
