"""Lightning: what two ranks of `fit` do when knobs change, and what a run shows of a trainer."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import statistics
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import pytorch_lightning
import torch

from hoptui.integrations import lightning as adapter
from hoptui.integrations.batch_size import sample_count
from hoptui.integrations.lightning_internals import strategy_name
from hoptui.integrations.lightning_knobs import PROVEN
from tests.conftest import TestNode, until
from tests.integrations.lightning_fits import CHANGED, EPOCHS, SAMPLES
from tests.integrations.proof import Proof
from tests.integrations.ranks import both

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]
Fits = list[dict[str, Any]]
BATCHES = 24
"""Of an epoch, on each rank."""
ROUNDED = 1e-6
"""A compiled module adds in another order."""


@pytest.fixture(scope="module")
def fits() -> Fits:
    """What each fit gave, by rank and name."""
    return both("tests.integrations.lightning_fits")


def prove(proof: Proof, fits: Fits, name: str) -> dict[str, Any]:
    """Two ranks took the same steps with the same weights, and saw all samples. Return the fit on rank 0."""
    of_ranks: list[dict[str, Any]] = [rank[name] for rank in fits]
    proof.ranks_equal([found["weights"] for found in of_ranks])
    proof.samples(seen=sum(found["seen"] for found in of_ranks), due=SAMPLES * EPOCHS)
    return of_ranks[0]


def prove_coefficient(proof: Proof, fits: Fits, knob: str, before: float, value: float) -> dict[str, Any]:
    """A change of a coefficient does what plain code does after the same step. Return the fit on rank 0."""
    found = prove(proof, fits, knob)
    assert applied(found) == [(CHANGED, before, value)]
    unchanged = fits[0]["unchanged"]["weights"]
    assert found["weights"] == fits[0][f"plain {knob}"]["weights"]
    assert found["weights"][:CHANGED] == unchanged[:CHANGED]
    assert found["weights"][CHANGED] != unchanged[CHANGED]
    return found


def applied(found: dict[str, Any]) -> list[tuple[int, Any, Any]]:
    """The changes: at which iteration, from which value to which."""
    return [
        (step, before, value) for stage, _, step, before, value, _ in found["outcomes"] if stage == "applied"
    ]


# One test for each row of the table. A change that is due at a step is applied at the next boundary.


@pytest.mark.live_safe(framework="Lightning", knob="lr", effect="learning", when="next step")
def test_the_learning_rate_changes_on_both_ranks(fits: Fits, proof: Proof) -> None:
    found = prove_coefficient(proof, fits, "lr", 0.01, 0.002)
    rates = [row["lr"] for _, row in found["rows"] if "lr" in row]
    assert rates[:6] == [0.01] * 6
    assert rates[6:BATCHES] == [0.002] * (BATCHES - 6)
    assert rates[BATCHES:] == pytest.approx(
        [0.002 * 0.95] * BATCHES
    )  # the schedule goes on from the new base


@pytest.mark.live_safe(framework="Lightning", knob="weight_decay", effect="learning", when="next step")
def test_the_weight_decay_changes_on_both_ranks(fits: Fits, proof: Proof) -> None:
    prove_coefficient(proof, fits, "weight_decay", 0.01, 0.5)


@pytest.mark.live_safe(framework="Lightning", knob="beta1", effect="learning", when="next step")
def test_the_first_beta_changes_on_both_ranks(fits: Fits, proof: Proof) -> None:
    prove_coefficient(proof, fits, "beta1", 0.9, 0.5)


@pytest.mark.live_safe(framework="Lightning", knob="beta2", effect="learning", when="next step")
def test_the_second_beta_changes_on_both_ranks(fits: Fits, proof: Proof) -> None:
    prove_coefficient(proof, fits, "beta2", 0.999, 0.9)


@pytest.mark.live_safe(framework="Lightning", knob="gradient_clip_val", effect="learning", when="next step")
def test_the_limit_of_gradients_changes_on_both_ranks(fits: Fits, proof: Proof) -> None:
    prove_coefficient(proof, fits, "gradient_clip_val", 0.0, 0.01)


@pytest.mark.live_safe(framework="Lightning", knob="log_every_n_steps", effect="speed", when="next step")
def test_the_logging_interval_changes_nothing_that_is_learned(fits: Fits, proof: Proof) -> None:
    found = prove(proof, fits, "log_every_n_steps")
    proof.unchanged(found["weights"], fits[0]["unchanged"]["weights"])
    assert applied(found) == [(6, 50, 7)]


@pytest.mark.live_safe(
    framework="Lightning", knob="compile", effect="speed", when="the step after the next one, which compiles"
)
def test_a_compiled_module_learns_the_same(fits: Fits, proof: Proof) -> None:
    found = prove(proof, fits, "compile")
    unchanged = fits[0]["unchanged"]["weights"]
    proof.unchanged(found["weights"][-1], unchanged[-1], tolerance=ROUNDED)
    assert [stage for stage, *_ in found["outcomes"]] == ["scheduled", "applied", "applied"]
    assert [change[1:] for change in applied(found)] == [(False, True), (True, False)]


@pytest.mark.live_safe(
    framework="Lightning",
    knob="num_workers",
    effect="speed",
    when="next epoch",
    note="offered for a DataLoader whose workers start anew in each epoch",
)
@pytest.mark.live_safe(
    framework="Lightning",
    knob="prefetch_factor",
    effect="speed",
    when="next epoch",
    note="offered for a DataLoader whose workers start anew in each epoch",
)
@pytest.mark.live_safe(
    framework="Lightning",
    knob="num_workers",
    effect="speed",
    when="next epoch",
    note="from 0, where the dataset may be read by another process",
)
@pytest.mark.parametrize(
    ("knob", "change"),
    [("num_workers", (2, 1)), ("prefetch_factor", (2, 5)), ("no workers", (0, 1))],
)
def test_other_data_workers_read_the_same_samples_from_the_next_epoch_on(
    fits: Fits, proof: Proof, knob: str, change: tuple[int, int]
) -> None:
    found = prove(proof, fits, knob)
    proof.unchanged(found["weights"], fits[0]["unchanged"]["weights"])
    assert [stage for stage, *_ in found["outcomes"]] == ["scheduled", "applied"]
    ((step, *values),) = applied(found)
    assert tuple(values) == change
    assert step >= BATCHES


@pytest.mark.live_safe(
    framework="Lightning",
    knob="accumulate_grad_batches",
    effect="learning",
    when="next step at a multiple of the new value",
    note="at the latest the end of the epoch",
)
@pytest.mark.parametrize(
    ("name", "changes", "steps"),
    [
        ("aligned", [(9, 3)], 22),  # asked at batch 7
        ("unaligned", [(8, 4)], 18),
        ("back", [(12, 2), (26, 1)], 32),
        ("never aligned", [(23, 23)], 26),
    ],
)
def test_accumulation_changes_where_lightning_begins_a_step(
    fits: Fits, proof: Proof, name: str, changes: list[tuple[int, int]], steps: int
) -> None:
    found = prove(proof, fits, name)
    counts = found["accumulated"]
    assert len(counts) == EPOCHS * BATCHES
    assert [(i, b) for i, (a, b) in enumerate(itertools.pairwise(counts), 2) if a != b] == changes
    assert found["step"] == steps
    assert found["plans"][-1] == steps
    assert sum(row["samples"] for _, row in found["rows"] if "samples" in row) == SAMPLES * EPOCHS
    for at, batches in changes:
        assert at % batches == 0 or at % BATCHES == 0


@pytest.mark.live_safe(
    framework="Lightning",
    knob="optimizer1_lr",
    effect="learning",
    when="next step",
    note="manual optimization with two optimizers",
)
def test_two_optimizers_have_knobs_of_their_own(fits: Fits, proof: Proof) -> None:
    found = prove(proof, fits, "manual")
    assert applied(found) == [(10, 0.01, 0.5)]
    assert found["knobs"]["optimizer0_lr"] == 0.01
    assert "accumulate_grad_batches" not in found["knobs"]
    assert "gradient_clip_val" not in found["knobs"]
    assert [step for step, row in found["rows"] if "samples" in row] == list(range(0, 96, 2))
    assert found["plans"] == [48, 96]  # each batch takes two steps


@pytest.mark.live_safe(
    framework="Lightning",
    knob="lr",
    effect="learning",
    when="next step",
    note="ModelParallelStrategy with FSDP2; weight_decay and the betas as well",
)
@pytest.mark.live_safe(
    framework="Lightning",
    knob="accumulate_grad_batches",
    effect="learning",
    when="next step at a multiple of the new value",
    note="ModelParallelStrategy with FSDP2",
)
@pytest.mark.parametrize(("name", "same"), [("sharded lr", "lr"), ("sharded aligned", "aligned")])
def test_sharded_weights_are_those_of_ddp_after_the_same_change(
    fits: Fits, proof: Proof, name: str, same: str
) -> None:
    if name not in fits[0]:
        pytest.skip("this version of Lightning has no ModelParallelStrategy")
    found = prove(proof, fits, name)
    assert applied(found) == applied(fits[0][same])
    assert found["step"] == fits[0][same]["step"]
    assert "gradient_clip_val" not in found["knobs"]
    last, expected = found["weights"][-1], fits[0][same]["weights"][-1]
    assert last == pytest.approx(expected, abs=1e-5)


# commands ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_written_by_all_ranks_and_its_path_reported(fits: Fits, proof: Proof) -> None:
    found = prove(proof, fits, "checkpoint")
    proof.unchanged(found["weights"], fits[0]["unchanged"]["weights"])
    ((stage, code, step, _, _, fields),) = found["outcomes"]
    assert (stage, code, step) == ("applied", "written", 5)
    assert fields["path"].endswith("hoptui-step=5.ckpt")


def test_a_pause_holds_both_ranks_and_changes_nothing(fits: Fits, proof: Proof) -> None:
    found = prove(proof, fits, "pause")
    proof.unchanged(found["weights"], fits[0]["unchanged"]["weights"])
    assert [stage for stage, *_ in found["outcomes"]] == ["applied"]


def test_a_stop_ends_both_ranks_after_the_same_step(fits: Fits) -> None:
    assert [rank["stop"]["step"] for rank in fits] == [5, 5]
    assert fits[0]["stop"]["endings"] == [[None, ""]]


def test_a_number_of_batches_that_a_scheduler_sets_is_declined(fits: Fits) -> None:
    found = fits[0]["scheduled"]
    assert "accumulate_grad_batches" not in found["knobs"]
    ((stage, code, *_, fields),) = found["outcomes"]
    assert (stage, code) == ("rejected", "declined")
    assert "GradientAccumulationScheduler" in fields["reason"]
    assert set(found["accumulated"]) == {2}


def test_a_validation_is_a_phase_and_its_metrics_are_in_the_row_of_the_last_step(fits: Fits) -> None:
    found = fits[0]["validation"]
    assert found["weights"] == fits[0]["unchanged"]["weights"]
    assert [step for step, row in found["rows"] if "val_loss" in row] == [11, 23, 35, 47]
    assert [step for step, row in found["rows"] if "phase/validation" in row] == [12, 24, 36, 48]


def test_a_row_counts_the_samples_of_all_ranks(fits: Fits) -> None:
    rows = [row for _, row in fits[0]["unchanged"]["rows"] if "samples" in row]
    assert [row["samples"] for row in rows] == [4] * (EPOCHS * BATCHES)
    assert {"phase/data", "phase/forward", "phase/backward", "phase/optimizer"} <= set(rows[5])
    assert {"train_loss", "lr"} <= set(rows[5])


# one process ------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, time, torch, lightning as L
from pathlib import Path
from torch.utils.data import DataLoader, TensorDataset
import hoptui.integrations.lightning as adapter

class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        if self.global_step == 5 and FITS:
            go = Path(folder, f"go-{FITS.pop()}")
            while not go.exists():
                time.sleep(0.01)
            if MODE == "raises":
                raise RuntimeError("no such sample")
        return self.layer(batch["x"]["inner"]).pow(2).mean()
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layer(batch["x"]["inner"]).pow(2).mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

MODE, folder = sys.argv[1], sys.argv[2]
FITS = [1]
data = DataLoader([{"x": {"inner": torch.randn(4)}} for _ in range(30)], batch_size=3)
callbacks = []
if MODE == "installed":
    adapter.install("installed")
    adapter.install("installed")
elif MODE != "entry point":
    callbacks = adapter.HoptuiCallback(MODE)
def trainer(**more):
    return L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
                     enable_model_summary=False, callbacks=callbacks, default_root_dir=folder, **more)
module = Line()
first = trainer()
if MODE == "twice":
    first.validate(module, data, verbose=False)
first.fit(module, data, data if MODE == "twice" else None)
if MODE == "twice":
    FITS.append(2)
    trainer().fit(module, data)
if MODE in ("installed", "entry point"):
    state = torch.load(first.checkpoint_callback.best_model_path, weights_only=False)
    print([name for name in state["callbacks"] if "ModelCheckpoint" not in name])
"""


