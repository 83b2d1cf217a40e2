"""`install()`: loops get an adapter without a line of their own. One process, without viewers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)
TRAINER = """
import sys
from transformers import Trainer, TrainingArguments
from hoptui.integrations import accelerate, transformers
from tests.integrations.transformers_rank import sequences, small_model
accelerate.install()
transformers.install("installed")
args = TrainingArguments(sys.argv[1], max_steps=3, report_to=[], save_strategy="no", use_cpu=True)
trainer = Trainer(model=small_model(), args=args, train_dataset=sequences(24))
begun = []
connect = transformers.hoptui.connect
transformers.hoptui.connect = lambda name, **given: begun.append(name) or connect(name, **given)
trainer.train()
trainer.train()  # the same callback again
assert begun == ["installed", "installed"], begun
assert not accelerate._active  # Trainer's own accelerator
assert "get_batch_samples" not in vars(trainer) and "compute_loss" not in vars(trainer)
"""
LOOP = """
import torch
from accelerate import Accelerator
from hoptui.integrations import accelerate
accelerate.install("installed")
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(24, 4), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
(tracker,) = accelerate._active
for batch in loader:
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
assert (tracker.tracker.step, tracker._steps) == (6, 6)
"""
FAILING = """
import sys
from transformers import Trainer, TrainerCallback, TrainingArguments
from hoptui.integrations import transformers
from tests.integrations.transformers_rank import sequences, small_model
def broken(*args):
    raise RuntimeError("an error of hoptui")
transformers.offer_settings = broken
callback = transformers.HoptuiCallback()
args = TrainingArguments(sys.argv[1], max_steps=3, report_to=[], save_strategy="no", use_cpu=True)
trainer = Trainer(model=small_model(), args=args, train_dataset=sequences(24), callbacks=[callback])
assert trainer.train().global_step == 3
"""


@pytest.mark.parametrize("script", [TRAINER, LOOP, FAILING], ids=["trainer", "loop", "an error of hoptui"])
def test_a_script_has_the_adapter_and_goes_on(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPTUI", "off")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
