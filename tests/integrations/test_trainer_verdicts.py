"""What a slow part of a `transformers.Trainer` is named: the verdict, and the line."""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TestNode, until
from tests.injection.scripts import script
from tests.integrations.rank_pair import ON_CPU

pytestmark = pytest.mark.timeout(300)
LIMIT_S = 150.0
TRAINER = """
import sys, time, torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from hoptui.integrations.transformers import HoptuiCallback
from tests.integrations.transformers_rank import sequences, small_model

torch.set_num_threads(1)
options, more, callbacks, Kind = {}, {}, [], Trainer

def work():
    sorted(range(200_000), key=str)  # the line

PART
callbacks = [*callbacks, HoptuiCallback("slow")]
if sys.argv[2:] == ["behind"]:
    callbacks.reverse()
settings = {"max_steps": 10**6, "save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True}
args = TrainingArguments(sys.argv[1], **{**settings, **options})
Kind(model=small_model(), args=args, train_dataset=sequences(64), callbacks=callbacks, **more).train()  # all
"""
CALLBACK = """
class Slow(TrainerCallback):
    def EVENT(self, *args, **kwargs):
        work()
callbacks = [Slow()]
"""
EVALUATION = """
options = {"eval_strategy": "steps", "eval_steps": 1}
more = {"eval_dataset": sequences(8)}
"""
PARTS = {
    "callback after a step": ("host-bound", CALLBACK.replace("EVENT", "on_step_end")),
    "callback after a log": (
        "host-bound",
        CALLBACK.replace("EVENT", "on_log") + "options = {'logging_steps': 1}",
    ),
    "callback after a save": (
        "host-bound",
        CALLBACK.replace("EVENT", "on_save") + "options = {'save_strategy': 'steps', 'save_steps': 5}",
    ),
    "metrics": (
        "host-bound",
        f"{EVALUATION}\ndef scores(p):\n    work()\n    return {{}}\nmore['compute_metrics'] = scores",
    ),
    "collator": (
        "data-bound",
        """
def collate(rows):
    work()
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
more = {"data_collator": collate}
""",
    ),
    "loss": (
        "host-bound",
        """
class Kind(Trainer):
    def compute_loss(self, *args, **kwargs):
        found = super().compute_loss(*args, **kwargs)
        work()
        return found
""",
    ),
    "evaluation": ("healthy", f"{EVALUATION}\nmore['eval_dataset'] = sequences(512)"),
    "save": (
        "save-bound",
        "options = {'save_strategy': 'steps', 'save_steps': 1, 'save_total_limit': 1}",
    ),
}
IN_TRAINER = ("evaluation", "save")
"""Parts that are slow in the Trainer itself: the line is that of `train`."""
BUSY = "cpu.thread_waits"
QUIET = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **ON_CPU}


@pytest.mark.parametrize("part", PARTS)
def test_a_slow_part_of_a_trainer_is_named_with_its_line(part: str, node: TestNode, tmp_path: Path) -> None:
    verdict, code = PARTS[part]
    path = script(tmp_path, TRAINER.replace("PART", code))
    mark = "# all" if part in IN_TRAINER else "# the line"
    (line,) = (n for n, text in enumerate(path.read_text().splitlines(), 1) if text.endswith(mark))
    node.daemon()
    child = node.spawn([sys.executable, "-W", "ignore", str(path), str(tmp_path / "out")], **QUIET)
    known: dict[str, Any] = {}

    def named() -> bool:
        assert child.poll() is None, child.communicate()[1][-4000:]
        done = node.hoptui("status", "slow", "--json")
        known.update(json.loads(done.stdout)["diagnosis"] or {} if done.returncode == 0 else {})
        hot = [each["fields"] for each in known.get("facts", ()) if each["code"] == "line.hot"]
        return known.get("verdict") == verdict and [(h["file"], h["line"]) for h in hot] == [
            (str(path), line)
        ]

    try:
        until(named, seconds=LIMIT_S, what=f"{verdict} at line {line}")
    except AssertionError as error:
        if verdict == "healthy" and [each["code"] for each in known.get("facts", ())][:1] == [BUSY]:
            pytest.skip("other work has the processors: whether the run is healthy cannot be known")
        raise AssertionError(f"the verdict is {known}") from error


SLEEPS = CALLBACK.replace("work()", "time.sleep(0.05)")
EVENTS = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end", "on_log")
STEPS = 6


@pytest.mark.parametrize("place", ["before", "behind"])
def test_the_time_of_other_callbacks_is_a_phase_of_its_own(
    node: TestNode, tmp_path: Path, place: str
) -> None:
    others = "\n".join(
        f"{SLEEPS.replace('EVENT', event).replace('callbacks = [Slow()]', 'callbacks.append(Slow())')}"
        for event in EVENTS
    )
    code = f"{others}\noptions = {{'max_steps': {STEPS}, 'logging_steps': 1}}"
    path = script(tmp_path, TRAINER.replace("PART", code))
    command = [sys.executable, "-W", "ignore", str(path), str(tmp_path / "out"), place]
    child = node.spawn(command, HOPTUI_STACKS="off", **QUIET)
    assert child.wait(120) == 0, child.communicate()[1][-4000:]
    node.status_at_end("slow")
    rows = node.hoptui("export", "slow", "--source", "run", "--format", "jsonl").stdout.splitlines()
    values = [json.loads(row).get("values", {}) for row in rows]
    full = [row for row in values if "phase/forward_backward" in row][1:]
    assert len(full) >= STEPS - 2
    median = {
        name: statistics.median(row.get(f"phase/{name}", 0.0) for row in full)
        for name in ("callbacks", "data", "forward_backward", "optimizer")
    }
    assert 0.05 * len(EVENTS) <= median["callbacks"] <= statistics.median(row["iteration_s"] for row in full)
    assert median["optimizer"] < 0.05, median
