"""Trainings of two processes that have as much to do as each other in each step."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


class Neighbour:
    """Keeps what the neighbour would need to go on, should it be lost, and sends it the same."""

    def __init__(self, state: Tensor) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        self.state, self.copy = state, torch.empty_like(state)
        self.right, self.left = (rank + 1) % world, (rank - 1) % world

    def snapshot(self) -> None:
        """Send the state to the right, and keep what comes from the left."""
        pair = [
            dist.P2POp(dist.isend, self.state, self.right),
            dist.P2POp(dist.irecv, self.copy, self.left),
        ]
        for work in dist.batch_isend_irecv(pair):  # here
            work.wait()  # here


@labelled(gpu="communication-bound", cpu="communication-bound", ranks=2, helpers=(Neighbour,))
def playlists_that_survive_a_node(run: hoptui.Run, device: str) -> None:
    """Each rank has the vectors of half of the songs, and gives a copy to its neighbour after each step.

    On the CPU: 123 MB go each way over gloo: more than 50 ms. On GPUs: 8.4 GB go each way through NCCL, at
    most 450 GB/s: more than 18 ms, and more than 130 ms over PCIe. The step touches 32 lists of 8 songs,
    with sparse gradients and a shared scorer of 128 numbers: less than 10 ms, and less than 4 ms on a GPU.
    """
    songs, width = (240_000 if device == "cpu" else 16_400_000), 128
    with torch.device(device):
        vectors = nn.Embedding(songs, width, sparse=True)
    scorer = DistributedDataParallel(
        nn.Linear(width, 1).to(device), device_ids=None if device == "cpu" else [torch.cuda.current_device()]
    )
    optimizer = torch.optim.SGD([*vectors.parameters(), *scorer.parameters()], lr=0.05)
    neighbour = Neighbour(vectors.weight.data)
    while not run.stopping:
        lists = torch.randint(0, songs, (32, 8), device=device)
        other = torch.randint(0, songs, (32,), device=device)
        taste = vectors(lists[:, :-1]).mean(1)
        wanted = scorer(taste * vectors(lists[:, -1]))
        unwanted = scorer(taste * vectors(other))
        loss = F.softplus(unwanted - wanted).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        neighbour.snapshot()
        run.log(loss=loss.item(), samples=32)


class SharedMap:
    """A map of what the robots of a team have seen, in the memory of the host."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.cells = torch.zeros(shape, dtype=torch.uint8)
        self.team: Any = dist.new_group(backend="gloo")

    def mark(self, points: Tensor) -> None:
        """Enter the points of one scan."""
        x, y, z = points.unbind(1)
        self.cells[x, y, z] = 255

    def fuse(self) -> None:
        """Take over what the others have seen."""
        dist.all_reduce(self.cells, op=dist.ReduceOp.MAX, group=self.team)  # here

    def around(self, centres: Tensor, radius: int) -> Tensor:
        """Return cubes of the map."""
        reach = torch.arange(-radius, radius)
        x, y, z = (centres[:, axis, None] + reach for axis in range(3))
        return self.cells[x[:, :, None, None], y[:, None, :, None], z[:, None, None, :]]


@labelled(gpu="communication-bound", cpu="communication-bound", ranks=2, helpers=(SharedMap,))
def robots_that_share_a_map(run: hoptui.Run, device: str) -> None:
    """Two robots fuse their occupancy grids after each scan, and learn to complete what is hidden.

    The grids are on the host, with a group of gloo for them: 512 x 512 x 512 bytes are 134 MB, which are
    sent and compared in more than 70 ms. To enter a scan of 2000 points, to cut 128 cubes of 8 cells, and the
    step of a perceptron with them take less than 20 ms, and less than 8 ms with a GPU.
    """
    rank, size, radius = dist.get_rank(), 512, 4
    shared = SharedMap((size, size, size))
    width = (2 * radius) ** 3
    net = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width)).to(device)
    model = DistributedDataParallel(
        net, device_ids=None if device == "cpu" else [torch.cuda.current_device()]
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    position = torch.tensor([128 + 256 * rank, 256, 256])
    while not run.stopping:
        position = (position + torch.randint(-4, 5, (3,))).clamp(64, size - 65)
        scan = position + (16 * torch.randn(2000, 3)).long().clamp(-48, 48)
        shared.mark(scan)
        shared.fuse()
        cubes = shared.around(scan[:128], radius).flatten(1).to(device).float() / 255
        hidden = (torch.rand_like(cubes) < 0.5).float()
        loss = F.binary_cross_entropy_with_logits(model(cubes * (1 - hidden)), cubes, weight=hidden)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=128)


