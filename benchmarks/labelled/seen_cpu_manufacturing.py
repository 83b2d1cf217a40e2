"""Trainings for manufacturing on the CPU: welds, spindles, bins, castings, and the wear of tools."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import functools
import importlib
import importlib.util
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

PACKAGE = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"


def regions(mask: list[list[bool]]) -> list[list[tuple[int, int]]]:
    """Return the connected regions of a mask."""
    height, width = len(mask), len(mask[0])
    seen = [[False] * width for _ in range(height)]
    found = []
    for y in range(height):
        for x in range(width):  # here
            if seen[y][x] or not mask[y][x]:  # here
                continue  # here
            region, stack = [], [(y, x)]
            seen[y][x] = True
            while stack:  # here
                at = stack.pop()  # here
                region.append(at)  # here
                for j, i in (
                    (at[0] - 1, at[1]),
                    (at[0] + 1, at[1]),
                    (at[0], at[1] - 1),
                    (at[0], at[1] + 1),
                ):  # here
                    if 0 <= j < height and 0 <= i < width and mask[j][i] and not seen[j][i]:  # here
                        seen[j][i] = True  # here
                        stack.append((j, i))  # here
            found.append(region)
    return found


def overlap_per_region(scores: Tensor, truth: Tensor, steps: int = 4) -> float:
    """Return how much of each region is found, on average over the regions and some thresholds."""
    total, count = 0.0, 0
    for score, mask in zip(scores, truth, strict=True):
        for threshold in torch.linspace(0.2, 0.8, steps).tolist():
            guess = (score > threshold).tolist()
            for region in regions(mask.tolist()):  # here
                total += sum(guess[y][x] for y, x in region) / len(region)  # here
                count += 1
    return total / max(count, 1)


@labelled(cpu="host-bound", needs=(PACKAGE,), adapter=True, helpers=(regions, overlap_per_region))
def weld_inspection(run: AdapterRun, device: str) -> None:
    """Defects of welds are segmented under Lightning, and each step is evaluated on the regions of defects.

    For each of 8 masks, its regions are filled in Python four times. Measured with a timer, this takes
    96 % of an iteration of 0.46 s, and the network 4 %.
    """
    from hoptui.integrations.lightning import HoptuiCallback

    pl: Any = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)

    class WeldNet(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(8, 8, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(8, 1, 1),
            )

        def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            pictures, masks = batch
            logits = self.net(pictures)[:, 0]
            loss = F.binary_cross_entropy_with_logits(logits, masks.float())
            return {"loss": loss, "scores": logits.detach().sigmoid(), "masks": masks}

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.log("pro", overlap_per_region(outputs["scores"].cpu(), outputs["masks"].cpu()))  # here

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    pl.seed_everything(2, verbose=False)
    pictures = torch.randn(128, 1, 64, 64)
    smooth = F.avg_pool2d(pictures, 9, stride=1, padding=4)[:, 0]
    welds = TensorDataset(pictures, smooth > 0.05)
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
    trainer.fit(WeldNet(), DataLoader(welds, batch_size=8, shuffle=True))


class OrderTracker(nn.Module):
    """Follows the orders of a spindle's vibration, which has another length at each speed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inward = nn.Conv1d(3, width, 9, padding=4)
        self.middle = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(2))
        self.out = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inward(x)
        for conv, norm in zip(self.middle, self.norms, strict=True):
            h = h + F.gelu(norm(conv(h)))
        orders: Tensor = self.out(h.mean(-1))
        return orders


