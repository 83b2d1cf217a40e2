"""TorchTitan: what two ranks of its trainer do when knobs change, and what a run shows of it.

The trainer is the real one, on the CPU. `titan_cpu` has what it needs for that.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TestNode, until
from tests.integrations.proof import Proof
from tests.integrations.ranks import both

pytestmark = pytest.mark.timeout(600)
STEPS, DUE, ROWS, LENGTH = 6, 2, 2, 16
"""As in `titan_trainings` and `titan_cpu`, which only processes of their own import."""
TOKENS = 2 * ROWS * LENGTH
"""Of a step of two ranks."""
Trainings = list[dict[str, Any]]


@pytest.fixture(scope="module")
def trainings() -> Trainings:
    """What each training gave, by rank and name."""
    return both("tests.integrations.titan_trainings")


def prove(proof: Proof, trainings: Trainings, name: str, steps: int = STEPS) -> dict[str, Any]:
    """Two ranks took the same steps with the same weights and settings, and saw all samples.

    Return the training on rank 0.
    """
    of_ranks: list[dict[str, Any]] = [rank[name] for rank in trainings]
    proof.ranks_equal([found["weights"] for found in of_ranks])
    proof.samples(seen=sum(found["seen"] for found in of_ranks), due=steps * ROWS * 2)
    assert of_ranks[0]["settings"] == of_ranks[1]["settings"], "the ranks changed at different steps"
    assert [found["step"] for found in of_ranks] == [steps, steps]
    return of_ranks[0]


def prove_change(proof: Proof, trainings: Trainings, knob: str, before: float, value: float) -> None:
    """A knob of what is learned took effect on both ranks in the step after the command."""
    found = prove(proof, trainings, knob)
    assert found["outcomes"] == [["applied", "", DUE, before, value, {}]]
    assert [each[knob] for each in found["settings"]] == [before] * DUE + [value] * (STEPS - DUE)
    same = trainings[0]["unchanged"]["weights"]
    assert found["weights"][:DUE] == same[:DUE]
    assert found["weights"][DUE] != same[DUE]


# One test for each row of the table. A change that is due at a step is applied at the next boundary.


@pytest.mark.live_safe(
    framework="TorchTitan", knob="lr", effect="learning", when="next step", note="scales the schedule"
)
def test_the_learning_rate_changes_on_both_ranks(trainings: Trainings, proof: Proof) -> None:
    prove_change(proof, trainings, "lr", 0.01, 0.002)
    rates = [each["rate"] for each in trainings[0]["unchanged"]["settings"]]
    assert [each["rate"] for each in trainings[0]["lr"]["settings"]] == pytest.approx(
        [*rates[:DUE], *(rate / 5 for rate in rates[DUE:])]
    )


@pytest.mark.live_safe(framework="TorchTitan", knob="weight_decay", effect="learning", when="next step")
def test_the_weight_decay_changes_on_both_ranks(trainings: Trainings, proof: Proof) -> None:
    prove_change(proof, trainings, "weight_decay", 0.1, 0.5)


@pytest.mark.live_safe(framework="TorchTitan", knob="beta1", effect="learning", when="next step")
def test_the_first_beta_changes_on_both_ranks(trainings: Trainings, proof: Proof) -> None:
    prove_change(proof, trainings, "beta1", 0.9, 0.5)


@pytest.mark.live_safe(framework="TorchTitan", knob="beta2", effect="learning", when="next step")
def test_the_second_beta_changes_on_both_ranks(trainings: Trainings, proof: Proof) -> None:
    prove_change(proof, trainings, "beta2", 0.95, 0.8)


@pytest.mark.live_safe(framework="TorchTitan", knob="max_norm", effect="learning", when="next step")
def test_the_limit_of_gradients_changes_on_both_ranks(trainings: Trainings, proof: Proof) -> None:
    prove_change(proof, trainings, "max_norm", 1.0, 0.01)


@pytest.mark.live_safe(framework="TorchTitan", knob="log_freq", effect="speed", when="next step")
@pytest.mark.live_safe(
    framework="TorchTitan", knob="interval", effect="speed", when="next step", note="of checkpoints"
)
@pytest.mark.live_safe(framework="TorchTitan", knob="pause", effect="speed", when="next step")
def test_what_is_fast_changes_nothing_that_is_learned(trainings: Trainings, proof: Proof) -> None:
    found = prove(proof, trainings, "speed")
    proof.unchanged(found["weights"], trainings[0]["unchanged"]["weights"])
    assert [outcome[:5] for outcome in found["outcomes"]] == [
        ["applied", "", DUE, 100, 2],
        ["applied", "", DUE, 1000, 3],
        ["applied", "", DUE, None, None],
    ]
    assert [rank["speed"]["logged"] for rank in trainings] == [[1, 4, 6]] * 2
    assert [step + 1 for step, row in found["rows"] if "loss" in row] == [1, 4, 6]
    assert trainings[0]["unchanged"]["logged"] == [1]
    assert found["saved"][-1] == ["step-3", "step-6"]
    assert trainings[0]["unchanged"]["saved"][-1] == ["step-6"], (
        "TorchTitan writes one at the end in any case"
    )


@pytest.mark.live_safe(
    framework="TorchTitan",
    knob="checkpoint",
    effect="speed",
    when="next step",
    note="the command ends when it is complete, with `async_mode` as well",
)
def test_a_checkpoint_is_complete_before_the_next_step(trainings: Trainings, proof: Proof) -> None:
    found = prove(proof, trainings, "checkpoint")
    proof.unchanged(found["weights"], trainings[0]["unchanged"]["weights"])
    ((stage, code, step, _, _, fields),) = found["outcomes"]
    assert (stage, code, step) == ("applied", "written", DUE)
    assert fields["path"].endswith(f"checkpoint/step-{DUE}")
    assert [rank["checkpoint"]["saved"][: DUE + 1] for rank in trainings] == [[[]] * DUE + [["step-2"]]] * 2
    assert found["settings"] == trainings[0]["unchanged"]["settings"], "the interval is as before"


@pytest.mark.live_safe(framework="TorchTitan", knob="stop", effect="learning", when="next step")
def test_a_stop_ends_both_ranks_after_the_same_step(trainings: Trainings, proof: Proof) -> None:
    found = prove(proof, trainings, "stop", steps=DUE)
    assert [outcome[:3] for outcome in found["outcomes"]] == [
        ["applied", "written", DUE],
        ["applied", "", DUE],
    ]
    assert found["weights"] == trainings[0]["unchanged"]["weights"][:DUE]
    assert found["saved"][-1] == ["step-2"], "no last one, but the one that was asked for"


# the training itself ----------------------------------------------------------------------------------------


def test_the_adapter_changes_nothing_by_itself(trainings: Trainings) -> None:
    without, unchanged = trainings[0]["without hoptui"], trainings[0]["unchanged"]
    for what in ("weights", "settings", "logged", "saved", "seen"):
        assert unchanged[what] == without[what], what
    assert len(set(without["weights"])) == STEPS
    assert (without["total"], unchanged["total"]) == (None, STEPS)


def test_an_error_of_the_adapter_on_one_rank_ends_no_training(trainings: Trainings) -> None:
    for rank in trainings:
        assert rank["faulty"]["weights"] == trainings[0]["without hoptui"]["weights"]
        assert rank["faulty"]["step"] == STEPS


def test_a_row_has_the_tokens_of_all_ranks(trainings: Trainings) -> None:
    found = trainings[0]["unchanged"]
    assert [(step, row["tokens"]) for step, row in found["rows"]] == [(n, TOKENS) for n in range(STEPS)]
    assert {"loss", "max_loss", "grad_norm", "lr/AdamW", "tokens_per_s"} <= set(found["rows"][0][1])


# from a checkpoint on ---------------------------------------------------------------------------------------


def test_a_checkpoint_of_a_command_goes_on_as_if_nothing_had_been(trainings: Trainings) -> None:
    for rank in trainings:
        assert rank["resumed"]["weights"] == rank["unchanged"]["weights"][DUE:]
    rows = trainings[0]["resumed"]["rows"]
    assert [(step, row["tokens"]) for step, row in rows] == [(n, TOKENS) for n in range(DUE, STEPS)]


def test_the_knobs_of_a_resumed_training_are_those_of_the_loaded_optimizer(trainings: Trainings) -> None:
    """Loading gives an optimizer new parameter groups."""
    rank = trainings[0]
    found = rank["resumed and changed"]
    assert [outcome[:5] for outcome in found["outcomes"][:2]] == [
        ["applied", "", DUE + 2, 0.1, 0.5],
        ["applied", "", DUE + 2, 0.01, 0.002],
    ]
    assert [each["weight_decay"] for each in found["settings"]] == [0.1, 0.1, 0.5]
    rates = [each["rate"] for each in rank["unchanged"]["settings"][DUE:]]
    assert [each["rate"] for each in found["settings"]] == pytest.approx([rates[0], rates[1], rates[2] / 5])
    assert trainings[1]["resumed and changed"]["settings"] == found["settings"]
    assert found["weights"][:2] == rank["resumed"]["weights"][:2]
    assert found["weights"][2] != rank["resumed"]["weights"][2]


def test_a_checkpoint_keeps_the_weight_decay_and_not_the_base_of_the_schedule(trainings: Trainings) -> None:
    for rank in trainings:
        assert [each["weight_decay"] for each in rank["resumed after a change"]["settings"]] == [0.5]
        assert [each["lr"] for each in rank["resumed after a change"]["settings"]] == [0.01]


# TorchTitan's own way to start ------------------------------------------------------------------------------

CONFIGS = """
from pathlib import Path
from hoptui.integrations import torchtitan
from tests.integrations.titan_cpu import configuration
torchtitan.install("small-llama")
def small():
    return configuration(Path("."), 10**6)