class LeadsWithoutWander(Dataset[tuple[Tensor, Tensor]]):
    """Electrocardiograms, whose wandering baseline is found by two medians and taken away."""

    def __init__(self, records: int, rate: int) -> None:
        self.signal: Any = importlib.import_module("scipy.signal")
        rng = np.random.default_rng(12)
        seconds = np.arange(10 * rate) / rate
        beats = np.sin(2 * np.pi * 1.2 * seconds) ** 31
        wander = 0.4 * np.sin(2 * np.pi * 0.2 * seconds + rng.uniform(0, 6, (32, 1, 1)))
        self.leads = beats + wander + 0.02 * rng.standard_normal((32, 12, len(seconds)))
        self.records, self.rate = records, rate

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        leads = np.roll(self.leads[index % 32], index, axis=-1)
        clean = np.stack([lead - self.baseline(lead) for lead in leads])  # here
        return torch.from_numpy(clean.astype(np.float32)), torch.tensor(index % 5)

    def baseline(self, lead: Any) -> Any:
        """Return the median of the medians, which neither the waves nor the complexes of a beat move."""
        narrow = self.signal.medfilt(lead, self.rate // 5 + 1)  # here
        return self.signal.medfilt(narrow, 3 * self.rate // 5 + 1)  # here


@labelled(
    gpu="data-bound",
    cpu="data-bound",
    ranks=2,
    needs=("accelerate", "scipy"),
    adapter=True,
    helpers=(LeadsWithoutWander,),
)
def arrhythmia_classifier(run: AdapterRun, device: str) -> None:
    """Heart beats are classified with accelerate, and both processes clean their own records.

    A record has 12 leads of 5000 values. The medians of 101 and of 301 values around each take more than 0.5
    ms for a lead. A batch has 16 records: more than 95 ms. The convolutions with a stride of 8 and 16
    channels need less than 20 ms, and less than 8 ms on a GPU.
    """
    from accelerate import Accelerator

    from hoptui.integrations.accelerate import HoptuiTracker

    accelerator = Accelerator(cpu=device == "cpu", log_with=HoptuiTracker())
    layers: list[nn.Module] = []
    for channels in (12, 16):
        layers += [nn.Conv1d(channels, 16, 16, stride=8), nn.BatchNorm1d(16), nn.ReLU()]
    model: Any = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 5))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader: Any = DataLoader(LeadsWithoutWander(4096, rate=500), batch_size=16, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.init_trackers(run.name)
    tracked, step = accelerator.get_tracker("hoptui").tracker, 0
    while step < run.iterations and not tracked.stopping:
        for leads, rhythm in loader:
            loss = F.cross_entropy(model(leads), rhythm)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            accelerator.log({"loss": loss.item()}, step=step)
            if step >= run.iterations or tracked.stopping:
                break
    accelerator.end_training()


class Components:
    """Which points are connected already."""

    def __init__(self, points: int) -> None:
        self.parent = list(range(points))

    def root(self, point: int) -> int:
        """Return the point that stands for all that are connected with a point."""
        parent = self.parent
        while parent[point] != point:  # here
            parent[point] = parent[parent[point]]  # here
            point = parent[point]  # here
        return point

    def merge(self, one: int, other: int) -> bool:
        """Connect two points, and return whether they were not connected before."""
        one, other = self.root(one), self.root(other)  # here
        if one == other:  # here
            return False
        self.parent[other] = one
        return True


def persistence_pairs(distances: Any) -> list[tuple[int, int]]:
    """Return the edges at which the components of a Vietoris-Rips filtration merge."""
    points = len(distances)
    rows, columns = np.triu_indices(points, 1)
    order = np.argsort(distances[rows, columns], kind="stable")
    components, pairs = Components(points), []
    for u, v in zip(rows[order].tolist(), columns[order].tolist(), strict=True):  # here
        if components.merge(u, v):  # here
            pairs.append((u, v))
    return pairs


@labelled(gpu="host-bound", cpu="host-bound", ranks=2, helpers=(Components, persistence_pairs))
def topological_autoencoder(run: hoptui.Run, device: str) -> None:
    """A sharded autoencoder whose latent space has to keep the topology of the batch.

    The pairs of a batch of 520 points are found in Python, over 134 940 edges, for the input and for the
    latent space: 270 000 edges of more than 0.3 microseconds, more than 80 ms on each rank. The distances and
    the step of four small layers need less than 25 ms with the exchange of 50 kB, and less than 10 on a GPU.
    """
    world, batch = dist.get_world_size(), 520
    encoder = nn.Sequential(nn.Linear(101, 64), nn.ReLU(), nn.Linear(64, 2))
    decoder = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 101))
    autoencoder = nn.Sequential(encoder, decoder).to(device)
    mesh = init_device_mesh(device, (world,))
    for part in (encoder, decoder):
        fully_shard(part, mesh=mesh)
    fully_shard(autoencoder, mesh=mesh)
    optimizer = torch.optim.Adam(autoencoder.parameters(), lr=1e-3)
    centres = torch.randn(11, 101, device=device)
    latent = torch.empty(0)

    def keep(module: nn.Module, args: Any, output: Tensor) -> None:
        nonlocal latent
        latent = output

    encoder.register_forward_hook(keep)
    while not run.stopping:
        spheres = F.normalize(torch.randn(batch, 101, device=device), dim=1)
        x = spheres + centres[torch.randint(0, 11, (batch,), device=device)]
        reconstruction = F.mse_loss(autoencoder(x), x)
        d_x, d_z = torch.cdist(x, x), torch.cdist(latent, latent)
        pairs_x = torch.tensor(persistence_pairs(d_x.cpu().numpy()), device=device)
        pairs_z = torch.tensor(persistence_pairs(d_z.detach().cpu().numpy()), device=device)
        topology = torch.zeros((), device=device)
        for pairs in (pairs_x, pairs_z):
            u, v = pairs.unbind(1)
            topology = topology + (d_x[u, v] - d_z[u, v]).square().mean()
        loss = reconstruction + 0.5 * topology
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=batch)


