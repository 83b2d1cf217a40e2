"""`HoptuiCallback` in `transformers.Trainer` with two ranks on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hoptui.integrations.trainer_internals import KNOWS_FSDP2
from hoptui.integrations.versions import older
from hoptui.protocol.messages import CommandRecord
from tests.conftest import new_node
from tests.integrations.plain_changes import leave
from tests.integrations.proof import Proof
from tests.integrations.rank_pair import rank_pair
from tests.integrations.transformers_rank import ROWS, SEQUENCES

pytestmark = pytest.mark.timeout(600)
MODULE = "tests.integrations.transformers_rank"
STEPS, LEARNING_STEPS = 100, 60
ROUNDED = 1e-6
"""Weights of float32 after 100 steps of SGD. The gradients of the parts are summed in another order."""
Found = dict[str, list[dict[str, Any]]]
Outcomes = dict[str, dict[str, list[CommandRecord]]]
FREQUENT = {"logging_steps": 20, "save_strategy": "steps", "save_steps": 10_000, "save_only_model": True}
EVAL = {"eval_strategy": "steps", "eval_steps": 10_000}
ACCUMULATED = {"gradient_accumulation_steps": 2}
ADAMW = {"weight_decay": 0.01, "optim": "adamw_torch", "learning_rate": 1e-2}
COEFFICIENTS = {"lr": 5e-3, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.99, "max_grad_norm": 0.01}
SPLITS = [("micro_batch_split", parts) for parts in (4, 2, 3)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, Outcomes]:
    """What became of each training, and of each command."""
    folder = tmp_path_factory.mktemp("transformers")
    trainings = [
        {"name": "unchanged", "steps": STEPS},
        {"name": "split", "steps": STEPS},
        {"name": "steps", "steps": STEPS, "options": FREQUENT | EVAL},
        {"name": "learning", "steps": LEARNING_STEPS, "options": ADAMW},
        {"name": "repeated", "steps": LEARNING_STEPS, "options": ADAMW, "repeats": "learning"},
        *(
            {
                "name": f"without {knob}",
                "steps": LEARNING_STEPS,
                "options": ADAMW,
                "repeats": "learning",
                "without": knob,
            }
            for knob in COEFFICIENTS
        ),
        {"name": "accumulated", "steps": 40, "options": ACCUMULATED},
        {"name": "accumulated split", "steps": 40, "options": ACCUMULATED},
        {"name": "fsdp2", "steps": 40, "wrap": "fsdp2"},
        {"name": "fsdp2 split", "steps": 40, "wrap": "fsdp2"},
        {"name": "fsdp1", "steps": 40, "wrap": "fsdp1"},
        {"name": "fsdp1 split", "steps": 40, "wrap": "fsdp1"},
        {"name": "stopped", "steps": STEPS, "options": FREQUENT},
        {"name": "recomputed", "steps": STEPS},
        {"name": "compiled", "steps": STEPS},
        {"name": "from none", "steps": STEPS},
        {"name": "read", "steps": STEPS, "options": {"dataloader_num_workers": 2}},
    ]
    found: Found = {}
    outcomes: Outcomes = {}
    with new_node() as node, rank_pair(node, folder, MODULE, trainings) as pair:
        for training in trainings:
            (folder / f"{training['name']}.gate").touch() if " " not in str(training["name"]) else None
        for name in ("split", "steps", "learning", "stopped", "recomputed", "compiled", "read"):
            (folder / f"{name}.gate").unlink()
        outcomes["split"] = pair.steer("split", *SPLITS)
        outcomes["steps"] = pair.steer(
            "steps", ("logging_steps", 7), ("save_steps", 30), ("eval_steps", 30), ("checkpoint", None)
        )
        outcomes["learning"] = pair.steer(
            "learning",
            *COEFFICIENTS.items(),
            ("gradient_accumulation_steps", 2),
            ("per_device_train_batch_size", 4),
            ("eval_steps", 10),
            ("ddp_bucket_mb", 50),
        )
        leave("learning", folder, outcomes["learning"])
        for name in ("accumulated split", "fsdp2 split", "fsdp1 split"):
            outcomes[name] = pair.steer(name, ("micro_batch_split", 4), ("micro_batch_split", 3))
        outcomes["stopped"] = pair.steer("stopped", ("pause", None), ("resume", None), ("stop", None))
        outcomes["recomputed"] = pair.steer(
            "recomputed", *(("gradient_checkpointing", on) for on in (True, False, True))
        )
        outcomes["compiled"] = pair.steer("compiled", ("compile", True), ("compile", False))
        outcomes["from none"] = pair.steer("from none", ("dataloader_num_workers", 1))
        outcomes["read"] = pair.steer(
            "read", ("dataloader_num_workers", 1), ("dataloader_prefetch_factor", 5)
        )
        for training in trainings:
            found[str(training["name"])] = pair.results(str(training["name"]))
    return found, outcomes


def due(steps: int) -> int:
    """Rows of both ranks in so many micro-batches: the last step of an epoch is smaller."""
    whole, rest = divmod(steps, 10)
    return whole * SEQUENCES + rest * 2 * ROWS


def applied(trained: tuple[Found, Outcomes], name: str, knob: str) -> list[Any]:
    records = trained[1][name][knob]
    problems = [(record.stage, record.code, record.fields) for record in records if record.stage != "applied"]
    assert not problems
    return [record.effective for record in records]


def prove(trained: tuple[Found, Outcomes], proof: Proof, name: str, micro_batches: int = STEPS) -> None:
    ranks = trained[0][name]
    proof.ranks_equal([rank["weights"] for rank in ranks])
    proof.samples(seen=sum(rank["rows"] for rank in ranks), due=due(micro_batches))


@pytest.mark.live_safe(framework="HF Trainer", knob="micro_batch_split", effect="speed", when="next step")
def test_a_split_of_the_micro_batch_changes_no_weight(trained: tuple[Found, Outcomes], proof: Proof) -> None:
    assert applied(trained, "split", "micro_batch_split") == [4, 2, 3]
    # twice as many calls of training_step of the base class, and one of the override
    prove(trained, proof, "split")
    found = trained[0]
    proof.unchanged(found["split"][0]["weights"], found["unchanged"][0]["weights"], tolerance=ROUNDED)
    for changed, unchanged in zip(found["split"][0]["log"], found["unchanged"][0]["log"], strict=True):
        assert changed["loss"] == pytest.approx(unchanged["loss"], rel=1e-5)


@pytest.mark.live_safe(
    framework="HF Trainer",
    knob="micro_batch_split",
    effect="speed",
    when="next step, with gradient accumulation",
)
def test_a_split_goes_together_with_accumulation(trained: tuple[Found, Outcomes], proof: Proof) -> None:
    assert applied(trained, "accumulated split", "micro_batch_split") == [4, 3]
    prove(trained, proof, "accumulated split", 80)
    found = trained[0]
    proof.unchanged(
        found["accumulated split"][0]["weights"], found["accumulated"][0]["weights"], tolerance=ROUNDED
    )


@pytest.mark.live_safe(
    framework="HF Trainer", knob="micro_batch_split", effect="speed", when="next step, under FSDP2"
)
@pytest.mark.live_safe(
    framework="HF Trainer", knob="micro_batch_split", effect="speed", when="next step, under FSDP"
)
@pytest.mark.parametrize("kind", ["fsdp2", "fsdp1"])
def test_a_split_of_a_sharded_model(trained: tuple[Found, Outcomes], proof: Proof, kind: str) -> None:
    if kind == "fsdp2" and older("accelerate", KNOWS_FSDP2):
        records = trained[1]["fsdp2 split"]["micro_batch_split"]
        assert [(record.stage, record.code) for record in records] == [("rejected", "declined")] * 2
        pytest.skip("the split is declined with this version of accelerate")
    assert applied(trained, f"{kind} split", "micro_batch_split") == [4, 3]
    prove(trained, proof, f"{kind} split", 40)
    found = trained[0]
    proof.unchanged(found[f"{kind} split"][0]["weights"], found[kind][0]["weights"], tolerance=ROUNDED)


@pytest.mark.live_safe(
    framework="HF Trainer", knob="gradient_checkpointing", effect="speed", when="next step"
)
def test_recomputed_activations_change_no_weight(trained: tuple[Found, Outcomes], proof: Proof) -> None:
    assert applied(trained, "recomputed", "gradient_checkpointing") == [True, False, True]
    prove(trained, proof, "recomputed")
    found = trained[0]
    proof.unchanged(found["recomputed"][0]["weights"], found["unchanged"][0]["weights"])


@pytest.mark.live_safe(
    framework="HF Trainer", knob="compile", effect="speed", when="the step after the next one, which compiles"
)
def test_a_compiled_model_learns_the_same(trained: tuple[Found, Outcomes], proof: Proof) -> None:
    assert applied(trained, "compiled", "compile") == [True, False]
    prove(trained, proof, "compiled")
    found = trained[0]
    proof.unchanged(found["compiled"][0]["weights"], found["unchanged"][0]["weights"], tolerance=ROUNDED)


@pytest.mark.live_safe(
    framework="HF Trainer", knob="dataloader_num_workers", effect="speed", when="next epoch"
)
@pytest.mark.live_safe(
    framework="HF Trainer", knob="dataloader_prefetch_factor", effect="speed", when="next epoch"
)
@pytest.mark.parametrize(
    ("knob", "value"), [("dataloader_num_workers", 1), ("dataloader_prefetch_factor", 5)]
)
def test_other_data_workers_read_the_same_samples(
    trained: tuple[Found, Outcomes], proof: Proof, knob: str, value: int
) -> None:
    assert applied(trained, "read", knob) == [value]
    assert (trained[1]["read"][knob][0].step or 0) >= 10  # ten steps are an epoch
    prove(trained, proof, "read")
    found = trained[0]
    proof.unchanged(found["read"][0]["weights"], found["unchanged"][0]["weights"])


@pytest.mark.live_safe(
    framework="HF Trainer",
    knob="dataloader_num_workers",
    effect="speed",
    when="next epoch",
    note="from 0, where the dataset may be read by another process",
)
def test_workers_read_what_the_training_read_itself(trained: tuple[Found, Outcomes], proof: Proof) -> None:
    assert applied(trained, "from none", "dataloader_num_workers") == [1]
    prove(trained, proof, "from none")
    found = trained[0]
    proof.unchanged(found["from none"][0]["weights"], found["unchanged"][0]["weights"])


@pytest.mark.live_safe(framework="HF Trainer", knob="logging_steps", effect="speed", when="next step")
def test_logging_steps(trained: tuple[Found, Outcomes], proof: Proof) -> None:
    assert applied(trained, "steps", "logging_steps") == [7]
    prove(trained, proof, "steps")
    found = trained[0]
    proof.unchanged(found["steps"][0]["weights"], found["unchanged"][0]["weights"])
    assert found["steps"][0]["log"][-1]["step"] % 7 == 0


@pytest.mark.live_safe(framework="HF Trainer", knob="save_steps", effect="speed", when="next step")
def test_save_steps(trained: tuple[Found, Outcomes], proof: Proof) -> None:
    assert applied(trained, "steps", "save_steps") == [30]
    prove(trained, proof, "steps")
    found = trained[0]
    proof.unchanged(found["steps"][0]["weights"], found["unchanged"][0]["weights"])
    assert "checkpoint-90" in found["steps"][0]["saved"]


@pytest.mark.live_safe(framework="HF Trainer", knob="eval_steps", effect="speed", when="next step")
def test_eval_steps(trained: tuple[Found, Outcomes], proof: Proof) -> None:
    assert applied(trained, "steps", "eval_steps") == [30]
    prove(trained, proof, "steps")
    found = trained[0]
    proof.unchanged(found["steps"][0]["weights"], found["unchanged"][0]["weights"])
    assert found["steps"][0]["evals"] >= 1


@pytest.mark.live_safe(framework="HF Trainer", knob="lr", effect="learning", when="next step")
@pytest.mark.live_safe(framework="HF Trainer", knob="weight_decay", effect="learning", when="next step")
@pytest.mark.live_safe(framework="HF Trainer", knob="beta1", effect="learning", when="next step")
@pytest.mark.live_safe(framework="HF Trainer", knob="beta2", effect="learning", when="next step")
@pytest.mark.live_safe(framework="HF Trainer", knob="max_grad_norm", effect="learning", when="next step")
@pytest.mark.parametrize("knob", list(COEFFICIENTS))
def test_a_coefficient(trained: tuple[Found, Outcomes], proof: Proof, knob: str) -> None:
    """The weights are those of a training that plain code changes at the same steps."""
    assert applied(trained, "learning", knob) == [pytest.approx(COEFFICIENTS[knob])]
    prove(trained, proof, "learning", LEARNING_STEPS)
    live, plain, without = (
        trained[0][name][0]["weights"] for name in ("learning", "repeated", f"without {knob}")
    )
    assert live == plain
    assert live != without, "the change makes a difference"


@pytest.mark.parametrize(
    "knob",
    [
        "gradient_accumulation_steps",
        "per_device_train_batch_size",
        "eval_steps",
        "ddp_bucket_mb",
    ],
)
def test_what_is_unsafe_is_refused_with_the_reason(trained: tuple[Found, Outcomes], knob: str) -> None:
    (record,) = trained[1]["learning"][knob]
    assert (record.stage, record.code) == ("rejected", "declined")
    assert record.fields["reason"]


@pytest.mark.live_safe(framework="HF Trainer", knob="checkpoint", effect="speed", when="after the step")
def test_a_checkpoint_ends_when_it_is_written(trained: tuple[Found, Outcomes], proof: Proof) -> None:
    (record,) = trained[1]["steps"]["checkpoint"]
    assert (record.stage, record.code) == ("applied", "written")
    name = Path(record.fields["path"]).name
    assert name in trained[0]["steps"][0]["saved"]
    prove(trained, proof, "steps")
    proof.unchanged(trained[0]["steps"][0]["weights"], trained[0]["unchanged"][0]["weights"])


def test_stop_and_pause_are_of_all_ranks(trained: tuple[Found, Outcomes]) -> None:
    for verb in ("pause", "resume", "stop"):
        applied(trained, "stopped", verb)
    first, second = trained[0]["stopped"]
    assert first["weights"] == second["weights"]
    assert first["steps"] == second["steps"] < STEPS
