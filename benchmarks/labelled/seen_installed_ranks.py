"""Trainings of two ranks with accelerate, Lightning, timm and torchvision."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import importlib
import importlib.util
import lzma
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"


def _ddp(model: nn.Module, device: str) -> nn.Module:
    ids = None if device == "cpu" else [torch.cuda.current_device()]
    return DistributedDataParallel(model.to(device), device_ids=ids)


@torch.no_grad()
def refresh_queues(queues: list[Tensor], keys: Tensor, step: int) -> None:
    """Put new keys into the queue of this rank, and give the queue of each rank to all."""
    mine = queues[dist.get_rank()]
    start = step * len(keys) % (len(mine) - len(keys))
    mine[start : start + len(keys)] = keys
    for owner, queue in enumerate(queues):
        dist.broadcast(queue, src=owner)  # here


@labelled(
    gpu="communication-bound",
    cpu="communication-bound",
    ranks=2,
    needs=("timm",),
    helpers=(refresh_queues,),
)
def timm_moco_whole_queues(run: hoptui.Run, device: str) -> None:
    """In the manner of MoCo: the queues of keys of all ranks are sent as a whole after each step.

    On the CPU: two queues of 200 MB over gloo are more than 130 ms. lcnet_035 with 4 pictures of 32 pixels
    and 1024 sampled keys need less than 30 ms. On GPUs: two queues of 8 GB through NCCL, at most 450 GB/s:
    more than 35 ms, and more than 100 ms over PCIe. The network needs less than 12 ms.
    """
    import timm

    encoder = _ddp(timm.create_model("lcnet_035", num_classes=128), device)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03)
    rows = 400_000 if device == "cpu" else 16_000_000
    queues = [F.normalize(torch.randn(rows, 128, device=device)) for _ in range(dist.get_world_size())]
    x = torch.randn(4, 3, 32, 32, device=device)
    step = 0
    while not run.stopping:
        q = F.normalize(encoder(x), dim=1)
        k = q.detach().roll(1, 0)
        negatives = queues[step % len(queues)][torch.randint(0, rows, (1024,), device=device)]
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ negatives.T], 1) / 0.2
        loss = F.cross_entropy(logits, torch.zeros(4, dtype=torch.long, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        refresh_queues(queues, k, step)
        step += 1
        run.log(loss=loss.item(), samples=4)


@labelled(gpu="straggler", cpu="straggler", ranks=2, needs=("torchvision",))
def torchvision_rank_zero_reports(run: hoptui.Run, device: str) -> None:
    """The first rank reports each step to a slow service, while the other one waits in the backward pass.

    The report takes 250 ms. The step of a small network with 4 pictures of 32 pixels takes less than 50 ms.
    """
    from torchvision.models import shufflenet_v2_x0_5

    model = _ddp(shufflenet_v2_x0_5(num_classes=10), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(4, 3, 32, 32, device=device)
    y = torch.randint(0, 10, (4,), device=device)

    def report(value: float) -> None:
        """Post a value. The service answers slowly."""
        if dist.get_rank() == 0 and value == value:
            time.sleep(0.25)  # here

    while not run.stopping:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        report(value)
        run.log(loss=value, samples=4)


class Archive(Dataset[tuple[Tensor, Tensor]]):
    """Measurements in files, some of which are packed."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        content = self.files[index].read_bytes()
        if self.files[index].suffix == ".xz":
            content = lzma.decompress(content)  # here
        values = np.frombuffer(content, np.float32)[: 64 * 32].reshape(64, 32)
        return torch.from_numpy(values.copy()), torch.tensor(index % 3)


@labelled(gpu="straggler", cpu="straggler", ranks=2, needs=("accelerate",), adapter=True, helpers=(Archive,))
def accelerate_packed_archive(run: AdapterRun, device: str) -> None:
    """Each process reads its own folder. The files of the second one are packed by lzma.

    2 MB of float noise are unpacked in more than 80 ms, 2 files a batch. The folder of the first process is
    read in less than 20 ms, and the recurrent network needs less than 40 ms.
    """
    from accelerate import Accelerator

    from hoptui.integrations.accelerate import HoptuiTracker

    accelerator = Accelerator(cpu=device == "cpu", log_with=HoptuiTracker())
    rank = accelerator.process_index
    rng = np.random.default_rng(rank)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.GRU(32, 64, batch_first=True), nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.rnn(x)[0][:, -1])  # type: ignore[no-any-return]

    model, optimizer = Net(), None
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    net, opt = accelerator.prepare(model, optimizer)
    accelerator.init_trackers(run.name)
    tracked, step = accelerator.get_tracker("hoptui").tracker, 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(8):
            values = rng.standard_normal(512 * 1024).astype(np.float32).tobytes()
            if rank == 1:
                Path(folder, f"{i}.xz").write_bytes(lzma.compress(values, preset=0))
            else:
                Path(folder, f"{i}.f32").write_bytes(values)
        loader = DataLoader(Archive(Path(folder)), batch_size=2, shuffle=True)
        while step < run.iterations and not tracked.stopping:
            for x, y in loader:
                loss = F.cross_entropy(net(x.to(accelerator.device)), y.to(accelerator.device))
                accelerator.backward(loss)
                opt.step()
                opt.zero_grad()
                step += 1
                accelerator.log({"loss": loss.item()}, step=step)
                if step >= run.iterations or tracked.stopping:
                    break
    accelerator.end_training()


