"""Trainings for forestry: an inventory, rings of trees, a harvester, beetles, and maps of stands."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

import math
import random
import tempfile
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, labelled


@labelled(gpu="memory-bandwidth-bound", cpu="healthy")
def inventory_one_plot_at_a_time(run: hoptui.Run, device: str) -> None:
    """A very wide perceptron learns from the plots of an inventory online, from one plot in each step.

    On a GPU: 14 layers of 16 384 x 16 384 weights are 3.8 billion, 15 GB. They are read forward and backward,
    their gradients are written, and SGD reads both and writes the weights: six times 15 GB, 90 GB, more than
    18 ms at 4.8 TB/s. One row makes only 23 GFLOP, and 90 launches. Weights and gradients need 30 GB. On the
    CPU: 4 layers of width 2048.
    """
    layers, width = (4, 2048) if device == "cpu" else (14, 16_384)
    with torch.device(device):
        wide = [nn.Linear(width, width, bias=False) for _ in range(layers)]
        net = nn.Sequential(*wide, nn.Linear(width, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    while not run.stopping:
        plot = torch.randn(1, width, device=device)
        volume = plot[:, :3].abs()
        x = plot
        for layer in wide:
            x = F.relu(layer(x)) + x
        loss = F.smooth_l1_loss(net[-1](x), volume)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item(), samples=1)


class RingWidths(Dataset[dict[str, Tensor]]):
    """Widths of the rings of trees, whose trend with age a smoothing spline takes away when they are read."""

    def __init__(self, trees: int, years: int) -> None:
        self.trees, self.years = trees, years
        rng = np.random.default_rng(17)
        age = np.arange(years)
        self.widths = 2 * np.exp(-age / 150) + 0.3 + 0.1 * rng.standard_normal((64, years)).cumsum(1) / 20

    def detrended(self, widths: Any) -> Any:
        """Return the widths relative to their trend, where outliers are weighed less."""
        from scipy.interpolate import make_smoothing_spline

        age, weights = np.arange(self.years, dtype=float), np.ones(self.years)
        trend = widths
        for _ in range(6):
            trend = make_smoothing_spline(age, widths, weights, lam=1e4)(age)  # here
            rest = np.abs(widths - trend)
            weights = 1 / (1 + (rest / (np.median(rest) + 1e-6)) ** 2)
        return widths / np.maximum(trend, 0.05)

    def __len__(self) -> int:
        return self.trees

    def __getitem__(self, tree: int) -> dict[str, Tensor]:
        rng = np.random.default_rng(tree)
        widths = self.widths[tree % len(self.widths)] + 0.05 * rng.standard_normal(self.years)
        index = torch.from_numpy(self.detrended(widths)).float()  # here
        return {"past_values": index[:, None], "target_values": torch.tensor(tree % 4)}


@labelled(
    gpu="data-bound",
    cpu="data-bound",
    needs=("transformers", "accelerate", "scipy"),
    adapter=True,
    helpers=(RingWidths,),
)
def sites_of_tree_rings(run: AdapterRun, device: str) -> None:
    """The Trainer of transformers teaches a PatchTST the site of a tree. Its loader has no workers.

    A spline through 400 years is fitted six times, so that outliers weigh less and less: more than 1.2 ms
    each, so more than 7 ms a tree, and more than 115 ms for a batch of 16. Two layers of width 32 on 25
    patches need less than 25 ms for their step.
    """
    from transformers import PatchTSTConfig, PatchTSTForClassification, Trainer, TrainingArguments

    from hoptui.integrations.transformers import HoptuiCallback

    config = PatchTSTConfig(
        num_input_channels=1,
        num_targets=4,
        context_length=400,
        patch_length=16,
        patch_stride=16,
        d_model=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        use_cls_token=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=run.iterations,
            per_device_train_batch_size=16,
            learning_rate=5e-4,
            dataloader_num_workers=0,
            use_cpu=device == "cpu",
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=10,
        )
        trainer = Trainer(
            model=PatchTSTForClassification(config),
            args=args,
            train_dataset=RingWidths(3000, 400),
            callbacks=[HoptuiCallback(run.name)],
        )
        trainer.train()


class Stand:
    """Trees, between which a harvester drives, and what it sees along its rays."""

    def __init__(self, trees: int, seed: int) -> None:
        rng = random.Random(seed)
        self.trees = []
        for _ in range(trees):
            self.trees.append((rng.uniform(0, 60), rng.uniform(0, 60), rng.uniform(0.1, 0.4)))
        self.x, self.y, self.heading = 30.0, 0.0, math.pi / 2

    def ray(self, angle: float, reach: float = 15.0) -> float:
        """Return how far it is to the next tree in a direction."""
        dx, dy, nearest = math.cos(angle), math.sin(angle), reach
        for tx, ty, radius in self.trees:  # here
            far = math.hypot(tx - self.x, ty - self.y)  # here
            along = (tx - self.x) * dx + (ty - self.y) * dy  # here
            if 0 < along < nearest and far * far - along * along < radius * radius:  # here
                nearest = along  # here
        return nearest

    def drive(self, throttle: float, steering: float) -> float:
        """Go on, and return how far the harvester got, or a penalty where a tree is hit."""
        self.heading += 0.4 * steering
        way = 0.5 * (1 + throttle)
        self.x = min(max(self.x + way * math.cos(self.heading), 0.0), 60.0)
        self.y = (self.y + way * math.sin(self.heading)) % 60
        if any((tx - self.x) ** 2 + (ty - self.y) ** 2 < (r + 0.8) ** 2 for tx, ty, r in self.trees):  # here
            return -2.0
        return way * math.sin(self.heading)


@labelled(
    gpu="env-bound",
    cpu="env-bound",
    needs=("stable_baselines3", "gymnasium"),
    adapter=True,
    helpers=(Stand,),
)
def harvester_by_ppo(run: AdapterRun, device: str) -> None:
    """PPO of stable-baselines3 drives a harvester, which sees the trees around it along 20 rays.

    A ray is compared with 800 trees of more than 70 nanoseconds: 20 rays take more than 1.1 ms. 4 harvesters
    make 32 steps: more than 140 ms. To ask the policy 32 times takes less than a millisecond each, and
    the update with 4 minibatches less than 12 ms.
    """
    import gymnasium
    from gymnasium import spaces
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

    from hoptui.integrations.sb3 import HoptuiCallback

    class Harvester(gymnasium.Env):  # type: ignore[misc]
        observation_space = spaces.Box(0.0, 1.0, (20,), np.float32)
        action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

        def look(self) -> Any:
            turns = (self.stand.heading + (n - 9.5) * 0.15 for n in range(20))
            return np.array([self.stand.ray(turn) / 15 for turn in turns], np.float32)  # here

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.stand, self.moves = Stand(800, int(self.np_random.integers(1000))), 0
            return self.look(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            gained = self.stand.drive(float(action[0]), float(action[1]))  # here
            self.moves += 1
            return self.look(), gained, gained < -1, self.moves >= 200, {}  # here

    harvesters = VecMonitor(DummyVecEnv([Harvester] * 4))
    model = PPO("MlpPolicy", harvesters, n_steps=32, batch_size=64, n_epochs=2, seed=5, device=device)
    model.learn(run.iterations * 4 * 32, callback=HoptuiCallback(run.name))


def _beetles(side: int) -> Any:
    import gymnasium
    from gymnasium import spaces
    from scipy import ndimage

    class BeetleEnv(gymnasium.Env):  # type: ignore[misc]
        """Bark beetles fly from spruce to spruce for a month. Then some quarter of the forest is cleared."""

        observation_space = spaces.Box(0.0, 1.0, (2, 8, 8), np.float32)
        action_space = spaces.Discrete(17)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.spruce = self.np_random.random((side, side)) < 0.8
            self.beetles = (self.np_random.random((side, side)) < 0.01) * 1.0
            self.months = 0
            return self.seen(), {}

        def seen(self) -> Any:
            blocks = np.stack([self.spruce, self.beetles]).reshape(2, 8, side // 8, 8, side // 8)
            return blocks.mean((2, 4)).clip(0, 1).astype(np.float32)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            if action < 16:
                row, column = divmod(int(action), 4)
                quarter = side // 4
                self.spruce[row * quarter :, column * quarter :][:quarter, :quarter] = False
            alive = int(self.spruce.sum())
            for _ in range(30):
                flying = ndimage.gaussian_filter(self.beetles, 2.5, mode="wrap")  # here
                attacked = self.spruce & (self.np_random.random((side, side)) < 0.3 * flying)  # here
                self.beetles = np.where(attacked, 5.0, 0.7 * self.beetles * self.spruce)  # here
                self.spruce &= self.np_random.random((side, side)) > 0.02 * self.beetles  # here
            self.months += 1
            lost = (alive - int(self.spruce.sum())) / side**2
            return self.seen(), -lost - 0.02 * float(action < 16), False, self.months >= 24, {}

    return BeetleEnv


@labelled(gpu="env-bound", cpu="env-bound", needs=("gymnasium", "scipy"), helpers=(_beetles,))
def beetles_by_a_double_dqn(run: hoptui.Run, device: str) -> None:
    """A double DQN clears forest against beetles. gymnasium runs eight forests in processes of their own.

    A month has 30 nights with a filter and two fields of 160 x 160 random numbers: more than 0.2 ms a night,
    so more than 6 ms a month, and 8 months more than 48 ms where each forest has a core. To ask the network
    takes less than 0.7 ms a month, and the update with 128 of the last months less than 6 ms.
    """
    import gymnasium

    forests = gymnasium.vector.AsyncVectorEnv([_beetles(160)] * 8)

    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 17)).to(device)

    online, target = network(), network()
    optimizer = torch.optim.Adam(online.parameters(), lr=5e-4)
    months: list[tuple[Any, Any, Any, Any]] = []
    seen, _ = forests.reset(seed=3)
    updates = 0
    while not run.stopping:
        for _ in range(8):
            with torch.no_grad():
                action = online(torch.as_tensor(seen, device=device)).argmax(-1).cpu().numpy()
            random_action = np.random.randint(0, 17, 8)
            action = np.where(np.random.random(8) < 0.1, random_action, action)
            after, reward, _, _, _ = forests.step(action)  # here
            months = [*months[-500:], (seen.copy(), action, reward, after.copy())]
            seen = after
        picked = random.choices(months, k=16)
        before, acted, gained, then = (
            torch.as_tensor(np.concatenate(column), device=device) for column in zip(*picked, strict=True)
        )
        with torch.no_grad():
            best = online(then).argmax(-1, keepdim=True)
            goal = gained.float() + 0.97 * target(then).gather(1, best)[:, 0]
        loss = F.smooth_l1_loss(online(before).gather(1, acted[:, None])[:, 0], goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updates += 1
        if updates % 50 == 0:
            target.load_state_dict(online.state_dict())
        run.log(loss=loss.item(), env_steps=64)
    forests.close()


STANDS = np.array(["beech", "birch", "clearing", "larch", "mixed", "oak", "pine", "spruce"])


def report_of(predicted: Tensor, true: Tensor) -> tuple[float, float, float]:
    """Return what is told of a map in the forester's tables."""
    from sklearn import metrics

    y_true, y_pred = STANDS[true.cpu().numpy().ravel()], STANDS[predicted.cpu().numpy().ravel()]
    table = metrics.classification_report(y_true, y_pred, output_dict=True, zero_division=0)  # here
    kappa = metrics.cohen_kappa_score(y_true, y_pred)  # here
    balanced = metrics.balanced_accuracy_score(y_true, y_pred)  # here
    return float(table["macro avg"]["f1-score"]), float(kappa), float(balanced)


@labelled(gpu="host-bound", cpu="host-bound", needs=("sklearn",), helpers=(report_of,))
def maps_of_stands_with_reports(run: hoptui.Run, device: str) -> None:
    """Types of forest are mapped, and each step makes a report with the names of the types by scikit-learn.

    A batch has 4 x 112 x 112 = 50 000 places. scikit-learn sorts their names and counts them in three
    reports: more than 80 ms. The network with 12 channels on them needs less than 8 ms with its step.
    """
    net = nn.Sequential(
        nn.Conv2d(6, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, len(STANDS), 1)
    ).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    while not run.stopping:
        bands = torch.randn(4, 6, 112, 112, device=device)
        stands = (bands[:, 0] > 0).long() + 2 * (bands[:, 1] > 0) + 4 * (bands[:, 2] > 0)
        scores = net(bands)
        loss = F.cross_entropy(scores, stands)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        f1, kappa, balanced = report_of(scores.argmax(1), stands)  # here
        run.log(loss=loss.item(), f1=f1, kappa=kappa, balanced=balanced, samples=4)
