"""Trainings for chemistry: fingerprints, energies of dimers, new scaffolds, a committee, and a reactor."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled

ATOM = re.compile(r"\[[^\]]+\]|Br|Cl|[BCNOPSFI]|[bcnops]|[=#]|[()]|\d")


def written_molecule(rng: random.Random, atoms: int) -> str:
    """Return the SMILES of a chain with branches and rings."""
    parts = ["C"]
    while atoms > 0:
        kind = rng.random()
        if kind < 0.2:
            parts.append("c1ccc(" + rng.choice(["F", "Cl", "OC", "N(C)C"]) + ")cc1")
            atoms -= 8
        elif kind < 0.4:
            parts.append("C(" + rng.choice(["=O", "C", "CO", "C#N"]) + ")")
            atoms -= 3
        else:
            parts.append(rng.choice(["C", "N", "O", "CC", "S", "C=C"]))
            atoms -= 1
    return "".join([*parts, "C"])


class AtomPairs:
    """A set of molecules with their bonds, their circular fingerprints, and their pairs of atoms."""

    def __init__(self, smiles: list[str], bits: int = 512) -> None:
        self.smiles, self.bits = smiles, bits

    def __len__(self) -> int:
        return len(self.smiles)

    def parse(self, text: str) -> tuple[list[str], list[list[int]]]:
        """Return the symbols of the atoms, and the neighbours of each."""
        symbols: list[str] = []
        bonded: list[list[int]] = []
        stack: list[int] = []
        rings: dict[str, int] = {}
        last = -1
        for token in ATOM.findall(text):  # here
            if token == "(":
                stack.append(last)
            elif token == ")":
                last = stack.pop()
            elif token.isdigit():
                other = rings.pop(token, None)
                if other is None:
                    rings[token] = last
                else:
                    bonded[last].append(other)
                    bonded[other].append(last)
            elif token not in "=#":
                symbols.append(token)
                bonded.append([])
                if last >= 0:
                    bonded[-1].append(last)
                    bonded[last].append(len(bonded) - 1)
                last = len(bonded) - 1
        return symbols, bonded

    def distances(self, bonded: list[list[int]], start: int) -> list[int]:
        """Return over how many bonds the other atoms are reached."""
        far = [-1] * len(bonded)  # here
        far[start], queue = 0, [start]  # here
        for atom in queue:  # here
            for other in bonded[atom]:  # here
                if far[other] < 0:  # here
                    far[other] = far[atom] + 1  # here
                    queue.append(other)  # here
        return far  # here

    def __getitem__(self, index: int) -> Any:
        from torch_geometric.data import Data

        symbols, bonded = self.parse(self.smiles[index])  # here
        kinds = [hash((s, len(b))) for s, b in zip(symbols, bonded, strict=True)]  # here
        counts = [0.0] * self.bits
        for _ in range(2):
            near = [sorted(kinds[other] for other in others) for others in bonded]  # here
            kinds = [hash((kind, *around)) for kind, around in zip(kinds, near, strict=True)]  # here
        for one, kind in enumerate(kinds):  # here
            far = self.distances(bonded, one)  # here
            for other in range(one):  # here
                key = hash((min(kind, kinds[other]), far[other], max(kind, kinds[other])))  # here
                counts[key % self.bits] += 1  # here
        edges = [(one, other) for one, others in enumerate(bonded) for other in others]
        return Data(
            z=torch.tensor([ord(s[0]) % 32 for s in symbols]),
            edge_index=torch.tensor(edges).T.contiguous(),
            fingerprint=torch.tensor([counts]),
            y=torch.tensor([float(len(symbols) % 7)]),
        )


@labelled(gpu="data-bound", cpu="data-bound", needs=("torch_geometric",), helpers=(AtomPairs,))
def fingerprints_beside_graphs(run: hoptui.Run, device: str) -> None:
    """A network on graphs gets fingerprints too, which the data set of PyG counts when a molecule is read.

    A molecule of some 110 atoms has 6000 pairs of atoms, each counted in more than 0.25 microseconds, and
    a search from each atom over 110 atoms, each more than 0.08 microseconds: more than 2.4 ms. A batch has 24
    of them: more than 57 ms. Two layers of GINConv of width 32 on 2600 nodes need less than 12 ms.
    """
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GINConv, global_add_pool

    rng = random.Random(5)
    molecules: Any = AtomPairs([written_molecule(rng, 100) for _ in range(480)])
    loader = DataLoader(molecules, batch_size=24, shuffle=True)
    atoms = nn.Embedding(32, 32).to(device)
    convs = nn.ModuleList(GINConv(nn.Sequential(nn.Linear(32, 32), nn.ReLU())) for _ in range(2)).to(device)
    head = nn.Sequential(nn.Linear(32 + 512, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adam([*atoms.parameters(), *convs.parameters(), *head.parameters()], lr=1e-3)
    while not run.stopping:
        for data in loader:  # here
            data = data.to(device)
            h = atoms(data.z)
            for conv in convs:
                h = conv(h, data.edge_index)
            pooled = global_add_pool(h, data.batch)
            predicted = head(torch.cat([pooled, data.fingerprint.log1p()], -1))[:, 0]
            loss = F.l1_loss(predicted, data.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=data.num_graphs)
            if run.stopping:
                break


class PairPotential(nn.Module):
    """The energy of two molecules, summed over pairs of their atoms."""

    def __init__(self, width: int = 32, waves: int = 16) -> None:
        super().__init__()
        self.atom, self.filter = nn.Embedding(10, width), nn.Linear(waves, width)
        self.out = nn.Linear(width, 1)
        self.centres: Tensor
        self.register_buffer("centres", torch.linspace(0, 8, waves))

    def forward(self, z1: Tensor, x1: Tensor, z2: Tensor, x2: Tensor) -> Tensor:
        r = (x1[:, None] - x2[None]).square().sum(-1).add(1e-6).sqrt()
        waves = torch.exp(-2 * (r[..., None] - self.centres).square())
        h = self.filter(waves) * self.atom(z1)[:, None] * self.atom(z2)[None]
        energy: Tensor = (self.out(h)[..., 0] * torch.exp(-r / 4)).sum()
        return energy


@labelled(gpu="compiling", cpu="compiling")
def energies_of_dimers(run: hoptui.Run, device: str) -> None:
    """A compiled potential for pairs of molecules. Their numbers of atoms are shapes of the compiled code.

    Pairs of 8 to 90 and 8 to 90 atoms are 6889 shapes. With `dynamic=False` nearly each step has a new one,
    for which some 20 operations are traced forward and backward: more than 100 ms. The step itself has at
    most 90 x 90 pairs with 32 numbers: less than 12 ms.
    """
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 100_000
    torch._dynamo.config.accumulated_recompile_limit = 100_000
    potential = PairPotential().to(device)
    energy = torch.compile(potential, dynamic=False, backend="aot_eager")
    optimizer = torch.optim.Adam(potential.parameters(), lr=1e-3, amsgrad=True)
    rng = np.random.default_rng(2)
    while not run.stopping:
        n1, n2 = (int(n) for n in rng.integers(8, 91, 2))
        z1, z2 = torch.randint(0, 10, (n1,), device=device), torch.randint(0, 10, (n2,), device=device)
        x1, x2 = 3 * torch.randn(n1, 3, device=device), 3 * torch.randn(n2, 3, device=device)
        x2[:, 0] += 5
        reference = -0.01 * n1 * n2 / 25
        loss = (energy(z1, x1, z2, x2) - reference).square() / (n1 * n2)  # here
        optimizer.zero_grad()
        loss.backward()  # here
        optimizer.step()
        run.log(loss=loss.item(), samples=1)


class TokenRNN(nn.Module):
    """Writes molecules, a token at a time."""

    def __init__(self, tokens: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.cells = nn.ModuleList(nn.GRUCell(width, width) for _ in range(layers))
        self.out = nn.Linear(width, tokens)

    def start(self, batch: int) -> list[Tensor]:
        """Return the states before the first token."""
        return [self.out.weight.new_zeros(batch, self.out.in_features) for _ in self.cells]

    def forward(self, token: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        h, after = self.embed(token), []
        for cell, state in zip(self.cells, states, strict=True):
            h = cell(h, state)
            after.append(h)
        return self.out(h).log_softmax(-1), after


@labelled(gpu="launch-bound", cpu="healthy")
def scaffolds_by_reinvent(run: hoptui.Run, device: str) -> None:
    """REINVENT: molecules are sampled token by token, and the agent is kept near to its prior.

    On a GPU: 160 tokens for 32 molecules. A token has about 35 operations for the agent, the sampling and
    the prior, and 35 of the backward pass: 11 000 operations. They take the host more than 6 microseconds
    each: more than 66 ms, and the GPU less than 3: 33 ms. On the CPU: 16 tokens for 96 molecules.
    """
    cpu = device == "cpu"
    batch, length, width, vocab = (96, 16, 192, 40) if cpu else (32, 160, 128, 40)
    agent, prior = (TokenRNN(vocab, width, 3).to(device) for _ in range(2))
    prior.load_state_dict(agent.state_dict())
    prior.requires_grad_(False)
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-4)
    wanted = torch.randn(vocab, device=device)
    while not run.stopping:
        token = torch.zeros(batch, dtype=torch.long, device=device)
        alive = torch.ones(batch, device=device)
        states, prior_states = agent.start(batch), prior.start(batch)
        likelihood = prior_likelihood = score = torch.zeros(batch, device=device)
        for _ in range(length):
            log_p, states = agent(token, states)
            prior_log_p, prior_states = prior(token, prior_states)
            token = torch.multinomial(log_p.detach().exp(), 1)[:, 0]
            likelihood = likelihood + alive * log_p.gather(1, token[:, None])[:, 0]
            prior_likelihood = prior_likelihood + alive * prior_log_p.gather(1, token[:, None])[:, 0]
            score = score + alive * wanted[token]
            alive = alive * (token != 1)
        augmented = prior_likelihood + 20 * torch.sigmoid(score)
        loss = (augmented - likelihood).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), score=score.mean().item(), samples=batch)


class Committee(nn.Module):
    """Models that vote on what to measure next. They are in a list of Python, which `.to` does not enter."""

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        from torch_geometric.nn.models import AttentiveFP

        self.members = [
            AttentiveFP(16, width, 1, edge_dim=8, num_layers=3, num_timesteps=2) for _ in range(members)
        ]

    def __iter__(self) -> Any:
        return iter(self.members)

    def forward(self, data: Any) -> Tensor:
        votes = []
        for member in self.members:
            data = data.to(next(member.parameters()).device)
            votes.append(member(data.x, data.edge_index, data.edge_attr, data.batch)[:, 0])  # here
        return torch.stack(votes)


@labelled(gpu="wrong-device", cpu="healthy", needs=("torch_geometric",), helpers=(Committee,))
def committee_for_active_learning(run: hoptui.Run, device: str) -> None:
    """Five models of PyG vote on solubilities. `committee.to(device)` leaves them where they are.

    AttentiveFP of width 64 on 64 molecules with 25 atoms and 52 bonds has more than 300 operations on the
    processor in each direction, most of them on 1600 or 3300 vectors: more than 12 ms a model with its
    backward pass, so more than 60 ms for five, also with sixteen cores. To collate the batch takes less than
    10 ms. On the GPU there is only the loss of 320 numbers: less than 3 ms with the copies.
    """
    from torch_geometric.data import Batch, Data

    molecules = []
    for n in range(256):
        chain = torch.arange(24)
        ring = torch.tensor([[0, 12], [12, 24]])
        edges = torch.cat([torch.stack([chain, chain + 1]), ring], 1)
        edges = torch.cat([edges, edges.flip(0)], 1)
        x = torch.randn(25, 16, generator=torch.Generator().manual_seed(n))
        molecules.append(Data(x=x, edge_index=edges, edge_attr=x[edges[0], :8], y=x.mean()[None]))
    committee = Committee(5, 64).to(device)
    optimizer = torch.optim.Adam([p for member in committee for p in member.parameters()], lr=1e-3)
    rng = random.Random(1)
    while not run.stopping:
        batch = Batch.from_data_list(rng.sample(molecules, 64)).to(device)
        votes = committee(batch).to(device)  # here
        loss = F.mse_loss(votes, batch.y.to(device).expand_as(votes))
        optimizer.zero_grad()
        loss.backward()  # here
        optimizer.step()
        run.log(loss=loss.item(), disagreement=votes.std(0).mean().item(), samples=64)


class StirredTank:
    """Robertson's reactions in a tank that is fed, which are stiff."""

    def __init__(self) -> None:
        self.state = np.array([1.0, 0.0, 0.0])

    def rates(self, time: float, c: Any, feed: float) -> list[float]:
        """Return how fast the concentrations change."""
        a, b, p = c
        slow, fast, catalysed = 0.04 * a, 3e7 * b * b, 1e4 * b * p  # here
        return [feed - slow + catalysed - 0.1 * a, slow - catalysed - fast - 0.1 * b, fast - 0.1 * p]  # here

    def wait(self, seconds: float, feed: float) -> None:
        """Let the reactions go on."""
        from scipy.integrate import solve_ivp

        span, given = (0, seconds), (feed,)
        found = solve_ivp(self.rates, span, self.state, "Radau", args=given, rtol=1e-9, atol=1e-12)  # here
        self.state = np.maximum(found.y[:, -1], 0.0)  # here