@labelled(cpu="compiling")
def spindle_vibration(run: hoptui.Run, device: str) -> None:
    """A compiled network reads one turn of a spindle after another. A turn has 200 to 1600 samples.

    With `dynamic=False` each length is a new shape. Measured with a timer, the compiled call and its
    backward pass take 99 % of an iteration of 0.81 s. Without a compiler, the whole step takes 0.014 s.
    """
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 100_000
    torch._dynamo.config.accumulated_recompile_limit = 100_000
    torch.manual_seed(8)
    net = OrderTracker(16).to(device)
    tracker = torch.compile(net, dynamic=False, backend="aot_eager")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    turns = random.Random(5).sample(range(200, 1600), 1400)
    number = 0
    while not run.stopping:
        samples = turns[number % len(turns)]
        number += 1
        turn = torch.randn(4, 3, samples, device=device)
        loss = F.mse_loss(tracker(turn), turn.std(-1).mean(1, keepdim=True).expand(-1, 4))  # here
        optimizer.zero_grad()
        loss.backward()  # here
        optimizer.step()
        run.log(loss=loss.item(), samples=4)


def simulate(parts: Any, velocity: Any, push: Any, substeps: int = 30) -> tuple[Any, Any]:
    """Let the parts in a bin fall and push each other away."""
    for _ in range(substeps):
        apart = parts[:, None] - parts[None]  # here
        distance = np.sqrt((apart**2).sum(-1)) + 1e-6  # here
        press = np.maximum(0.12 - distance, 0.0) / distance  # here
        force = 80 * (press[..., None] * apart).sum(1) - 4 * velocity + push  # here
        force[:, 2] -= 9.81
        velocity = velocity + 0.002 * force
        parts = np.clip(parts + 0.002 * velocity, -0.5, 0.5)
    return parts, velocity


def _bin_env(seed: int) -> Any:
    """Return an environment in which parts are picked from a bin."""
    import gymnasium

    class Bin(gymnasium.Env):  # type: ignore[misc]
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (9,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.parts = self.np_random.uniform(-0.5, 0.5, (64, 3))
            self.velocity, self.time = np.zeros((64, 3)), 0
            return self.seen(), {}

        def seen(self) -> Any:
            spread = [self.parts.mean(0), self.parts.std(0), self.parts[self.parts[:, 2].argmax()]]
            return np.concatenate(spread).astype(np.float32)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            near = np.exp(-20 * ((self.parts[:, :2] - 0.5 * action) ** 2).sum(-1))
            push = 5 * near[:, None] * np.array([0.0, 0.0, 1.0])
            self.parts, self.velocity = simulate(self.parts, self.velocity, push)  # here
            self.time += 1
            return self.seen(), float((near * self.parts[:, 2]).sum()), False, self.time >= 60, {}

    return Bin()


@labelled(cpu="env-bound", needs=("gymnasium",), helpers=(simulate, _bin_env))
def bin_picking(run: hoptui.Run, device: str) -> None:
    """PPO in one function learns to pick parts from bins, which are simulated with NumPy.

    A step has 30 sub-steps with all pairs of 64 parts, and a rollout 8 steps of 4 bins. Measured with a
    timer, they take 91 % of an iteration of 0.46 s, and the networks 5 %.
    """
    import gymnasium

    torch.manual_seed(9)
    envs = gymnasium.vector.SyncVectorEnv([functools.partial(_bin_env, n) for n in range(4)])
    actor = nn.Sequential(nn.Linear(9, 64), nn.Tanh(), nn.Linear(64, 2)).to(device)
    critic = nn.Sequential(nn.Linear(9, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    log_std = nn.Parameter(torch.zeros(2, device=device))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters(), log_std], lr=3e-4, eps=1e-5)
    next_obs = torch.as_tensor(envs.reset(seed=1)[0], device=device)
    while not run.stopping:
        obs, actions, logprobs, rewards = [], [], [], []
        for _ in range(8):
            with torch.no_grad():
                dist = torch.distributions.Normal(actor(next_obs), log_std.exp())
                action = dist.sample()
            obs.append(next_obs)
            actions.append(action)
            logprobs.append(dist.log_prob(action).sum(-1))
            seen, reward, _, _, _ = envs.step(action.clamp(-1, 1).cpu().numpy())  # here
            rewards.append(torch.as_tensor(reward, dtype=torch.float32, device=device))
            next_obs = torch.as_tensor(seen, device=device)
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0).flatten()
        b_obs, b_actions, b_logprobs = torch.cat(obs), torch.cat(actions), torch.cat(logprobs)
        for _ in range(4):
            dist = torch.distributions.Normal(actor(b_obs), log_std.exp())
            ratio = (dist.log_prob(b_actions).sum(-1) - b_logprobs).exp()
            value = critic(b_obs)[:, 0]
            advantage = (returns - value.detach()) / (returns.std() + 1e-6)
            policy_loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = policy_loss + 0.5 * F.mse_loss(value, returns)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        run.log(loss=loss.item(), reward=returns.mean().item(), env_steps=32)


