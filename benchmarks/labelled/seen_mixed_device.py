"""Trainings that are limited by the GPU, by copies to it, by a compiler, or by where the model is."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


@labelled(gpu="transfer-bound")
def spectrogram_bank_on_the_host(run: hoptui.Run, device: str) -> None:
    """Long windows of a bank of spectrograms are copied from pageable memory, and one in 64 frames is used.

    A window has 131 072 x 2048 numbers, 1 GB: more than 60 ms, as pageable memory gives less than 16
    GB/s. The bank itself is not copied on the host. Every 64th frame goes through a perceptron: less than
    10 ms.
    """
    bank = torch.ones(393_216, 2048)
    net = nn.Sequential(nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 16)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    rng = random.Random(0)
    while not run.stopping:
        start = rng.randrange(len(bank) - 131_072)
        window = bank[start : start + 131_072].to(device)  # here
        frames = window[::64]
        loss = F.cross_entropy(net(frames), torch.randint(0, 16, (len(frames),), device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=len(frames))  # here


class SparseAutoencoder(nn.Module):
    """A dictionary of activations, as used in interpretability."""

    def __init__(self, d_model: int, d_sae: int) -> None:
        super().__init__()
        self.W_enc = nn.Parameter(torch.randn(d_model, d_sae) / d_model**0.5)
        self.b_enc, self.b_dec = nn.Parameter(torch.zeros(d_sae)), nn.Parameter(torch.zeros(d_model))
        self.W_dec = nn.Parameter(self.W_enc.detach().T.clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        acts = F.relu((x - self.b_dec) @ self.W_enc + self.b_enc)
        return acts @ self.W_dec + self.b_dec, acts


@labelled(gpu="compute-bound power-limited", cpu="healthy", needs=("accelerate",), adapter=True)
def sparse_autoencoder_bf16(run: AdapterRun, device: str) -> None:
    """A sparse autoencoder is trained with accelerate in bf16 on activations of a model.

    On a GPU: 32 768 activations of width 8192 and a dictionary of 32 768: six products of 17.6 TFLOP, 105
    TFLOP, more than 110 ms. The features are 4 GB, and go over the bus about 20 times; the 537 million
    weights with their casts are 10 GB: less than 25 ms together. On the CPU: products of 2 x 3 x 0.27 GFLOP.
    """
    from accelerate import Accelerator

    from hoptui.integrations.accelerate import HoptuiTracker

    cpu = device == "cpu"
    d_model, d_sae, rows = (128, 1024, 1024) if cpu else (8192, 32_768, 32_768)
    accelerator = Accelerator(cpu=cpu, mixed_precision="no" if cpu else "bf16", log_with=HoptuiTracker())
    with torch.device(accelerator.device):
        sae = SparseAutoencoder(d_model, d_sae)
    optimizer = torch.optim.SGD(sae.parameters(), lr=1e-3)
    model, opt = accelerator.prepare(sae, optimizer)
    accelerator.init_trackers(run.name)
    tracked, step = accelerator.get_tracker("hoptui").tracker, 0
    dtype = torch.float32 if cpu else torch.bfloat16
    buffer = torch.randn(2 * rows, d_model, device=accelerator.device, dtype=dtype)
    while step < run.iterations and not tracked.stopping:
        x = buffer[torch.randint(0, len(buffer), (rows,), device=accelerator.device)]
        x_hat, acts = model(x)
        loss = F.mse_loss(x_hat.float(), x.float()) + 1e-3 * acts.mean()
        accelerator.backward(loss)
        opt.step()
        opt.zero_grad()
        step += 1
        accelerator.log({"loss": loss.item()}, step=step)
    accelerator.end_training()


@labelled(gpu="memory-bandwidth-bound", cpu="healthy")
def two_towers_with_full_softmax(run: hoptui.Run, device: str) -> None:
    """A recommender takes the softmax over all items, with few factors for each.

    On a GPU: the logits of 4096 users and 1 million items are 16 GB in float32. The product, log-softmax,
    loss and their gradients read and write them about ten times: 160 GB. With 16 factors the products are
    0.4 TFLOP, less than 10 ms. On the CPU: 256 users and 20 000 items.
    """
    users, items = (256, 20_000) if device == "cpu" else (4096, 1_000_000)
    user_tower = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)).to(device)
    item_tower = nn.Embedding(items, 16).to(device)
    optimizer = torch.optim.SGD([*user_tower.parameters(), *item_tower.parameters()], lr=0.1)
    while not run.stopping:
        features = torch.randn(users, 32, device=device)
        bought = torch.randint(0, items, (users,), device=device)
        logits = user_tower(features) @ item_tower.weight.T
        loss = F.cross_entropy(logits, bought)
        del logits
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=users)


@labelled(gpu="memory-latency-bound", cpu="healthy")
def bags_of_hashed_ngrams(run: hoptui.Run, device: str) -> None:
    """A classifier over frozen vectors of hashed n-grams, which are summed for long documents.

    On a GPU: 16 tables of 16 million rows of 4 numbers, 256 MB each. For each table 32 768 documents look
    up 2048 random rows of 16 bytes, one after another for each document: a thread adds 2048 numbers, each
    from a row that is not in the cache. The indices are 512 MB. On the CPU: 8192 documents of 512 n-grams
    and 4 tables.
    """
    cpu = device == "cpu"
    tables, rows, documents, length = (4, 200_000, 8192, 512) if cpu else (16, 16_000_000, 32_768, 2048)
    with torch.device(device):
        vectors = [nn.EmbeddingBag(rows, 4, mode="sum").requires_grad_(False) for _ in range(tables)]
        ngrams = torch.randint(0, rows, (documents, length))
        y = torch.randint(0, 2, (documents,))
        head = nn.Linear(4 * tables, 2)
    opt = torch.optim.Adam(head.parameters(), lr=1e-2)
    while not run.stopping:
        feats = torch.cat([bag(ngrams) for bag in vectors], 1) / length**0.5
        loss = F.cross_entropy(head(feats), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(loss=loss.item(), samples=documents)


OPERATIONS: dict[str, Any] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "norm": lambda h: F.layer_norm(h, h.shape[-1:]),
    "double": lambda h: h + h,
    "shift": lambda h: h.roll(1, -1),
    "softmax": lambda h: h.softmax(-1),
}


class SearchedCell(nn.Module):
    """A cell of operations that were drawn."""

    def __init__(self, width: int, genes: list[str]) -> None:
        super().__init__()
        self.genes, self.linear = genes, nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.linear(x)
        for gene in self.genes:
            h = 0.5 * h + OPERATIONS[gene](h)
        return h


@labelled(gpu="compiling", cpu="compiling")
def searched_cells_compiled(run: hoptui.Run, device: str) -> None:
    """A search of architectures compiles each drawn cell before it is trained for two steps.

    A cell of 8 operations is traced forward and backward in more than 100 ms, after
    `torch.compiler.reset`. Two steps with 16 x 32 numbers need less than 20 ms.
    """
    rng = random.Random(0)
    x = torch.randn(16, 32, device=device)
    while not run.stopping:
        genes = rng.choices(list(OPERATIONS), k=8)
        cell = SearchedCell(32, genes).to(device)
        torch.compiler.reset()
        compiled = torch.compile(cell, backend="aot_eager")
        opt = torch.optim.SGD(cell.parameters(), lr=0.01)
        for _ in range(2):
            loss = (compiled(x) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        run.log(loss=loss.item(), samples=32)


class PerceptualLoss(nn.Module):
    """Distances of the features of a frozen network, as for super-resolution."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import vgg16

        self.features = vgg16(weights=None).features[:16].eval().requires_grad_(False)

    def forward(self, sr: Tensor, hr: Tensor) -> Tensor:
        return F.l1_loss(self.features(sr), self.features(hr))


