"""Trainings of two ranks with the same work: exchanges that take long, and limits that both ranks have."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import ast
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import hoptui
from benchmarks.labelled.catalogue import labelled


def _parallel(model: nn.Module, device: str) -> DistributedDataParallel:
    ids = None if device == "cpu" else [torch.cuda.current_device()]
    return DistributedDataParallel(model.to(device), device_ids=ids)


class SharedReplay:
    """The transitions of this rank, and room for those of all ranks."""

    def __init__(self, capacity: int, width: int, device: str) -> None:
        self.mine = torch.randn(capacity, width, device=device)
        self.everyone = torch.empty(capacity * dist.get_world_size(), width, device=device)

    def gather(self) -> Tensor:
        """Give the transitions of each rank to all."""
        dist.all_gather_into_tensor(self.everyone, self.mine)  # here
        return self.everyone


@labelled(gpu="communication-bound", cpu="communication-bound", ranks=2, helpers=(SharedReplay,))
def gathers_the_whole_replay(run: hoptui.Run, device: str) -> None:
    """A replay memory is gathered as a whole from all ranks before a batch of 64 is drawn from it.

    On the CPU: each rank sends and gets 64 MB over gloo: more than 35 ms. On GPUs: each sends and gets
    16 GB through NCCL, at most 450 GB/s: more than 35 ms, and over PCIe more than 250 ms. A perceptron is
    trained on 64 transitions in less than 8 ms.
    """
    width = 32
    replay = SharedReplay(500_000 if device == "cpu" else 125_000_000, width, device)
    q_network = _parallel(nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 4)), device)
    optimizer = torch.optim.Adam(q_network.parameters(), lr=2.5e-4)
    global_step = 0
    while not run.stopping:
        slot = global_step % 1000
        replay.mine[slot : slot + 8] = torch.randn(8, width, device=device)
        memory = replay.gather()
        data = memory[torch.randint(0, len(memory), (64,), device=device)]
        td_target = data[:, 0] + 0.99 * q_network(data).max(1).values.detach()
        loss = F.mse_loss(td_target, q_network(data)[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        global_step += 1
        run.log(loss=loss.item(), env_steps=8)


def sync_params(module: nn.Module) -> None:
    """Send all parameters of the first rank to the others, as `mpi_pytorch` of Spinning Up does."""
    for p in module.parameters():
        dist.broadcast(p.data, src=0)  # here


@labelled(gpu="communication-bound", cpu="communication-bound", ranks=2, helpers=(sync_params,))
def syncs_all_parameters_each_step(run: hoptui.Run, device: str) -> None:
    """The parameters of the first rank are broadcast before each step, as the ranks had drifted apart.

    On the CPU: eight tables of 13 MB over gloo, 102 MB: more than 50 ms. On GPUs: eight tables of 2 GB,
    16 GB through NCCL: more than 35 ms. The step looks up 32 rows of each table, and its gradients are
    sparse: less than 15 ms.
    """
    rows, width = (100_000 if device == "cpu" else 16_000_000), 32

    class Click(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with torch.device(device):
                self.tables = nn.ModuleList(nn.Embedding(rows, width, sparse=True) for _ in range(8))
                self.out = nn.Linear(8 * width, 1)

        def forward(self, ids: Tensor) -> Tensor:
            found = [table(ids[:, n]) for n, table in enumerate(self.tables)]
            return self.out(torch.cat(found, 1))[:, 0]  # type: ignore[no-any-return]

    ac = Click()
    opt = torch.optim.SGD(ac.parameters(), lr=0.05)
    while not run.stopping:
        sync_params(ac)
        ids = torch.randint(0, rows, (32, 8), device=device)
        loss = F.binary_cross_entropy_with_logits(ac(ids), torch.rand(32, device=device))
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(loss=loss.item(), samples=32)


def reduced_over_ranks(value: Tensor) -> float:
    """Return the mean of a number over all ranks."""
    dist.all_reduce(value)  # here
    return value.item() / dist.get_world_size()  # here


@labelled(gpu="communication-bound", cpu="communication-bound", ranks=2, helpers=(reduced_over_ranks,))
def averages_each_metric_by_itself(run: hoptui.Run, device: str) -> None:
    """The accuracy of each of many classes is averaged over the ranks on its own, and read at once.

    On the CPU: 300 exchanges of one number over gloo, more than 0.1 ms each. On GPUs: 3000 exchanges
    through NCCL, each with a wait for its result, more than 30 microseconds each: more than 90 ms. The
    step of a linear probe needs less than 10 ms. Both ranks do the same.
    """
    classes = 300 if device == "cpu" else 3000
    probe = _parallel(nn.Linear(64, classes), device)
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
    while not run.stopping:
        feats = torch.randn(32, 64, device=device)
        labels = torch.randint(0, classes, (32,), device=device)
        logits = probe(feats)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        share = logits.detach().softmax(1).mean(0)
        per_class = [reduced_over_ranks(each) for each in share]
        run.log(loss=loss.item(), best=max(per_class), samples=32)


class Herbarium(Dataset[tuple[Tensor, int]]):
    """Scans of plants as JPEG files, decoded and cut for each access."""

    def __init__(self, root: str, transform: Any) -> None:
        self.paths, self.transform = sorted(Path(root).glob("*.jpg")), transform

    def __len__(self) -> int:
        return 16 * len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        with Image.open(self.paths[index % len(self.paths)]) as img:
            scan = img.convert("RGB")  # here
        return self.transform(scan), index % 6  # here


@labelled(gpu="data-bound", cpu="data-bound", ranks=2, needs=("torchvision", "PIL"), helpers=(Herbarium,))
def herbarium_scans_on_both_ranks(run: hoptui.Run, device: str) -> None:
    """Both ranks decode scans of 2000 x 1500 pixels in their main process, and train a small network on them.

    A scan takes more than 20 ms, and a batch has 4: more than 80 ms. The network sees 64 pixels of each,
    and needs less than 20 ms.
    """
    from PIL import Image
    from torchvision import transforms

    tfm = transforms.Compose(
        [
            transforms.RandomResizedCrop(64, scale=(0.5, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
        ]
    )
    layers = (nn.Conv2d(3, 16, 7, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = _parallel(nn.Sequential(*layers, nn.Linear(16, 6)), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with tempfile.TemporaryDirectory() as root:
        rng = np.random.default_rng(dist.get_rank())
        for n in range(4):
            coarse = Image.fromarray(rng.integers(0, 255, (150, 200, 3), dtype=np.uint8))
            coarse.resize((2000, 1500)).save(Path(root, f"{n}.jpg"), quality=92)
        dataset = Herbarium(root, tfm)
        sampler: DistributedSampler[Any] = DistributedSampler(dataset, shuffle=True)
        loader = DataLoader(dataset, batch_size=4, sampler=sampler)
        epoch = 0
        while not run.stopping:
            sampler.set_epoch(epoch)
            epoch += 1
            for images, target in loader:
                loss = F.cross_entropy(model(images.to(device)), target.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss.item(), samples=4)
                if run.stopping:
                    break


def program_text(seed: int) -> str:
    """Return a program of 60 functions, as a model of code would write it."""
    rng = random.Random(seed)
    lines = []
    for n in range(60):
        lines.append(f"def f{n}(a, b={rng.randrange(9)}):")
        lines += [
            f"    c{k} = (a + {rng.randrange(99)}) * b - f{k}(a, b) if a > {k} else b" for k in range(4)
        ]
        lines.append("    return [c0, c1, c2, c3]")
    return "\n".join(lines)


def syntax_reward(text: str) -> float:
    """Return a reward for programs that parse, with few names and little nesting."""
    tree = ast.parse(text)  # here
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}  # here
    return 1.0 / (1 + len(names))


@labelled(gpu="host-bound", cpu="host-bound", ranks=2, helpers=(syntax_reward,))
def rewards_of_programs_on_both_ranks(run: hoptui.Run, device: str) -> None:
    """Both ranks score the programs of their own group by parsing them, between the sample and the update.

    A program of 360 lines is parsed and walked in more than 10 ms, and a group has 6: more than 60 ms on
    each rank. The update of a small policy needs less than 15 ms.
    """
    policy = _parallel(nn.Sequential(nn.Embedding(128, 64), nn.Linear(64, 128)), device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    completions = [program_text(n) for n in range(6)]
    while not run.stopping:
        tokens = torch.randint(0, 128, (6, 32), device=device)
        rewards = torch.tensor([syntax_reward(text) for text in completions], device=device)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        logp = F.log_softmax(policy(tokens), dim=-1).gather(-1, tokens[..., None])[..., 0]
        loss = -(logp.mean(1) * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), reward=rewards.mean().item(), samples=6)


class EquilibriumLayer(nn.Module):
    """Iterates one layer towards its fixed point, and differentiates through all iterations."""

    def __init__(self, width: int, iterations: int) -> None:
        super().__init__()
        self.lin, self.inject = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.iterations = nn.LayerNorm(width), iterations

    def forward(self, x: Tensor) -> Tensor:
        z, u = torch.zeros_like(x), self.inject(x)
        for _ in range(self.iterations):
            z = self.norm(0.5 * z + 0.5 * torch.tanh(self.lin(z) + u))
        return z


@labelled(gpu="launch-bound", cpu="healthy", ranks=2)
def equilibrium_layer_on_both_ranks(run: hoptui.Run, device: str) -> None:
    """An equilibrium model under DistributedDataParallel, unrolled many times, with as much for each rank.

    On GPUs: 500 iterations of 6 kernels over 32 x 32 numbers, and twice as many in the backward pass:
    9000 launches of some microseconds. The gradients are 10 kB. On the CPU: 60 iterations with 256 x 256
    numbers, where the products are the work: more than 60 x 3 x 33 MFLOP, more than 100 ms, with 1 MB of
    gradients.
    """
    cpu = device == "cpu"
    width, rows = (256, 256) if cpu else (32, 32)
    deq = _parallel(EquilibriumLayer(width, 60 if cpu else 500), device)
    optimizer = torch.optim.SGD(deq.parameters(), lr=1e-2)
    while not run.stopping:
        x = torch.randn(rows, width, device=device)
        loss = (deq(x) - x.roll(1, 0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=rows)


@labelled(gpu="healthy compute-bound power-limited", cpu="healthy", ranks=2, needs=("transformers",))
def llama_in_bf16_on_both_ranks(run: hoptui.Run, device: str) -> None:
    """A Llama is pretrained under DistributedDataParallel, with as many tokens for each rank.

    On GPUs: 8 layers of width 4096 and 11 008, 1.6 billion weights in bf16, and 16 x 1024 tokens: 157
    TFLOP, more than 200 ms. The gradients of 3.2 GB are sent during the backward pass, in less than 15 ms
    by NVLink. On the CPU: 4 layers of width 192 with 4 x 128 tokens, more than 100 ms, and 8 MB of
    gradients.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    cpu = device == "cpu"
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=192 if cpu else 4096,
        intermediate_size=512 if cpu else 11_008,
        num_hidden_layers=4 if cpu else 8,
        num_attention_heads=4 if cpu else 32,
        num_key_value_heads=4 if cpu else 32,
        max_position_embeddings=1024,
        use_cache=False,
    )
    with torch.device(device):
        llama = LlamaForCausalLM(config)
    if not cpu:
        llama = llama.to(torch.bfloat16)
    model = _parallel(llama, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch_size, block = (4, 128) if cpu else (16, 1024)
    while not run.stopping:
        ids = torch.randint(0, 1024, (batch_size, block), device=device)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.log(loss=loss.item(), tokens=batch_size * block)


@labelled(gpu="save-bound", cpu="save-bound", ranks=2)
def each_rank_saves_its_shard(run: hoptui.Run, device: str) -> None:
    """A large table is split between the ranks. Each saves its shard after each step, and waits.

    A shard has 40 million numbers: 160 MB are written in more than 100 ms by each rank. The step goes
    over 64 rows of the shard, and a shared head of 32 numbers: less than 15 ms.
    """
    rank, rows = dist.get_rank(), 1_250_000
    shard = nn.Embedding(rows, 32, sparse=True).to(device)
    head = _parallel(nn.Linear(32, 1), device)
    optimizer = torch.optim.SGD([*shard.parameters(), *head.parameters()], lr=0.05)
    with tempfile.TemporaryDirectory() as ckpt_dir:
        step = 0
        while not run.stopping:
            ids = torch.randint(0, rows, (64,), device=device)
            loss = F.mse_loss(head(shard(ids))[:, 0], torch.rand(64, device=device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            value = loss.item()
            content = {"shard": shard.state_dict(), "head": head.module.state_dict(), "step": step}
            torch.save(content, Path(ckpt_dir, f"shard_{rank}.pt"))  # here
            dist.barrier()
            run.log(loss=value, samples=64)