@labelled(cpu="healthy", needs=("diffusers",))
def castings_by_diffusion(run: hoptui.Run, device: str) -> None:
    """A U-Net of diffusers learns to draw x-ray pictures of castings, which are tensors in memory.

    Measured with a timer, 99 % of an iteration of 0.68 s is in the model, its backward pass and its
    optimizer.
    """
    from diffusers import DDPMScheduler, UNet2DModel

    torch.manual_seed(10)
    unet = UNet2DModel(
        sample_size=32,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(32, 64),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).to(device)
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000, beta_schedule="squaredcos_cap_v2")
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    castings = torch.rand(256, 1, 32, 32, device=device) * 2 - 1
    while not run.stopping:
        clean = castings[torch.randint(0, 256, (8,))]
        noise = torch.randn_like(clean)
        timesteps = torch.randint(0, 1000, (8,), device=device)
        noisy = noise_scheduler.add_noise(clean, noise, timesteps)
        loss = F.mse_loss(unet(noisy, timesteps).sample, noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss.detach(), samples=len(clean))


class CuttingRuns(IterableDataset[tuple[Tensor, Tensor]]):
    """The records of a milling machine: a table of forces for each cut."""

    def __init__(self, folder: Path, cuts: int, rows: int) -> None:
        self.folder, self.cuts = folder, cuts
        rng = np.random.default_rng(6)
        header = "time,fx,fy,fz,vibration,power"
        for n in range(cuts):
            table = rng.normal(size=(rows, 6))
            np.savetxt(
                folder / f"cut{n:03}.csv", table, fmt="%.5f", delimiter=",", header=header, comments=""
            )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        pd: Any = importlib.import_module("pandas")

        rng = random.Random(7)
        while True:
            n = rng.randrange(self.cuts)
            table = pd.read_csv(self.folder / f"cut{n:03}.csv")  # here
            window = table.rolling(64).agg(["mean", "std", "max"]).dropna()  # here
            features = window.iloc[:: max(1, len(window) // 32)][:32]
            yield torch.tensor(features.to_numpy(np.float32)), torch.tensor(n / self.cuts)


@labelled(cpu="data-bound", needs=("accelerate", "pandas"), adapter=True, helpers=(CuttingRuns,))
def tool_wear(run: AdapterRun, device: str) -> None:
    """With accelerate: the wear of a mill is predicted from tables of its forces, which pandas reads.

    A batch has eight tables of 1500 rows. Measured with a timer, they take 97 % of an iteration of 0.17
    s, and the perceptron 2 %.
    """
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    from hoptui.integrations.accelerate import HoptuiTracker

    set_seed(3)
    accelerator = Accelerator(cpu=device == "cpu", log_with=HoptuiTracker())
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(CuttingRuns(Path(folder), 20, 1500), batch_size=8)
        model: Any = nn.Sequential(nn.Flatten(), nn.Linear(32 * 18, 64), nn.ELU(), nn.Linear(64, 1))
        optimizer: Any = torch.optim.NAdam(model.parameters(), lr=1e-3)
        model, optimizer, batches = accelerator.prepare(model, optimizer, loader)
        accelerator.init_trackers(run.name)
        tracked = accelerator.get_tracker("hoptui").tracker
        for step, (forces, wear) in enumerate(batches):  # here
            with accelerator.accumulate(model):
                loss = F.mse_loss(model(forces)[:, 0], wear)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            accelerator.log({"loss": loss.item()}, step=step)
            if step + 1 >= run.iterations or tracked.stopping:
                break
    accelerator.end_training()