@labelled(
    gpu="env-bound",
    cpu="env-bound",
    needs=("stable_baselines3", "gymnasium", "scipy"),
    adapter=True,
    helpers=(StirredTank,),
)
def sac_feeds_a_reactor(run: AdapterRun, device: str) -> None:
    """SAC chooses how much to feed to a reactor, whose stiff equations scipy integrates for each action.

    Radau needs more than 80 steps for these tolerances, each of more than 0.12 ms in Python: more than 9 ms
    an action. An iteration of 10 actions takes more than 90 ms. An update of SAC with 64 rows and layers of
    64 units needs less than 30 ms, and the choices less than 5 ms.
    """
    import gymnasium
    from gymnasium import spaces
    from stable_baselines3 import SAC

    from hoptui.integrations.sb3 import HoptuiCallback

    class FedReactor(gymnasium.Env):  # type: ignore[misc]
        def __init__(self) -> None:
            self.observation_space = spaces.Box(0.0, 10.0, (4,), np.float32)
            self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

        def _obs(self) -> Any:
            return np.array([*self.tank.state * (1, 1e4, 1), self.target], np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.tank, self.target = StirredTank(), self.np_random.uniform(0.2, 0.8)
            return self._obs(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.tank.wait(10.0, 0.05 * (float(action[0]) + 1))  # here
            return self._obs(), -abs(float(self.tank.state[2]) - self.target), False, False, {}

    model = SAC(
        "MlpPolicy",
        gymnasium.wrappers.TimeLimit(FedReactor(), 50),
        learning_starts=10,
        train_freq=10,
        gradient_steps=1,
        batch_size=64,
        buffer_size=10_000,
        policy_kwargs={"net_arch": [64, 64]},
        device=device,
    )
    model.learn(run.iterations * 10, callback=HoptuiCallback(run.name, steps_per_iteration=10))