@labelled(gpu="wrong-device", cpu="healthy", needs=("torchvision",))
def perceptual_loss_left_behind(run: hoptui.Run, device: str) -> None:
    """A super-resolution net is on the device. Its perceptual loss with a VGG is not, nor are the targets.

    Three stages of VGG-16 for 2 + 2 pictures of 64 pixels are 3 GFLOP, and half of them have a backward
    pass as well: more than 60 ms on one core. The net itself has two small convolutions: less than 15 ms
    on a CPU.
    """
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 12, 3, padding=1), nn.PixelShuffle(2)
    )
    net.to(device)
    criterion = PerceptualLoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    while not run.stopping:
        hr = torch.rand(2, 3, 64, 64)
        lr = F.avg_pool2d(hr, 2).to(device)
        loss = criterion(net(lr).cpu(), hr)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=2)


@labelled(gpu="wrong-device", cpu="healthy", needs=("torch_geometric",))
def citations_with_no_cuda_by_default(run: hoptui.Run, device: str) -> None:
    """A graph network of a script whose option `--no-cuda` is on by default, so nothing goes to the device.

    Two graph convolutions over 4000 nodes with 500 features and 20 000 edges: products of 1 GFLOP with
    their backward pass, and sums over the edges: more than 30 ms on one core.
    """
    from argparse import Namespace

    from torch_geometric.nn import GCNConv

    args = Namespace(no_cuda=True, hidden=128, lr=0.01, weight_decay=5e-4)
    args.cuda = not args.no_cuda and torch.cuda.is_available()
    where = torch.device("cuda" if args.cuda else "cpu")
    x, edge_index = torch.randn(4000, 500, device=where), torch.randint(0, 4000, (2, 20_000), device=where)
    y = torch.randint(0, 7, (4000,), device=where)
    gcn = nn.ModuleList([GCNConv(500, args.hidden), GCNConv(args.hidden, 7)]).to(where)
    optimizer = torch.optim.Adam(gcn.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    while not run.stopping:
        h = F.dropout(gcn[0](x, edge_index).relu(), 0.5)
        loss_train = F.cross_entropy(gcn[1](h, edge_index), y)
        optimizer.zero_grad()
        loss_train.backward()
        optimizer.step()
        run.log(loss=loss_train.item(), samples=4000)
