"""`HoptuiTracker` in a loop with `accelerate`, with two ranks on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hoptui.protocol.messages import CommandRecord
from tests.conftest import new_node
from tests.integrations.accelerate_rank import BATCHES, ROWS
from tests.integrations.plain_changes import leave
from tests.integrations.proof import Proof
from tests.integrations.rank_pair import rank_pair

pytestmark = pytest.mark.timeout(300)
MODULE = "tests.integrations.accelerate_rank"
EPOCHS = 16
ROUNDED = 1e-5
"""Weights after some hundred steps of AdamW. A compiled model adds in another order."""
COEFFICIENTS = {"lr": 5e-3, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.99}
Found = dict[str, list[dict[str, Any]]]
Outcomes = dict[str, dict[str, list[CommandRecord]]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, Outcomes]:
    """What became of each training, and of each command."""
    folder = tmp_path_factory.mktemp("accelerate")
    live = ("unchanged", "saved", "learning", "compiled", "read", "stopped")
    trainings: list[dict[str, Any]] = [
        *({"name": name, "epochs": EPOCHS} for name in live),
        {"name": "repeated", "epochs": EPOCHS, "repeats": "learning"},
        *(
            {"name": f"without {knob}", "epochs": EPOCHS, "repeats": "learning", "without": knob}
            for knob in COEFFICIENTS
        ),
    ]
    found: Found = {}
    outcomes: Outcomes = {}
    with new_node() as node, rank_pair(node, folder, MODULE, trainings) as pair:
        (folder / "unchanged.gate").touch()
        outcomes["saved"] = pair.steer("saved", ("checkpoint", None), ("pause", None), ("resume", None))
        outcomes["learning"] = pair.steer(
            "learning",
            ("gradient_accumulation_steps", 4),
            ("lr", COEFFICIENTS["lr"]),
            ("gradient_accumulation_steps", 3),
            ("weight_decay", COEFFICIENTS["weight_decay"]),
            ("gradient_accumulation_steps", 8),
            ("beta1", COEFFICIENTS["beta1"]),
            ("beta2", COEFFICIENTS["beta2"]),
        )
        leave("learning", folder, outcomes["learning"])
        outcomes["compiled"] = pair.steer("compiled", ("compile", True), ("compile", False))
        outcomes["read"] = pair.steer("read", ("num_workers", 1), ("prefetch_factor", 4))
        outcomes["stopped"] = pair.steer("stopped", ("stop", None))
        for training in trainings:
            found[str(training["name"])] = pair.results(str(training["name"]))
    return found, outcomes


def applied(trained: tuple[Found, Outcomes], name: str, knob: str) -> list[Any]:
    records = trained[1][name][knob]
    problems = [(record.stage, record.code, record.fields) for record in records if record.stage != "applied"]
    assert not problems
    return [record.effective for record in records]


def prove(trained: tuple[Found, Outcomes], proof: Proof, name: str) -> None:
    ranks = trained[0][name]
    proof.ranks_equal([rank["weights"] for rank in ranks])
    proof.samples(seen=sum(rank["rows"] for rank in ranks), due=2 * ROWS * BATCHES * EPOCHS)


@pytest.mark.live_safe(
    framework="accelerate",
    knob="gradient_accumulation_steps",
    effect="learning",
    when="next step whose micro-batches are a multiple of it",
)
def test_accumulation_changes_when_it_is_aligned(trained: tuple[Found, Outcomes], proof: Proof) -> None:
    assert applied(trained, "learning", "gradient_accumulation_steps") == [4, 3, 8]
    prove(trained, proof, "learning")
    assert trained[0]["learning"][0]["steps"] < trained[0]["unchanged"][0]["steps"]
    assert trained[0]["learning"][0]["weights"] == trained[0]["repeated"][0]["weights"]


@pytest.mark.parametrize(
    "knob",
    [
        pytest.param(
            "lr",
            marks=pytest.mark.live_safe(
                framework="accelerate", knob="lr", effect="learning", when="next step"
            ),
        ),
        pytest.param(
            "weight_decay",
            marks=pytest.mark.live_safe(
                framework="accelerate", knob="weight_decay", effect="learning", when="next step"
            ),
        ),
        pytest.param(
            "beta1",
            marks=pytest.mark.live_safe(
                framework="accelerate", knob="beta1", effect="learning", when="next step"
            ),
        ),
        pytest.param(
            "beta2",
            marks=pytest.mark.live_safe(
                framework="accelerate", knob="beta2", effect="learning", when="next step"
            ),
        ),
    ],
)
def test_a_coefficient(trained: tuple[Found, Outcomes], proof: Proof, knob: str) -> None:
    """The weights are those of a loop that plain code changes at the same steps."""
    assert applied(trained, "learning", knob) == [pytest.approx(COEFFICIENTS[knob])]
    prove(trained, proof, "learning")
    live, plain, without = (
        trained[0][name][0]["weights"] for name in ("learning", "repeated", f"without {knob}")
    )
    assert live == plain
    assert live != without, "the change makes a difference"


@pytest.mark.live_safe(
    framework="accelerate", knob="compile", effect="speed", when="the step after the next one, which compiles"
)
def test_a_compiled_model_learns_the_same(trained: tuple[Found, Outcomes], proof: Proof) -> None:
    assert applied(trained, "compiled", "compile") == [True, False]
    prove(trained, proof, "compiled")
    found = trained[0]
    proof.unchanged(found["compiled"][0]["weights"], found["unchanged"][0]["weights"], tolerance=ROUNDED)


@pytest.mark.live_safe(
    framework="accelerate",
    knob="num_workers",
    effect="speed",
    when="next epoch",
    note="from 0 too, where the dataset may be read by another process",
)
@pytest.mark.live_safe(framework="accelerate", knob="prefetch_factor", effect="speed", when="next epoch")
@pytest.mark.parametrize(("knob", "value"), [("num_workers", 1), ("prefetch_factor", 4)])
def test_data_workers_read_the_same_samples(
    trained: tuple[Found, Outcomes], proof: Proof, knob: str, value: int
) -> None:
    assert applied(trained, "read", knob) == [value]
    prove(trained, proof, "read")
    proof.unchanged(trained[0]["read"][0]["weights"], trained[0]["unchanged"][0]["weights"])


@pytest.mark.live_safe(
    framework="accelerate", knob="checkpoint", effect="speed", when="before the next micro-batch"
)
def test_a_checkpoint_is_written_by_all_ranks(trained: tuple[Found, Outcomes], proof: Proof) -> None:
    (record,) = trained[1]["saved"]["checkpoint"]
    assert (record.stage, record.code) == ("applied", "written")
    assert Path(record.fields["path"]).name.startswith("hoptui-step-")
    prove(trained, proof, "saved")
    proof.unchanged(trained[0]["saved"][0]["weights"], trained[0]["unchanged"][0]["weights"])


def test_a_stop_ends_the_loop_of_all_ranks(trained: tuple[Found, Outcomes]) -> None:
    applied(trained, "stopped", "stop")
    first, second = trained[0]["stopped"]
    assert first["weights"] == second["weights"]
    assert first["steps"] == second["steps"] < trained[0]["unchanged"][0]["steps"]
