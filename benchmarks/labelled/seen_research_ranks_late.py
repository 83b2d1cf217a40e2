"""Trainings of two ranks, one of which keeps the other waiting."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


def _wrap(model: nn.Module, device: str, **options: Any) -> DistributedDataParallel:
    ids = None if device == "cpu" else [torch.cuda.current_device()]
    return DistributedDataParallel(model.to(device), device_ids=ids, **options)


@torch.no_grad()
def write_sample(gpt: Any, idx: Tensor, max_new_tokens: int, block_size: int) -> list[int]:
    """Continue a prompt token by token, without a cache, as nanoGPT's `generate`."""
    gpt.eval()
    for _ in range(max_new_tokens):
        logits = gpt(input_ids=idx[:, -block_size:]).logits[:, -1, :]  # here
        v, _ = torch.topk(logits / 0.8, 20)
        logits = logits.masked_fill(logits < v[:, [-1]], -torch.inf)
        idx_next = torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)
        idx = torch.cat((idx, idx_next), dim=1)
    gpt.train()
    tokens: list[int] = idx[0].tolist()
    return tokens


@labelled(gpu="straggler", cpu="straggler", ranks=2, needs=("transformers",), helpers=(write_sample,))
def master_process_writes_samples(run: hoptui.Run, device: str) -> None:
    """nanoGPT's loop. The master process writes a sample of 50 tokens after each step.

    The model is run once for each token, without a cache. It has 4 layers: a run takes more than 2 ms, by
    the CPU's products or by a GPU's launches, so the sample takes more than 100 ms. The step of 2 x 16
    tokens is about eight such runs: less than 40 ms.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    block_size, vocab_size, ddp_rank = 64, 256, dist.get_rank()
    master_process = ddp_rank == 0
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=block_size,
        n_embd=128,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = _wrap(GPT2LMHeadModel(config), device)
    raw_model = model.module
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))
    data = np.random.default_rng(1337 + ddp_rank).integers(0, vocab_size, 100_000)

    def get_batch() -> Tensor:
        ix = torch.randint(len(data) - 16, (2,)).tolist()
        return torch.stack([torch.from_numpy(data[i : i + 16]) for i in ix]).to(device)

    iter_num = 0
    while not run.stopping:
        x = get_batch()
        loss = model(input_ids=x, labels=x).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        lossf = loss.item()
        if master_process:
            write_sample(raw_model, x[:1, :1], 50, block_size)
        iter_num += 1
        run.log(loss=lossf, samples=2)


class Listener(nn.Module):
    """Reads frames one by one with a cell, as speech models with their own cells do."""

    def __init__(self, n_mels: int, hidden: int, n_chars: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(n_mels, hidden)
        self.proj = nn.Linear(hidden, n_chars)
        self.hidden = hidden

    def forward(self, feats: Tensor) -> Tensor:
        h = feats.new_zeros(len(feats), self.hidden)
        c = torch.zeros_like(h)
        for t in range(feats.shape[1]):
            h, c = self.cell(feats[:, t], (h, c))  # here
        out: Tensor = self.proj(h)
        return out


@labelled(gpu="straggler", cpu="straggler", ranks=2, helpers=(Listener,))
def shards_sorted_by_duration(run: hoptui.Run, device: str) -> None:
    """Utterances are sorted by duration before they are cut into a shard for each rank.

    Those of the second rank have 600 frames, those of the first 30. A frame is one step of a cell and one
    of its backward pass, some dozen small operations: more than 0.12 ms together on either device. So the
    second rank needs more than 70 ms, and the first one with the optimizer less than 20 ms.
    """
    rank = dist.get_rank()
    durations = sorted([30] * 32 + [600] * 32)
    shard = durations[32 * rank : 32 * (rank + 1)]
    net = _wrap(Listener(40, 64, 29), device)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    i = 0
    while not run.stopping:
        frames = max(shard[i % 32 : i % 32 + 4])
        feats = torch.randn(4, frames, 40, device=device)
        target = torch.randint(0, 29, (4,), device=device)
        loss = F.cross_entropy(net(feats), target)  # here
        opt.zero_grad()
        loss.backward()  # here
        opt.step()
        i += 1
        run.log(loss=loss.item(), samples=4)


class ShardOfLines(IterableDataset[tuple[Tensor, Tensor]]):
    """Records of a file of JSON lines. Those before the part of this rank are parsed and dropped."""

    def __init__(self, path: Path, start: int, count: int) -> None:
        self.path, self.start, self.count = path, start, count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        with self.path.open() as lines:
            for n, line in enumerate(lines):  # here
                record = json.loads(line)  # here
                if n < self.start:
                    continue
                if n >= self.start + self.count:
                    return
                yield torch.tensor(record["x"]), torch.tensor(record["y"])


@labelled(gpu="straggler", cpu="straggler", ranks=2, helpers=(ShardOfLines,))
def each_rank_skips_to_its_part(run: hoptui.Run, device: str) -> None:
    """Each rank reads the same file from its beginning, and skips what belongs to the ranks before it.

    The first rank begins with line 0, the second with line 8000. A line has 64 numbers, and is parsed
    in more than 12 microseconds: more than 100 ms for each part of 16 records. The step of a perceptron
    takes less than 15 ms.
    """
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = _wrap(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 5)), device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "part.jsonl")
        rows = [
            json.dumps({"x": rng.random(64).round(6).tolist(), "y": int(rng.integers(5))})
            for _ in range(8_016)
        ]
        path.write_text("\n".join(rows))
        while not run.stopping:
            part = ShardOfLines(path, start=8_000 * rank, count=16)
            for x, y in DataLoader(part, batch_size=16):
                loss = F.cross_entropy(model(x.to(device)), y.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss.item(), samples=16)


class GradientWatcher:
    """Keeps a histogram of each weight and its gradient, on the first rank."""

    def __init__(self, model: nn.Module) -> None:
        self.histograms: dict[str, Any] = {}
        for name, p in model.named_parameters():
            if p.requires_grad and dist.get_rank() == 0:
                p.register_hook(self.hook_of(name, p))

    def hook_of(self, name: str, weight: Tensor) -> Any:
        """Return the hook of one parameter."""

        def hook(grad: Tensor) -> None:
            values, weights = grad.cpu().numpy().ravel(), weight.detach().cpu().numpy().ravel()
            self.histograms[name] = np.histogram2d(weights, values, bins=64)  # here

        return hook


@labelled(gpu="straggler", cpu="straggler", ranks=2, helpers=(GradientWatcher,))
def watches_gradients_on_rank_zero(run: hoptui.Run, device: str) -> None:
    """Hooks of the parameters compute histograms in the backward pass, on the first rank only.

    NumPy sorts 1.2 million pairs into bins of two dimensions: more than 100 ms, within `loss.backward()`. The
    step with 16 rows needs less than 30 ms, with 5 MB of gradients for the other rank.
    """
    width = 640
    layers = [part for _ in range(3) for part in (nn.Linear(width, width), nn.ReLU())]
    body = nn.Sequential(*layers, nn.Linear(width, 10))
    watcher = GradientWatcher(body)
    model = _wrap(body, device)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(512, width), torch.randint(0, 10, (512,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    while not run.stopping:
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            opt.zero_grad()
            loss.backward()
            opt.step()
            run.log(loss=loss.item(), watched=len(watcher.histograms), samples=16)
            if run.stopping:
                break


@labelled(
    gpu="straggler save-bound", cpu="straggler save-bound", ranks=2, needs=("accelerate",), adapter=True
)
def main_process_saves_item_vectors(run: AdapterRun, device: str) -> None:
    """The main process saves a table of 64 million numbers after each step, and all processes wait for it.

    256 MB are written: more than 100 ms, and more on a disk. The step goes over 64 rows of the table,
    which is not trained, and a head of 64 numbers: less than 30 ms. That the other rank waits and that a
    checkpoint is what it waits for are both true.
    """
    from accelerate import Accelerator

    from hoptui.integrations.accelerate import HoptuiTracker

    accelerator = Accelerator(cpu=device == "cpu", log_with=HoptuiTracker())
    items = nn.Embedding(1_000_000, 64).requires_grad_(False)

    class Scorer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items, self.head = items, nn.Linear(64, 1)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.items(ids))[:, 0]  # type: ignore[no-any-return]

    model = Scorer()
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-3)
    ids, labels = torch.randint(0, 1_000_000, (4096,)), torch.rand(4096)
    loader = DataLoader(TensorDataset(ids, labels), batch_size=64, shuffle=True)
    net, opt, batches = accelerator.prepare(model, optimizer, loader)
    accelerator.init_trackers(run.name)
    tracked, completed_steps = accelerator.get_tracker("hoptui").tracker, 0
    with tempfile.TemporaryDirectory() as output_dir:
        while completed_steps < run.iterations and not tracked.stopping:
            for idx, label in batches:
                loss = F.mse_loss(net(idx), label)
                accelerator.backward(loss)
                opt.step()
                opt.zero_grad()
                completed_steps += 1
                if accelerator.is_main_process:
                    state = accelerator.unwrap_model(net).state_dict()
                    torch.save(state, Path(output_dir, "last.pt"))  # here
                accelerator.wait_for_everyone()
                accelerator.log({"loss": loss.item()}, step=completed_steps)
                if completed_steps >= run.iterations or tracked.stopping:
                    break
    accelerator.end_training()


def load_annotations(images: int) -> list[dict[str, Any]]:
    """Return boxes of pictures as COCO's annotations have them."""
    return [
        {"id": n, "boxes": [[float(n), float(b), 10.0, 10.0] for b in range(7)], "labels": list(range(7))}
        for n in range(images)
    ]


@labelled(gpu="straggler", cpu="straggler", ranks=2, needs=("torchvision",))
def frees_memory_on_the_evaluating_rank(run: hoptui.Run, device: str) -> None:
    """The rank that evaluates keeps all annotations in Python lists, and collects garbage after each step.

    30 000 pictures are 0.3 million lists and dictionaries. The collector visits them and the objects of all
    packages: more than 100 ms. The step of a small network with 4 pictures takes less than 40 ms.
    """
    from torchvision.models import squeezenet1_1

    annotations = load_annotations(30_000) if dist.get_rank() == 0 else []
    model = _wrap(squeezenet1_1(num_classes=7), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.randn(4, 3, 32, 32, device=device)
    targets = torch.randint(0, 7, (4,), device=device)

    def free_memory() -> None:
        """Give back what is no longer used."""
        if annotations:
            gc.collect()  # here

    while not run.stopping:
        loss = F.cross_entropy(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_value = loss.item()
        free_memory()
        run.log(loss=loss_value, samples=4)