def status(node: TestNode, mode: str, folder: Path, **environment: str) -> dict[str, Any]:
    """The status of the run of `SCRIPT`, after its end."""
    viewer = node.viewer()
    name = mode if mode != "entry point" else "Line"
    child = node.start(SCRIPT, mode, str(folder), OMP_NUM_THREADS="1", **environment)

    def trains(restart: int) -> bool:
        assert child.poll() is None, child.communicate()[1][-3000:]
        return any(run.name == name and run.epoch == restart for run in viewer.state().runs)

    for restart in (1, 2) if mode == "twice" else (1,):
        until(partial(trains, restart), seconds=90, what=f"restart {restart} of {name}")
        (folder / f"go-{restart}").touch()
    out, err = child.communicate(timeout=120)
    assert (child.returncode == 0) == (mode != "raises"), err[-3000:]
    return {**node.status_at_end(name), "printed": out, "errors": err}


def test_a_second_fit_is_the_next_restart_of_the_run(node: TestNode, tmp_path: Path) -> None:
    found = status(node, "twice", tmp_path)
    assert found["epoch"] == 2
    assert (found["iteration"], found["total"]) == (10, 10)
    assert found["exit"]["reason"] == "finished"


SLOW_CALLBACK = """
import sys, time, torch, lightning as L
from hoptui.integrations.lightning import HoptuiCallback

class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Slow(L.Callback):
    def on_train_batch_start(self, *_):
        time.sleep(0.05)
    def on_train_batch_end(self, *_):
        time.sleep(0.1)

callbacks = [Slow(), HoptuiCallback("slow")]
if sys.argv[1] == "behind":
    callbacks.reverse()
trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
                    enable_model_summary=False, enable_checkpointing=False, callbacks=callbacks)
trainer.fit(Line(), torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=1))
print("profile" in vars(trainer.profiler))
"""