def _averaging() -> Any:
    """Return a callback that averages the tables of all ranks after each batch."""
    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)

    class ModelAveraging(pl.Callback):  # type: ignore[misc]
        @torch.no_grad()
        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if not dist.is_initialized():
                return
            for table in (pl_module.table.weight, pl_module.average):
                dist.all_reduce(table)  # here
                table.div_(trainer.world_size)

    return ModelAveraging()


@labelled(cpu="communication-bound", ranks=2, needs=(PACKAGE,), adapter=True, helpers=(_averaging,))
def lit_averaged_sparse_table(run: AdapterRun, device: str) -> None:
    """Each rank trains a sparse table of its own under Lightning, and a callback averages the whole tables.

    Two tables of 96 MB go over gloo for each step: more than 80 ms. They are halved in less than 25 ms, and
    the step itself goes over 128 rows.
    """
    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)

    class Recommender(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(375_000, 64, sparse=True)
            self.register_buffer("average", self.table.weight.detach().clone())

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            ids, y = batch
            loss = F.binary_cross_entropy_with_logits(self.table(ids).mean((1, 2)), y)
            with torch.no_grad():
                rows = ids.flatten()
                self.average[rows] = self.average[rows].lerp(self.table.weight[rows], 0.1)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    ids, y = torch.randint(0, 375_000, (4096, 8)), torch.randint(0, 2, (4096,)).float()
    loader = DataLoader(torch.utils.data.TensorDataset(ids, y), batch_size=16, shuffle=True)
    devices = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_steps=run.iterations,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[_averaging(), HoptuiCallback(run.name)],
    )
    trainer.fit(Recommender(), loader)


@labelled(gpu="healthy compute-bound power-limited", cpu="healthy", ranks=2, needs=("timm",))
def timm_ddp_even_work(run: hoptui.Run, device: str) -> None:
    """A vision transformer under DistributedDataParallel, with as much work for each rank.

    On the CPU: 16 pictures of 64 tokens of width 192 in four blocks are 250 ms, and the gradients of 2
    million weights 8 MB. On GPUs: 64 x 257 tokens of width 2048 in bf16 autocast are 60 TFLOP, and DDP sends
    the gradients during the backward pass.
    """
    from timm.models.vision_transformer import VisionTransformer

    cpu = device == "cpu"
    size, batch_size = (64, 16) if cpu else (224, 64)
    net = VisionTransformer(
        img_size=size,
        patch_size=8 if cpu else 14,
        embed_dim=192 if cpu else 2048,
        depth=4 if cpu else 12,
        num_heads=4 if cpu else 16,
        num_classes=50,
    )
    model = _ddp(net, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(batch_size, 3, size, size, device=device)
    y = torch.randint(0, 50, (batch_size,), device=device)
    while not run.stopping:
        with torch.autocast(device, torch.bfloat16, enabled=not cpu):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=batch_size)


def sentence_bleu(candidate: list[int], reference: list[int]) -> float:
    """Return the precision of n-grams of up to four tokens."""
    score = 1.0
    for n in range(1, 5):
        known: dict[tuple[int, ...], int] = {}
        for i in range(len(reference) - n + 1):  # here
            gram = tuple(reference[i : i + n])  # here
            known[gram] = known.get(gram, 0) + 1  # here
        hits = 0
        for i in range(len(candidate) - n + 1):  # here
            gram = tuple(candidate[i : i + n])  # here
            if known.get(gram, 0) > 0:  # here
                known[gram] -= 1
                hits += 1
        score *= (hits + 1) / (len(candidate) - n + 2)
    return float(score**0.25)


@labelled(gpu="straggler", cpu="straggler", ranks=2, needs=("transformers",), helpers=(sentence_bleu,))
def bleu_on_the_main_process(run: hoptui.Run, device: str) -> None:
    """Translations are scored on the main process only, after each step, in Python.

    64 documents of 800 tokens take more than 90 ms. The step of a small encoder with 8 sequences takes less
    than 40 ms.
    """
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    model = _ddp(BertForMaskedLM(config), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 500, (8, 32), device=device)
    rng = np.random.default_rng(0)
    references = rng.integers(0, 50, (64, 800)).tolist()
    outputs = rng.integers(0, 50, (64, 800)).tolist()
    while not run.stopping:
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bleu = 0.0
        if dist.get_rank() == 0:
            bleu = sum(map(sentence_bleu, outputs, references)) / 64
        run.log(loss=loss.item(), bleu=bleu, samples=8)