"""
TRAIN = """
import runpy, sys
import tests.integrations.titan_cpu
sys.path.insert(0, sys.argv[1])
sys.argv[1:] = ["--module", "configs", "--config", "small", "--dump_folder", sys.argv[1]]
runpy.run_module("torchtitan.train", run_name="__main__")
"""
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}


def test_a_training_of_a_config_module_is_steered_and_stopped(node: TestNode, tmp_path: Path) -> None:
    (tmp_path / "configs.py").write_text(CONFIGS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    child = node.start(TRAIN, str(tmp_path), **ALONE, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    viewer = node.viewer()

    def training() -> bool:
        assert child.poll() is None, child.communicate()[1][-4000:]
        run = next((run for run in viewer.state().runs if run.name == "small-llama"), None)
        vital = viewer.fetch().vitals.get(run.run) if run is not None else None
        return vital is not None and (vital.step or 0) > 3

    until(training, seconds=120, what="the first steps")
    wanted = {"lr": 0.002, "weight_decay": 0.5, "max_norm": 3.0, "log_freq": 1, "interval": 10**5}
    for words in (
        ("set", "small-llama", *(f"{knob}={value}" for knob, value in wanted.items()), "--yes"),
        ("checkpoint", "small-llama"),
    ):
        done = node.hoptui(*words)
        assert done.returncode == 0, (done.stdout, done.stderr)
    assert len(list(tmp_path.glob("checkpoint/step-*/.metadata"))) == 1
    status = json.loads(node.hoptui("status", "small-llama", "--json").stdout)
    assert {name: knob["value"] for name, knob in status["knobs"].items() if name in wanted} == wanted
    assert status["total"] == 10**6
    assert status["iteration"] > 3
    assert status["metrics"]["tokens"] == ROWS * LENGTH
    assert status["metrics"]["lr/AdamW"] == pytest.approx(0.002, rel=0.01)
    assert all(status["metrics"][name] > 0 for name in ("tokens_per_s", "loss", "grad_norm"))

    assert node.hoptui("stop", "small-llama", "--yes").returncode == 0
    printed, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors[-4000:]
    assert "Process group destroyed" in printed, "TorchTitan came to its own end"
    ended = node.status_at_end("small-llama")
    assert ended["exit"]["reason"] == "stopped"
