"""`hoptui run` on scripts of frameworks: the adapter makes the one run, and results are bit-identical."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import TestNode, until
from tests.injection.scripts import HEAD, IDLE, finished, run_command, script
from tests.integrations.rank_pair import free_port

pytestmark = pytest.mark.timeout(300)

SCRIPTS = {
    "transformers": """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
ids = torch.randint(64, (160, 16))
rows = [{"input_ids": row, "labels": row} for row in ids]
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=64, n_positions=16))
arguments = TrainingArguments(sys.argv[1], max_steps=60, per_device_train_batch_size=4, use_cpu=True,
                              report_to=[], save_strategy="no", disable_tqdm=True, seed=1)
Trainer(model, arguments, train_dataset=rows).train()
weights(model)
""",
    "accelerate": IDLE
    + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(20):
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(((model(x) - y) ** 2).mean())
            optimizer.step()
            optimizer.zero_grad()
weights(model)
idle()
""",
    "lightning": """
import lightning
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, index):
        return ((self.layer(batch[0]) - batch[1]) ** 2).mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)
model = Model()
trainer = lightning.Trainer(max_steps=60, accelerator="cpu", logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False)
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=16, shuffle=True))
weights(model)
""",
    "sb3": """
from stable_baselines3 import PPO
model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=2, seed=1, device="cpu")
model.learn(512)
weights(model.policy)
""",
}
"""Argument: a folder of its own."""
ITERATIONS = {"transformers": 60, "accelerate": 80, "lightning": 60, "sb3": 8}
"""Optimizer steps, and rollouts of SB3."""


@pytest.mark.parametrize("framework", SCRIPTS)
def test_a_script_of_a_framework_has_one_run_and_the_same_results(
    node: TestNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    path = script(tmp_path, HEAD + SCRIPTS[framework], f"{framework}_script.py")
    command = [sys.executable, "-W", "ignore", str(path)]
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    plain = node.spawn([*command, str(tmp_path / "a")], **quiet)
    expected = finished(plain, 250)
    monkeypatch.setenv("HOPTUI_IDLE_S", "300")
    node.daemon()
    shown = node.spawn(run_command("--name", "shown", "--", *command, str(tmp_path / "b")), **quiet)
    found = finished(shown, 250)
    assert (expected[0], found[0]) == (0, 0), f"{expected[2][-6000:]}\n{found[2][-6000:]}"
    assert [line for line in found[1].splitlines() if line.startswith("weights")] == [
        line for line in expected[1].splitlines() if line.startswith("weights")
    ]
    assert "hoptui" not in found[2]
    viewer = node.viewer()
    run = until(lambda: next((r for r in viewer.state().runs if r.exit_reason), None), what="the end")
    assert [each.name for each in viewer.state().runs] == ["shown"]
    assert "lr" in {each.spec.name for each in run.knobs} or "learning_rate" in {
        each.spec.name for each in run.knobs
    }
    assert viewer.vital(run.run).step == ITERATIONS[framework], "what follows the last step is none"


LAUNCH = (
    sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2",
    "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no",
)  # fmt: skip
"""It starts torchrun. With `--cpu` it would start one process; the script asks for the CPU itself."""


def test_two_ranks_of_accelerate_launch_are_one_run_and_have_the_same_results(
    node: TestNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(tmp_path, HEAD + SCRIPTS["accelerate"], "accelerate_script.py")
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONFAULTHANDLER": "1"}
    command = [*LAUNCH, f"--main_process_port={free_port()}", str(path)]
    expected = finished(node.spawn(command, **quiet), 250)
    monkeypatch.setenv("HOPTUI_IDLE_S", "300")
    node.daemon()
    found = finished(node.spawn(run_command("--name", "shown", "--", *command), **quiet), 250)
    assert (expected[0], found[0]) == (0, 0), f"{expected[2][-6000:]}\n{found[2][-6000:]}"
    weights = [line for line in expected[1].splitlines() if line.startswith("weights")]
    assert len(weights) == 2
    assert [line for line in found[1].splitlines() if line.startswith("weights")] == weights
    viewer = node.viewer()
    run = until(lambda: next((r for r in viewer.state().runs if r.exit_reason), None), what="the end")
    assert [(each.name, each.world) for each in viewer.state().runs] == [("shown", 2)]
    assert run.exit_reason == "finished"
    assert viewer.vital(run.run).step == ITERATIONS["accelerate"] // 2
    assert "lr" in {each.spec.name for each in run.knobs} or "learning_rate" in {
        each.spec.name for each in run.knobs
    }
