"""Two ranks on two GPUs, through NCCL: what the CPU cannot prove. Skipped where there are fewer GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hoptui.protocol.messages import CommandRecord
from tests.conftest import new_node
from tests.integrations.rank_pair import rank_pair
from tests.integrations.ranks import both

if torch.cuda.device_count() < 2:
    pytest.skip("needs two GPUs", allow_module_level=True)
from tests.integrations.lightning_fits import EPOCHS, SAMPLES

pytestmark = [
    pytest.mark.timeout(250),
    pytest.mark.filterwarnings("default"),  # those of drivers and compilers differ from machine to machine
]
MODULE = "tests.integrations.transformers_rank"
ROUNDED = 1e-5
"""GPUs add gradients in any order."""
LIMIT_S = 100.0
STEPS = 40
SHARDED = {"fsdp": "full_shard", "ddp_backend": "nccl"}
LAYER = {"transformer_layer_cls_to_wrap": ["GPT2Block"]}
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "train_batch_size": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
}
KINDS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp1": SHARDED | {"fsdp_config": LAYER | {"version": 1}},
    "fsdp2": SHARDED | {"fsdp_config": LAYER | {"version": 2}},
}
Found = dict[str, list[dict[str, Any]]]
Outcomes = dict[str, dict[str, list[CommandRecord]]]


@pytest.fixture(scope="module", params=[*KINDS, "deepspeed"])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Found, Outcomes]:
    """The kind of training, what became of the trainings, and of each command."""
    kind = request.param
    if kind == "deepspeed":
        pytest.importorskip("deepspeed")
    folder = tmp_path_factory.mktemp(kind)
    options = KINDS.get(kind, {"deepspeed": DEEPSPEED})
    trainings = [{"name": name, "steps": STEPS, "options": options} for name in ("whole", "split", "lr")]
    (folder / "whole.gate").touch()
    outcomes: Outcomes = {}
    with new_node() as node, rank_pair(node, folder, MODULE, trainings, gpus=True) as pair:
        outcomes["split"] = pair.steer("split", ("micro_batch_split", 4), ("micro_batch_split", 3))
        outcomes["lr"] = pair.steer("lr", ("lr", 0.1), ("max_grad_norm", 0.5), ("stop", None))
        found = {name: pair.results(name) for name in ("whole", "split", "lr")}
    return kind, found, outcomes


def test_a_split_changes_no_weight_or_is_refused(trained: tuple[str, Found, Outcomes]) -> None:
    kind, found, outcomes = trained
    records = outcomes["split"]["micro_batch_split"]
    if kind == "deepspeed":
        assert [(record.stage, record.code) for record in records] == [("rejected", "declined")] * 2
        assert all("DeepSpeed" in str(record.fields["reason"]) for record in records)
    else:
        assert [(record.stage, record.effective) for record in records] == [("applied", 4), ("applied", 3)]
    first, second = found["split"]
    assert first["weights"] == second["weights"]
    assert first["weights"] == pytest.approx(found["whole"][0]["weights"], abs=ROUNDED)
    assert first["rows"] == found["whole"][0]["rows"]


def test_what_is_learned_changes_on_both_ranks(trained: tuple[str, Found, Outcomes]) -> None:
    kind, found, outcomes = trained
    said = {name: [record.stage for record in records] for name, records in outcomes["lr"].items()}
    clips = "rejected" if kind == "deepspeed" else "applied"
    assert said == {"lr": ["applied"], "max_grad_norm": [clips], "stop": ["applied"]}
    first, second = found["lr"]
    assert first["weights"] == second["weights"]
    assert first["steps"] == second["steps"] < STEPS


def test_batches_that_are_not_pinned_train_the_same_weights(tmp_path: Path) -> None:
    options = {"dataloader_num_workers": 1}
    trainings = [{"name": name, "steps": STEPS, "options": options} for name in ("unchanged", "pinned")]
    (tmp_path / "unchanged.gate").touch()
    with new_node() as node, rank_pair(node, tmp_path, MODULE, trainings, gpus=True) as pair:
        outcomes = pair.steer("pinned", ("dataloader_pin_memory", False))
        unchanged, found = pair.results("unchanged"), pair.results("pinned")
    (record,) = outcomes["dataloader_pin_memory"]
    assert (record.stage, record.effective) == ("applied", False)
    assert 10 <= (record.step or 0) < STEPS  # ten steps are an epoch
    assert [rank["pins"] for rank in (*unchanged, *found)] == [True, True, False, False]
    assert [rank["rows"] for rank in found] == [rank["rows"] for rank in unchanged]
    assert found[0]["weights"] == found[1]["weights"]
    assert found[0]["weights"] == pytest.approx(unchanged[0]["weights"], abs=ROUNDED)


@pytest.fixture(scope="module")
def fits() -> list[dict[str, Any]]:
    return both("tests.integrations.lightning_fits", "gpu_main", LIMIT_S)


KNOBS = ("lr", "weight_decay", "beta1", "beta2", "aligned", "unaligned", "num_workers")


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", KNOBS)
def test_a_knob_of_lightning(fits: list[dict[str, Any]], kind: str, name: str) -> None:
    first, second = (rank[f"{kind} {name}"] for rank in fits)
    assert first["weights"] == second["weights"]
    assert first["seen"] + second["seen"] == SAMPLES * EPOCHS
    stages = [stage for stage, *_ in first["outcomes"]]
    assert stages[-1:] == ["applied"], first["outcomes"]
    unchanged = fits[0][f"{kind} unchanged"]["weights"][-1]
    if name == "num_workers":
        assert first["weights"][-1] == pytest.approx(unchanged, abs=ROUNDED)
    else:
        assert first["weights"][-1] != pytest.approx(unchanged, abs=ROUNDED)
    of_ddp = fits[0][f"ddp {name}"]
    assert first["weights"][-1] == pytest.approx(of_ddp["weights"][-1], abs=ROUNDED)
    assert first["step"] == of_ddp["step"]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_commands_of_lightning(fits: list[dict[str, Any]], kind: str) -> None:
    for rank in fits:
        assert rank[f"{kind} stop"]["step"] == 5
        saved = rank[f"{kind} checkpoint"]
        assert saved["weights"][-1] == pytest.approx(rank[f"{kind} unchanged"]["weights"][-1], abs=ROUNDED)
    ((stage, code, *_),) = fits[0][f"{kind} checkpoint"]["outcomes"]
    assert (stage, code) == ("applied", "written")


def test_deepspeed_under_lightning_refuses_what_its_engine_decides() -> None:
    pytest.importorskip("deepspeed")
    fits = both("tests.integrations.lightning_fits", "deepspeed_main", LIMIT_S)
    found = fits[0]["deepspeed"]
    assert set(found["knobs"]) == {"log_every_n_steps"}
    ((stage, code, *_, fields),) = found["outcomes"]
    assert (stage, code) == ("rejected", "declined")
    assert "DeepSpeedStrategy" in fields["reason"]
    assert found["weights"][-1] == pytest.approx(fits[1]["deepspeed"]["weights"][-1], abs=0)
