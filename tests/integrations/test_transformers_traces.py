"""`hoptui profile` on `transformers.Trainer`. One process, without viewers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback, TrainingArguments

import hoptui
from hoptui.integrations.transformers import HoptuiCallback
from tests.integrations.transformers_rank import sequences, small_model
from tests.run_state import run_state
from tests.sdk.unit_run import send

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 6


class Asking(TrainerCallback):  # type: ignore[misc]
    """Asks for a trace in the second step, as a user would."""

    def __init__(self, adapter: HoptuiCallback, iterations: int) -> None:
        self._adapter, self._iterations = adapter, iterations
        self.run: hoptui.Run | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            self.run = self._adapter._run
            assert self.run is not None
            send(self.run, "profile", id="a", value=self._iterations)


def train(folder: Path, iterations: int) -> hoptui.Run:
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="no",
    )
    adapter = HoptuiCallback()
    asking = Asking(adapter, iterations)
    Trainer(model=small_model(), args=args, train_dataset=sequences(6), callbacks=[adapter, asking]).train()
    assert asking.run is not None
    return asking.run


@pytest.mark.parametrize(
    ("asked", "said"),
    [(2, "2 iterations; training paused for "), (9, "3 iterations, 6 fewer than asked for: the run ended; ")],
)
def test_a_trace_has_the_bounds_and_the_event_of_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int, said: str
) -> None:
    monkeypatch.setenv("HOPTUI", "off")
    monkeypatch.setattr(hoptui.Run, "trace_folder", tmp_path / "traces")
    run = train(tmp_path, asked)
    (path,) = (tmp_path / "traces").iterdir()
    assert path.name == f"{run.id}-rank0.000000003.pt.trace.json.gz"
    (note,) = (note.text for note in run_state(run).notes if "trace" in note.text)
    assert note.startswith(f"trace written: {path} (")
    assert said in note
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert any(event.get("name") == "aten::mm" for event in events)
