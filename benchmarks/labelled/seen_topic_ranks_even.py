"""Trainings of two processes that have the same to do before they meet."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import os
import random
import tempfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"


def shared(model: nn.Module, device: str) -> nn.Module:
    """Return the model under DistributedDataParallel."""
    ids = None if device == "cpu" else [torch.cuda.current_device()]
    return DistributedDataParallel(model.to(device), device_ids=ids)


class TeacherOfSounds:
    """Keeps the targets of all clips. The first rank moves them, and the other ones get all of them."""

    def __init__(self, clips: int, width: int, device: str) -> None:
        self.targets = torch.zeros(clips, width, device=device)

    def follow(self, clips: Tensor, found: Tensor) -> None:
        """Move some targets, and make those of all ranks the same."""
        self.targets[clips] = torch.lerp(self.targets[clips], found, 0.05)
        dist.broadcast(self.targets, src=0)  # here


@labelled(gpu="communication-bound", cpu="communication-bound", ranks=2, helpers=(TeacherOfSounds,))
def sounds_with_shared_targets(run: hoptui.Run, device: str) -> None:
    """Sounds are learned without labels. The targets of all clips are broadcast after each step.

    On the CPU: 300 000 targets of 128 numbers are 154 MB over gloo: more than 60 ms. On GPUs: 48 million are
    24.6 GB through NCCL, at most 450 GB/s: more than 54 ms. The step of a perceptron with 64 clips needs less
    than 10 ms, and less than 5 ms on a GPU.
    """
    clips = 300_000 if device == "cpu" else 48_000_000
    teacher = TeacherOfSounds(clips, 128, device)
    model = shared(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 128)), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while not run.stopping:
        at = torch.randint(0, clips, (64,), device=device)
        heard = torch.sin(at[:, None] * torch.arange(1, 65, device=device) / 100)
        found = model(heard + 0.1 * torch.randn_like(heard))
        loss = F.mse_loss(found, teacher.targets[at]) + F.relu(1 - found.std(0)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        teacher.follow(at, found.detach())  # here
        run.log(loss=loss.item(), samples=64)


class CatalogueOfVectors:
    """The vectors of light curves. Each rank has found those of its part of the sky."""

    def __init__(self, rows: int, width: int, device: str) -> None:
        world = dist.get_world_size()
        self.mine = F.normalize(torch.randn(rows, width, device=device))
        self.all = torch.empty(world * rows, width, device=device)

    def gather(self) -> Tensor:
        """Return the vectors of the whole sky."""
        dist.all_gather_into_tensor(self.all, self.mine)  # here
        return self.all


@labelled(gpu="communication-bound", cpu="communication-bound", ranks=2, helpers=(CatalogueOfVectors,))
def light_curves_of_the_whole_sky(run: hoptui.Run, device: str) -> None:
    """Light curves are told from others, which are drawn from the catalogues of all ranks.

    The catalogues are gathered in each step, though few of their rows change. On the CPU: 102 MB from each
    rank over gloo: more than 60 ms. On GPUs: 20.5 GB from each through NCCL, at most 450 GB/s: more than 45
    ms. A convolution over 32 curves and 512 others need less than 12 ms, and less than 6 ms on a GPU.
    """
    rows = 200_000 if device == "cpu" else 40_000_000
    catalogue = CatalogueOfVectors(rows, 128, device)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=4), nn.ReLU(), nn.AdaptiveAvgPool1d(8), nn.Flatten(), nn.Linear(128, 128)
    )
    encoder = shared(net, device)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03, momentum=0.9)
    phase = torch.arange(256, device=device) / 20
    while not run.stopping:
        own = torch.randint(0, rows, (32,), device=device)
        curves = torch.sin(phase * (1 + own[:, None] % 7)) + 0.1 * torch.randn(32, 256, device=device)
        query = F.normalize(encoder(curves[:, None]))
        others = catalogue.gather()[torch.randint(0, 2 * rows, (512,), device=device)]  # here
        positive = (query * catalogue.mine[own]).sum(-1, keepdim=True)
        logits = torch.cat([positive, query @ others.T], 1) / 0.1
        loss = F.cross_entropy(logits, torch.zeros(32, dtype=torch.long, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        catalogue.mine[own] = query.detach()
        run.log(loss=loss.item(), samples=32)


class DriftOfBuoys(Dataset[tuple[Tensor, Tensor]]):
    """The logs of buoys: a table in a zip file for each of them."""

    def __init__(self, path: Path, buoys: int, hours: int) -> None:
        self.path, self.buoys = path, buoys
        rng = random.Random(0)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for n in range(buoys):
                rows = [[f"{rng.gauss(0, 1):.5f}" for _ in range(8)] for _ in range(hours)]
                archive.writestr(f"{n}.csv", "\n".join(map(",".join, rows)))

    def __len__(self) -> int:
        return 100 * self.buoys

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        with zipfile.ZipFile(self.path) as archive:
            text = archive.read(f"{index % self.buoys}.csv").decode()  # here
        rows = [[float(value) for value in row] for row in csv.reader(io.StringIO(text))]  # here
        table = torch.tensor(rows)  # here
        return table[:-1].flatten()[:256], table[-1, :2]


@labelled(gpu="data-bound", cpu="data-bound", ranks=2, helpers=(DriftOfBuoys,))
def buoys_from_zipped_tables(run: hoptui.Run, device: str) -> None:
    """Both ranks read tables of buoys from a zip file, and learn where the buoys will be.

    A table has 720 rows of 8 numbers: 5760 numbers, which are unpacked, split, read and made a tensor in more
    than 0.3 microseconds each: more than 1.7 ms. A batch has 48 tables: more than 80 ms on each rank. The
    step of a perceptron with 48 x 256 numbers needs less than 12 ms, and less than 5 ms on a GPU.
    """
    model = shared(nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 2)), device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    with tempfile.TemporaryDirectory() as folder:
        buoys = DriftOfBuoys(Path(folder, "buoys.zip"), buoys=64, hours=720)
        loader = DataLoader(buoys, batch_size=48, shuffle=True)
        for past, place in loader:  # here
            loss = F.huber_loss(model(past.to(device)), place.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(past))
            if run.stopping:
                break


def entropy_of(values: Tensor, digits: int = 3) -> float:
    """Return the entropy of numbers that are rounded to some digits."""
    counts = Counter(f"{value:.{digits}e}" for value in values.flatten().tolist())  # here
    total = sum(counts.values())
    shares = np.array([count / total for count in counts.values()])  # here
    return float(-(shares * np.log2(shares)).sum())  # here


@labelled(
    gpu="host-bound",
    cpu="host-bound",
    ranks=2,
    needs=(PACKAGE,),
    adapter=True,
    helpers=(entropy_of,),
)
def lit_reactions_with_entropies(run: AdapterRun, device: str) -> None:
    """Yields of reactions under Lightning. A hook measures the entropy of the gradients before each step.

    It does so on both ranks, for 160 000 numbers of the two largest layers. Each is written as text and
    counted in more than 0.5 microseconds: more than 80 ms. The step of a perceptron with 64 reactions needs
    less than 25 ms under Lightning with the exchange of 0.7 MB.
    """
    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)

    class Yields(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(400, 200), nn.ReLU(), nn.Linear(200, 400), nn.ReLU(), nn.Linear(400, 1)
            )

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            reaction, share = batch
            loss = F.mse_loss(self.net(reaction)[:, 0], share)
            self.log("loss", loss)
            return loss

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            grads = [p.grad for p in self.net.parameters() if p.grad is not None and p.ndim == 2]
            bits = [entropy_of(grad) for grad in grads]  # here
            self.log("bits", sum(bits) / len(bits))

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    world = int(os.environ.get("WORLD_SIZE", "1"))
    reactions = TensorDataset(torch.randn(4096, 400), torch.rand(4096))
    trainer = pl.Trainer(
        accelerator="cpu" if device == "cpu" else "gpu",
        devices=world,
        strategy="ddp" if world > 1 else "auto",
        max_steps=run.iterations,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[HoptuiCallback(run.name)],
    )
    trainer.fit(Yields(), DataLoader(reactions, batch_size=64, shuffle=True))


def _telescope(targets: int) -> Any:
    """Return a kind of environment in which a telescope is pointed at targets during a night."""
    gym: Any = importlib.import_module("gymnasium")

    class Telescope(gym.Env):  # type: ignore[misc]
        observation_space = gym.spaces.Box(-1, 1, (6,), np.float32)
        action_space = gym.spaces.Discrete(4)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.sky = self.np_random.uniform(-1, 1, (targets, 3)).tolist()
            self.hour, self.at = 0.0, (0.0, 0.0)
            return np.zeros(6, np.float32), {}

        def best(self, way: int) -> tuple[float, float, float]:
            """Return the target that is worth most, and how much it is worth."""
            most, found = -1e9, (0.0, 0.0)
            for east, north, light in self.sky:  # here
                turned = east - self.hour  # here
                height = 1 - 0.5 * (turned * turned + north * north)  # here
                slew = abs(turned - self.at[0]) + abs(north - self.at[1])  # here
                worth = height * (2 + light) - (0.2 + 0.3 * way) * slew  # here
                if worth > most:  # here
                    most, found = worth, (turned, north)  # here
            return most, *found

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            worth, *place = self.best(int(action))  # here
            self.at = (place[0], place[1])
            self.hour = (self.hour + 0.01) % 1.0
            seen = np.array([*self.at, self.hour, worth / 4, action / 4, 1.0], np.float32).clip(-1, 1)
            return seen, worth, False, self.hour < 0.01, {}

    return Telescope


@labelled(gpu="env-bound", cpu="env-bound", ranks=2, needs=("gymnasium",), helpers=(_telescope,))
def telescopes_with_one_policy(run: hoptui.Run, device: str) -> None:
    """An actor-critic under DistributedDataParallel. Both ranks have four telescopes of their own.

    A telescope looks at 6000 targets before it turns, each more than 0.2 microseconds in Python: more than
    1.2 ms. A rollout of 16 steps of four telescopes takes more than 76 ms on each rank. The policy is asked
    16 times, less than 0.7 ms each, and an update with 64 states needs less than 10 ms.
    """
    gym: Any = importlib.import_module("gymnasium")
    rank, kind = dist.get_rank(), _telescope(6000)
    envs = gym.vector.SyncVectorEnv([kind] * 4)
    net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 5))
    agent = shared(net, device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=7e-4)
    seen = torch.as_tensor(envs.reset(seed=rank)[0], device=device)
    while not run.stopping:
        states, actions, rewards = [], [], []
        for _ in range(16):
            with torch.no_grad():
                action = torch.multinomial(net(seen)[:, :4].softmax(-1), 1)[:, 0]
            states.append(seen)
            actions.append(action)
            after, reward, _, _, _ = envs.step(action.cpu().numpy())  # here
            rewards.append(torch.as_tensor(reward, dtype=torch.float32))
            seen = torch.as_tensor(after, device=device)
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0).flatten().to(device) / 16
        out = agent(torch.cat(states))
        log_p, value = out[:, :4].log_softmax(-1), out[:, 4]
        advantage = returns - value.detach()
        chosen = log_p.gather(1, torch.cat(actions)[:, None])[:, 0]
        loss = F.mse_loss(value, returns) - (chosen * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), env_steps=64)


@labelled(gpu="healthy compute-bound power-limited", cpu="healthy", ranks=2, needs=("timm",))
def wide_vit_for_galaxies(run: hoptui.Run, device: str) -> None:
    """Galaxies are classified by a vision transformer of timm under DistributedDataParallel, in bf16.

    On GPUs: 8 blocks of width 2048 have 0.4 billion weights. With 128 pictures of 196 patches they need 6 x
    0.4 billion x 25 000 = 60 TFLOP: more than 60 ms at 989 TFLOPS, and some 90 ms at what is reached.
    Activations are read or written for less than 110 GB: 28 ms. The gradients of 1.6 GB are exchanged during
    the backward pass: less than 12 ms. On the CPU: 2 blocks of width 192 and 32 pictures of 16 patches. The
    gradients of 3.7 MB are exchanged in less than 10 ms.
    """
    from timm.models.vision_transformer import VisionTransformer

    cpu = device == "cpu"
    size, width, depth, batch = (64, 192, 2, 32) if cpu else (224, 2048, 8, 128)
    vit = VisionTransformer(
        img_size=size, patch_size=16, embed_dim=width, depth=depth, num_heads=width // 64, num_classes=10
    )
    model = shared(vit, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    galaxies = torch.randn(2 * batch, 3, size, size, device=device)
    kinds = torch.randint(0, 10, (2 * batch,), device=device)
    while not run.stopping:
        at = torch.randperm(2 * batch, device=device)[:batch]
        with torch.autocast(device, torch.bfloat16, enabled=not cpu):
            loss = F.cross_entropy(model(galaxies[at]), kinds[at])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=batch)