@pytest.mark.parametrize("place", ["before", "behind"])
def test_the_time_of_another_callback_is_a_phase_of_its_own(node: TestNode, place: str) -> None:
    child = node.start(SLOW_CALLBACK, place, OMP_NUM_THREADS="1", HOPTUI_STACKS="off")
    out, err = child.communicate(timeout=120)
    assert out.strip() == "False", err[-3000:]  # the profiler is as it was
    node.status_at_end("slow")
    rows = node.hoptui("export", "slow", "--source", "run", "--format", "jsonl").stdout.splitlines()
    values = [json.loads(row).get("values", {}) for row in rows]
    full = [row for row in values if "phase/forward" in row]
    median = {
        name: statistics.median(row.get(f"phase/{name}", 0.0) for row in full[1:])
        for name in ("callbacks", "data", "forward", "backward", "optimizer")
    }
    assert median["callbacks"] >= 0.14, median
    assert sum(median.values()) - median["callbacks"] < 0.07, median


def test_an_exception_is_the_end_of_the_run(node: TestNode, tmp_path: Path) -> None:
    found = status(node, "raises", tmp_path)
    assert found["exit"]["reason"] == "exception"
    assert found["iteration"] == 5


@pytest.mark.parametrize("mode", ["installed", "entry point"])
def test_a_script_without_the_callback_can_be_a_run_with_the_same_checkpoints(
    node: TestNode, tmp_path: Path, mode: str
) -> None:
    environment = {}
    if mode == "entry point":  # as pip writes it
        installed = tmp_path / "hoptui-0.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: hoptui\nVersion: 0\n")
        groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
        lines = (
            f"[{group}]\n{name} = {where}\n"
            for group, named in groups.items()
            for name, where in named.items()
        )
        (installed / "entry_points.txt").write_text("".join(lines))
        environment = {"HOPTUI_LIGHTNING": "1", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    found = status(node, mode, tmp_path, **environment)
    assert found["iteration"] == 10
    assert found["printed"].strip().endswith("[]")  # no state of a callback


@pytest.mark.parametrize("value", ["", "0", "off"])
def test_the_entry_point_adds_nothing_unless_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.delenv(adapter.ATTACH, raising=False)
    assert adapter.callbacks_factory() == []
    monkeypatch.setenv(adapter.ATTACH, value)
    assert adapter.callbacks_factory() == []


@pytest.mark.parametrize(("value", "name"), [("1", None), ("my-run", "my-run")])
def test_the_entry_point_adds_a_callback_under_a_name(
    monkeypatch: pytest.MonkeyPatch, value: str, name: str | None
) -> None:
    monkeypatch.setenv(adapter.ATTACH, value)
    (callback,) = adapter.callbacks_factory()
    assert callback.name == name


def test_the_callback_is_one_of_both_packages_and_can_be_sent_to_a_process() -> None:
    callback: Any = adapter.HoptuiCallback("sent", checkpoint_dir="here")
    for package in (L.pytorch, pytorch_lightning):
        assert isinstance(callback, package.Callback)
    for copied in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
        assert isinstance(copied, adapter.HoptuiCallback)
        assert (copied.name, copied.checkpoint_dir, copied.run) == ("sent", "here", None)


def test_importing_the_adapter_imports_no_framework() -> None:
    """Lightning loads the entry point of every installed package with each `Trainer`."""
    code = (
        "import sys, hoptui.integrations.lightning as l; l.callbacks_factory();"
        "print([m for m in ('torch', 'lightning', 'pytorch_lightning', 'zmq') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"HOPTUI": "off"},
    )
    assert done.stdout.strip() == "[]"


def test_the_script_s_own_callback_works_and_an_automatic_one_beside_it_does_not() -> None:
    class Trainer:
        callbacks: list[Any] = []

    own, automatic = adapter.HoptuiCallback("own"), adapter.AutomaticCallback("automatic")
    Trainer.callbacks = [automatic, own]
    assert adapter._first(Trainer) is own
    Trainer.callbacks = [automatic, adapter.AutomaticCallback("another")]
    assert adapter._first(Trainer) is automatic


def test_only_strategies_with_proofs_offer_what_is_learned() -> None:
    from lightning.pytorch import strategies

    mine = type("Mine", (strategies.DDPStrategy,), {"__module__": "train"})
    for kind in (strategies.SingleDeviceStrategy, strategies.DDPStrategy, strategies.FSDPStrategy, mine):
        assert strategy_name(kind) in PROVEN
    for kind in (strategies.DeepSpeedStrategy, strategies.XLAStrategy):
        assert strategy_name(kind) not in PROVEN


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(5, 3), 5),
        ((torch.zeros(5, 3), torch.zeros(5)), 5),
        ({"text": ["a", "b"], "ids": torch.zeros(2, 7)}, 2),
        (["a", "b", "c"], 3),
        ({"nested": [{"deep": torch.zeros(4, 1)}]}, 4),
        (torch.tensor(1.0), None),
        (None, None),
        ({}, None),
    ],
)
def test_the_samples_of_a_batch_are_its_leading_dimension(batch: Any, samples: int | None) -> None:
    assert sample_count(batch) == samples
