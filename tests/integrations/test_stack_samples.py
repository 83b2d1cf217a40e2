"""The stack samples of a training through each adapter name the line of the script that takes the time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import TestNode, until
from tests.injection.scripts import script
from tests.integrations.rank_pair import ON_CPU, free_port

pytestmark = pytest.mark.timeout(400)
LIMIT_S = 200.0
ADAPTERS = {
    "transformers": """
import sys
import torch
from transformers import Trainer, TrainingArguments
from hoptui.integrations.transformers import HoptuiCallback
from tests.integrations.transformers_rank import sequences, small_model

def collate(rows):
    sorted(range(200_000), key=str)  # the line
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}

args = TrainingArguments(sys.argv[1], max_steps=10**6, report_to=[], save_strategy="no", disable_tqdm=True)
Trainer(
    model=small_model(), args=args, train_dataset=sequences(64), data_collator=collate,
    callbacks=[HoptuiCallback("sampled")],
).train()
""",
    "lightning": """
import lightning as L
import torch
from hoptui.integrations.lightning import HoptuiCallback

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        sorted(range(200_000), key=str)  # the line
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

trainer = L.Trainer(
    max_epochs=10**6, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, callbacks=[HoptuiCallback("sampled")],
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4))
""",
    "accelerate": """
import torch
from accelerate import Accelerator
from hoptui.integrations.accelerate import HoptuiTracker

accelerator = Accelerator(cpu=True, log_with=HoptuiTracker())
accelerator.init_trackers("sampled")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
step = 0
while True:
    for batch in loader:
        sorted(range(200_000), key=str)  # the line
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        accelerator.log({"loss": loss.item()}, step=step)
""",
    "sb3": """
import gymnasium as gym
from stable_baselines3 import PPO
from hoptui.integrations.sb3 import HoptuiCallback

class Slow(gym.Wrapper):
    def step(self, action):
        sorted(range(50_000), key=str)  # the line
        return self.env.step(action)

model = PPO("MlpPolicy", Slow(gym.make("CartPole-v1")), n_steps=32, batch_size=16, n_epochs=1, device="cpu")
model.learn(10**9, callback=HoptuiCallback("sampled"))
""",
    "torchtitan": """
import sys
from pathlib import Path
from tests.integrations.titan_cpu import Trainer, configuration
from hoptui.integrations import torchtitan as adapter

class Slow(Trainer):
    def train_step(self, data_iterator):
        sorted(range(200_000), key=str)  # the line
        return super().train_step(data_iterator)

adapter.install("sampled")
Slow(configuration(Path(sys.argv[1]), 10**6)).train()
""",
}


def _start(node: TestNode, path: Path, folder: Path) -> subprocess.Popen[str]:
    """Start a training of one rank on the CPU, for what makes a process group of its own."""
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": free_port()}
    python = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return node.spawn([sys.executable, str(path), str(folder)], **rank, **meeting, **python, **ON_CPU)


def _until_first(node: TestNode, child: subprocess.Popen[str], path: Path) -> None:
    """Wait until the line with the mark has the most samples of the last minute, by `hoptui where`."""
    (marked,) = (n for n, line in enumerate(path.read_text().splitlines(), 1) if "# the line" in line)
    shares: Counter[tuple[str, int]] = Counter()
    errors = ""

    def first() -> bool:
        nonlocal errors
        assert child.poll() is None, child.communicate()[1][-4000:]
        done = node.hoptui("where", "sampled", "--json")
        errors = done.stderr
        shares.clear()
        for line in json.loads(done.stdout)["lines"] if done.returncode == 0 else ():
            shares[line["file"], line["line"]] += line["share"]
        return [place for place, _ in shares.most_common(1)] == [(str(path), marked)]

    try:
        until(first, seconds=LIMIT_S, what=f"line {marked}")
    except AssertionError as error:
        raise AssertionError(f"the samples name {shares.most_common(3)}; {errors}") from error


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_samples_name_the_line_of_the_script(adapter: str, node: TestNode, tmp_path: Path) -> None:
    if adapter == "torchtitan":
        pytest.importorskip("torchtitan", reason="it is in the newest environment")
    path = script(tmp_path, ADAPTERS[adapter])
    node.daemon()
    _until_first(node, _start(node, path, tmp_path / "out"), path)