def _wildfire(size: int) -> Any:
    """Return a maker of environments in which a crew digs breaks before a fire."""
    gym: Any = importlib.import_module("gymnasium")

    class Wildfire(gym.Env):  # type: ignore[misc]
        observation_space = gym.spaces.Box(0, 1, (10,), np.float32)
        action_space = gym.spaces.Discrete(5)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.fuel = self.np_random.uniform(0.3, 1.0, (size, size)).tolist()
            self.heat = [[0.0] * size for _ in range(size)]
            self.heat[size // 2][size // 2] = 1.0
            self.crew, self.hour = [size // 4, size // 4], 0
            return self.view(0.0), {}

        def view(self, burning: float) -> Any:
            y, x = self.crew
            near = [self.heat[(y + dy) % size][(x + dx) % size] for dy in (-1, 0, 1) for dx in (-1, 0)]
            state = [*near, y / size, x / size, self.fuel[y][x], min(burning / size**2, 1.0)]
            return np.array(state, np.float32)

        def spread(self) -> float:
            """Let the fire burn for an hour, and return how much burns."""
            heat, fuel = self.heat, self.fuel
            after = [row[:] for row in heat]
            for y in range(1, size - 1):  # here
                for x in range(1, size - 1):  # here
                    wind = 0.3 * heat[y][x - 1] + 0.1 * heat[y][x + 1]  # here
                    near = wind + 0.2 * (heat[y - 1][x] + heat[y + 1][x])  # here
                    burnt = min(fuel[y][x], 0.02 * heat[y][x])  # here
                    fuel[y][x] -= burnt  # here
                    after[y][x] = min(1.0, 0.7 * heat[y][x] + near * fuel[y][x] + burnt)  # here
            self.heat = after
            return sum(map(sum, after))

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            dy, dx = ((0, 1), (0, -1), (1, 0), (-1, 0), (0, 0))[int(action)]
            y, x = (self.crew[0] + dy) % size, (self.crew[1] + dx) % size
            self.crew, self.fuel[y][x] = [y, x], 0.0
            burning = self.spread()
            self.hour += 1
            return self.view(burning), -burning / size**2, False, self.hour >= 200, {}

    return Wildfire


class Crew(nn.Module):
    """An actor and a critic."""

    def __init__(self, width: int, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, actions), nn.Linear(64, 1)

    def forward(self, state: Tensor) -> tuple[torch.distributions.Categorical, Tensor]:
        hidden = self.body(state)
        logits = self.actor(hidden)
        return torch.distributions.Categorical(logits=logits, validate_args=False), self.critic(hidden)[
            ..., 0
        ]


@labelled(gpu="env-bound", cpu="env-bound", ranks=2, needs=("gymnasium",), helpers=(_wildfire,))
def ppo_multigpu_wildfire(run: hoptui.Run, device: str) -> None:
    """CleanRL's PPO for several GPUs. Each rank has 8 forests, and the gradients are averaged by hand.

    A forest has 40 x 40 cells inside, and is updated cell by cell in Python: more than 0.7 ms. A rollout
    has 12 steps of 8 forests: more than 65 ms on each rank. The policy is asked 12 times, less than 0.5 ms
    each, and an update on 96 states is less than 6 ms with the exchange of 5 kB.
    """
    gym: Any = importlib.import_module("gymnasium")
    rank, world, num_envs, num_steps = dist.get_rank(), dist.get_world_size(), 8, 12
    forest = _wildfire(42)
    envs = gym.vector.SyncVectorEnv([forest for _ in range(num_envs)])
    torch.manual_seed(1)
    agent = Crew(10, 5).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    torch.manual_seed(100 + rank)
    next_obs = torch.as_tensor(envs.reset(seed=rank)[0], device=device)
    while not run.stopping:
        obs, actions, logprobs, rewards, values = [], [], [], [], []
        for _ in range(num_steps):
            with torch.no_grad():
                policy, value = agent(next_obs)
                action = policy.sample()
            obs.append(next_obs)
            actions.append(action)
            logprobs.append(policy.log_prob(action))
            values.append(value)
            seen, reward, _, _, _ = envs.step(action.cpu().numpy())
            rewards.append(torch.as_tensor(reward, dtype=torch.float32))
            next_obs = torch.as_tensor(seen, device=device)
        with torch.no_grad():
            gained = agent(next_obs)[1]
            returns: list[Tensor] = []
            for reward_t in reversed(torch.stack(rewards).to(device).unbind(0)):
                gained = reward_t + 0.99 * gained
                returns.insert(0, gained)
        b_returns = torch.cat(returns)
        advantages = b_returns - torch.cat(values)
        policy, newvalue = agent(torch.cat(obs))
        ratio = (policy.log_prob(torch.cat(actions)) - torch.cat(logprobs)).exp()
        clipped = ratio.clamp(0.8, 1.2)
        pg_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
        loss = pg_loss + 0.5 * F.mse_loss(newvalue, b_returns) - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        all_grads = torch.cat([p.grad.view(-1) for p in agent.parameters() if p.grad is not None])
        dist.all_reduce(all_grads)
        offset = 0
        for p in agent.parameters():
            if p.grad is not None:
                p.grad.copy_(all_grads[offset : offset + p.numel()].view_as(p) / world)
                offset += p.numel()
        optimizer.step()
        run.log(loss=loss.item(), env_steps=num_envs * num_steps)


class FastSigmoidSpike(torch.autograd.Function):
    """A step in the forward pass, and the slope of a fast sigmoid in the backward pass."""

    @staticmethod
    def forward(ctx: Any, potential: Tensor) -> Tensor:
        ctx.save_for_backward(potential)
        return (potential > 0).to(potential.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (potential,) = ctx.saved_tensors
        result: Tensor = grad / (1 + 10 * potential.abs()) ** 2
        return result


class SpikingClassifier(nn.Module):
    """Two layers of leaky neurons that integrate and fire, and an output that only integrates."""

    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(channels, width), nn.Linear(width, width)
        self.readout = nn.Linear(width, classes)

    def forward(self, spikes: Tensor) -> Tensor:
        spike: Any = FastSigmoidSpike.apply
        batch, width = spikes.shape[1], self.first.out_features
        u1, u2 = spikes.new_zeros(batch, width), spikes.new_zeros(batch, width)
        s1, s2 = torch.zeros_like(u1), torch.zeros_like(u2)
        out = spikes.new_zeros(batch, self.readout.out_features)
        for frame in spikes:
            u1 = 0.9 * u1 * (1 - s1) + self.first(frame)
            s1 = spike(u1 - 1)
            u2 = 0.9 * u2 * (1 - s2) + self.second(s1)
            s2 = spike(u2 - 1)
            out = 0.95 * out + self.readout(s2)
        return out


@labelled(gpu="launch-bound", cpu="healthy", ranks=2)
def spiking_spoken_digits(run: hoptui.Run, device: str) -> None:
    """A spiking network on cochlear channels under DistributedDataParallel, with as much for each rank.

    On GPUs: 250 frames of about 20 kernels forward and 35 backward on 32 x 128 numbers. These are more than
    13 000 launches of more than 5 microseconds for the host, and of about 2 for the GPU. On the CPU: 20
    frames of 96 x 512 numbers through 0.6 million weights are 7 GFLOP with the backward pass: more than 80
    ms. The gradients of 2.5 MB are exchanged in less than 8 ms.
    """
    cpu = device == "cpu"
    frames, batch, width = (20, 96, 512) if cpu else (250, 32, 128)
    net = SpikingClassifier(700, width, 20).to(device)
    model = DistributedDataParallel(net, device_ids=None if cpu else [torch.cuda.current_device()])
    optimizer = torch.optim.Adamax(model.parameters(), lr=2e-4)
    while not run.stopping:
        spikes = (torch.rand(frames, batch, 700, device=device) < 0.03).float()
        digit = torch.randint(0, 20, (batch,), device=device)
        loss = F.cross_entropy(model(spikes), digit)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=batch)
