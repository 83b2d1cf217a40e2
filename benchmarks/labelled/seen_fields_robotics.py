"""Trainings for robots: legs, a catheter, plans of motions, maps, and recordings of teleoperation."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import asyncio
import importlib
import io
import math
import random
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


def contact_impulses(delassus: Any, velocity: Any, sweeps: int) -> Any:
    """Solve the complementarity of contacts by projected Gauss-Seidel."""
    impulse = np.zeros(len(velocity))
    for _ in range(sweeps):
        for i in range(len(velocity)):
            residual = velocity[i] + delassus[i] @ impulse  # here
            impulse[i] = max(0.0, impulse[i] - residual / delassus[i, i])  # here
    return impulse


def _rubble_walker() -> Any:
    import gymnasium
    from gymnasium import spaces

    class RubbleWalker(gymnasium.Env):  # type: ignore[misc]
        """Legs with many contacts on loose stones."""

        contacts = 24

        def __init__(self) -> None:
            self.observation_space = spaces.Box(-np.inf, np.inf, (self.contacts,), np.float32)
            self.action_space = spaces.Box(-1.0, 1.0, (8,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            jacobian = self.np_random.standard_normal((self.contacts, 12))
            self.delassus = jacobian @ jacobian.T + 2.0 * np.eye(self.contacts)
            self.motors = self.np_random.standard_normal((8, self.contacts)) / 4
            self.v, self.t = np.zeros(self.contacts), 0
            return self.v.astype(np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            for _ in range(2):
                free = 0.9 * self.v + action @ self.motors - 0.1
                self.v = free + self.delassus @ contact_impulses(self.delassus, free, 36)  # here
            self.v = np.clip(self.v, -5.0, 5.0)
            self.t += 1
            return self.v.astype(np.float32), float(self.v.mean()), False, self.t >= 100, {}

    return RubbleWalker


@labelled(gpu="env-bound", cpu="env-bound", needs=("gymnasium",), helpers=(contact_impulses, _rubble_walker))
def walkers_on_rubble(run: hoptui.Run, device: str) -> None:
    """An actor-critic moves four walkers of gymnasium's `AsyncVectorEnv`, each in its own process.

    A step solves the contacts twice: 2 x 36 x 24 updates of more than 1.8 microseconds, more than 3 ms. The
    24 steps of a rollout take more than 75 ms when each process has a core, and twice that on two cores. A
    choice of actions needs less than 0.8 ms, or 19 ms a rollout, and the update less than 10 ms.
    """
    from gymnasium.vector import AsyncVectorEnv

    envs = AsyncVectorEnv([_rubble_walker()] * 4)
    actor, critic = nn.Linear(24, 8).to(device), nn.Linear(24, 1).to(device)
    log_std = nn.Parameter(torch.zeros(8, device=device))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters(), log_std], lr=3e-4)
    obs, _ = envs.reset(seed=0)
    while not run.stopping:
        seen, acted, rewards = [], [], []
        for _ in range(24):
            with torch.no_grad():
                x = torch.as_tensor(obs, device=device)
                action = actor(x) + torch.randn(4, 8, device=device) * log_std.exp()
            obs, reward, _, _, _ = envs.step(action.clamp(-1, 1).cpu().numpy())  # here
            seen.append(x)
            acted.append(action)
            rewards.append(torch.as_tensor(reward, dtype=torch.float32))
        x, actions = torch.stack(seen), torch.stack(acted)
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0).to(device) / 24
        value = critic(x)[..., 0]
        log_prob = torch.distributions.Normal(actor(x), log_std.exp()).log_prob(actions).sum(-1)
        loss = F.mse_loss(value, returns) - (log_prob * (returns - value.detach())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), env_steps=96)
    envs.close()


class Catheter:
    """A slender tube of segments that is bent by tendons, and finds its equilibrium under its load."""

    def __init__(self, segments: int = 28, stiffness: float = 3.0) -> None:
        self.segments, self.stiffness = segments, stiffness
        self.angles = np.zeros(segments)

    def imbalance(self, angles: Any, pull: Any) -> Any:
        """Return the moment that is left over at each joint."""
        heading = np.cumsum(angles)  # here
        x, y = np.cumsum(np.cos(heading)), np.cumsum(np.sin(heading))  # here
        load = 0.002 * (x[-1] - x) + 0.001 * np.tanh(y)  # here
        tendon = pull[0] + pull[1] * np.linspace(-1.0, 1.0, self.segments)  # here
        return self.stiffness * angles + 0.3 * np.sin(3 * angles) - load - tendon  # here

    def settle(self, pull: Any) -> Any:
        """Return where the tip is after the tendons are pulled."""
        from scipy.optimize import least_squares

        found = least_squares(self.imbalance, np.zeros(self.segments), args=(pull,), xtol=1e-12)  # here
        self.angles = found.x
        heading = np.cumsum(self.angles)
        return np.array([np.cos(heading).sum(), np.sin(heading).sum()]) / self.segments


@labelled(
    gpu="env-bound",
    cpu="env-bound",
    needs=("stable_baselines3", "gymnasium", "scipy"),
    adapter=True,
    helpers=(Catheter,),
)
def ddpg_steers_a_catheter(run: AdapterRun, device: str) -> None:
    """DDPG pulls the tendons of a catheter, whose equilibrium scipy finds for each action.

    A search has more than five steps with 28 differences each, so more than 140 imbalances of some ten calls
    of NumPy: more than 4 ms. An iteration of 32 steps takes more than 128 ms. Two updates with 32 rows and
    layers of 64 units need less than 20 ms, and 32 choices less than 20 ms.
    """
    import gymnasium
    from gymnasium import spaces
    from stable_baselines3 import DDPG

    from hoptui.integrations.sb3 import HoptuiCallback

    class CatheterEnv(gymnasium.Env):  # type: ignore[misc]
        def __init__(self) -> None:
            self.observation_space = spaces.Box(-2.0, 2.0, (4,), np.float32)
            self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

        def _obs(self) -> Any:
            return np.concatenate([self.tip, self.vessel]).astype(np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.body, self.t = Catheter(), 0
            self.tip, self.vessel = np.array([1.0, 0.0]), self.np_random.uniform(-0.5, 0.8, 2)
            return self._obs(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.tip = self.body.settle(0.6 * np.asarray(action, np.float64))  # here
            self.t += 1
            distance = float(np.linalg.norm(self.tip - self.vessel))
            return self._obs(), -distance, distance < 0.02, self.t >= 40, {}

    model = DDPG(
        "MlpPolicy",
        CatheterEnv(),
        learning_starts=16,
        train_freq=16,
        gradient_steps=1,
        batch_size=32,
        buffer_size=5000,
        policy_kwargs={"net_arch": [64, 64]},
        device=device,
    )
    model.learn(run.iterations * 32, callback=HoptuiCallback(run.name, steps_per_iteration=32))


class MotionDenoiser(nn.Module):
    """Removes the noise of a plan of motions, given what is seen and how far the noising went."""

    def __init__(self, joints: int, seen: int, width: int) -> None:
        super().__init__()
        self.enter = nn.Conv1d(joints, width, 3, padding=1)
        self.film = nn.ModuleList(nn.Linear(seen + 8, 2 * width) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(2))
        self.leave = nn.Conv1d(width, joints, 1)

    def forward(self, plan: Tensor, seen: Tensor, k: int) -> Tensor:
        waves = [f(k / 10.0**i) for i in range(4) for f in (math.sin, math.cos)]
        given = torch.cat([seen, plan.new_tensor(waves).expand(len(seen), -1)], -1)
        h = self.enter(plan)
        for film, conv in zip(self.film, self.convs, strict=True):
            scale, shift = film(given)[..., None].chunk(2, 1)
            h = h + F.mish(F.group_norm(conv(h), 4) * (1 + scale) + shift)
        out: Tensor = self.leave(h)
        return out


@labelled(gpu="compiling", cpu="compiling", needs=("diffusers",))
def diffusion_policy_for_an_arm(run: hoptui.Run, device: str) -> None:
    """A diffusion policy with a compiled network that gets the step of the noising as a number of Python.

    There are 20 000 steps of the noising, and with `dynamic=False` each is a constant of the compiled code.
    So nearly each iteration traces two blocks forward and backward: more than 150 ms. The step itself has 8
    plans of 16 x 7 numbers and 32 channels: less than 15 ms.
    """
    import torch._dynamo
    from diffusers import DDPMScheduler

    torch._dynamo.config.recompile_limit = 100_000
    torch._dynamo.config.accumulated_recompile_limit = 100_000
    scheduler = DDPMScheduler(num_train_timesteps=20_000, beta_end=0.001)
    policy = MotionDenoiser(7, 12, 32).to(device)
    denoise = torch.compile(policy, dynamic=False, backend="aot_eager")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, weight_decay=1e-6)
    demos, views = torch.randn(512, 7, 16, device=device), torch.randn(512, 12, device=device)
    rng = random.Random(0)
    while not run.stopping:
        k = rng.randrange(20_000)
        at = torch.randint(0, 512, (8,), device=device)
        noise = torch.randn(8, 7, 16, device=device)
        noisy = scheduler.add_noise(demos[at], noise, torch.full((8,), k, device=device))
        loss = F.mse_loss(denoise(noisy, views[at], k), noise)  # here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=8)


@labelled(gpu="transfer-bound")
def keyframes_of_a_dense_map(run: hoptui.Run, device: str) -> None:
    """Poses and a decoder are adjusted over the feature volumes of keyframes that are kept in main memory.

    Five keyframes of 96 x 1024 x 768 numbers are 1.5 GB: more than 75 ms, as pageable memory gives less than
    20 GB/s. The volumes are not copied on the host. 2048 points of each are sampled, and go through a small
    decoder: less than 10 ms.
    """
    frames = [torch.ones(96, 768, 1024) for _ in range(6)]
    shifts = nn.Parameter(torch.zeros(6, 2, device=device))
    decoder = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 3)).to(device)
    groups: list[dict[str, Any]] = [{"params": decoder.parameters()}, {"params": [shifts], "lr": 1e-4}]
    optimizer = torch.optim.Adam(groups, lr=1e-3)
    rng = random.Random(0)
    while not run.stopping:
        loss = torch.zeros((), device=device)
        for n in rng.sample(range(len(frames)), 5):
            volume = frames[n].to(device)[None]  # here
            rays = torch.rand(1, 1, 2048, 2, device=device) * 1.8 - 0.9
            found = F.grid_sample(volume, rays + shifts[n], align_corners=True)[0, :, 0].T
            loss = loss + F.l1_loss(decoder(found), torch.rand(2048, 3, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=5)


class Teleoperation:
    """Recordings of an operator: pictures of two cameras as JPEG, and what the arm did."""

    def __init__(self, steps: int) -> None:
        image: Any = importlib.import_module("PIL.Image")
        rng = np.random.default_rng(0)
        y, x = np.mgrid[:768, :1024]
        self.blobs = []
        for _ in range(steps):
            base = 120 + 60 * np.sin(x / rng.uniform(20, 90)) + 40 * np.cos(y / rng.uniform(20, 90))
            picture = base[..., None] + rng.normal(0, 12, (768, 1024, 3))
            file = io.BytesIO()
            image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
            self.blobs.append(file.getvalue())
        self.actions = rng.standard_normal((steps, 7)).astype(np.float32)
        self.reader = ThreadPoolExecutor(1)

    def decode(self, chosen: list[int]) -> Tensor:
        """Return pictures as the policy sees them."""
        image: Any = importlib.import_module("PIL.Image")
        views = []
        for n in chosen:
            picture = image.open(io.BytesIO(self.blobs[n])).convert("RGB")  # here
            small = picture.resize((96, 96), image.Resampling.BILINEAR)  # here
            views.append(torch.from_numpy(np.array(small)).permute(2, 0, 1))
        return torch.stack(views).float() / 255

    async def batches(self, size: int) -> AsyncIterator[tuple[Tensor, Tensor]]:
        """Yield pictures and actions. The next batch is decoded while the last one is used."""
        loop, rng = asyncio.get_running_loop(), random.Random(0)
        chosen = rng.choices(range(len(self.blobs)), k=size)
        ahead = loop.run_in_executor(self.reader, self.decode, chosen)
        while True:
            views = await ahead  # here
            actions = torch.from_numpy(self.actions[chosen])
            chosen = rng.choices(range(len(self.blobs)), k=size)
            ahead = loop.run_in_executor(self.reader, self.decode, chosen)
            yield views, actions


@labelled(gpu="data-bound", cpu="data-bound", needs=("PIL",), helpers=(Teleoperation,))
def cloning_of_an_operator(run: hoptui.Run, device: str) -> None:
    """Behaviour cloning with asyncio: a thread decodes the pictures of the next batch.

    A JPEG of 1024 x 768 points is decoded and made small in more than 6 ms, and a batch has 24: more than 144
    ms. The policy has two convolutions with a stride of 4 on 24 x 3 x 96 x 96 values: less than 15 ms, which
    are hidden behind the thread.
    """
    recordings = Teleoperation(16)
    policy = nn.Sequential(
        nn.Conv2d(3, 16, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 16, 4, stride=4),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(7),
    ).to(device)
    policy(torch.zeros(1, 3, 96, 96, device=device))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)

    async def clone() -> None:
        async for views, actions in recordings.batches(24):  # here
            loss = F.mse_loss(policy(views.to(device)), actions.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=len(views))
            if run.stopping:
                break

    asyncio.run(clone())  # here
    recordings.reader.shutdown(wait=False, cancel_futures=True)
