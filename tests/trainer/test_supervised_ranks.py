"""Language model and vision on two processes: what one process does, also with knobs turned in the middle,
and restarts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from hoptui_trainer.common.checkpoint import read_checkpoint
from tests.trainer.steered import Job, Told, trained
from tests.trainer.tensors import tensors
from tests.trainer.warm import ranks

pytestmark = pytest.mark.slow

LIMIT_S = 200.0
SMALL = {
    "lm": {"d_model": 16, "layers": 1, "heads": 2, "seq_len": 16, "batch_tokens": 144, "micro_batch": 4},
    "vision": {"batch_size": 31, "micro_batch": 8, "d_model": 16, "layers": 1, "heads": 2},
}
"""Nine sequences, thirty-one images: the ranks' shares are of different sizes."""
TURNED: dict[str, dict[str, dict[str, Any]]] = {
    "lm": {
        "1": {"lr": 1e-2, "micro_batch": 2},
        "2": {"seq_len": 8},
        "3": {"grad_accum": 3, "weight_decay": 0.3},
        "4": {"batch_tokens": 64},
    },
    "vision": {
        "1": {"batch_size": 17},
        "2": {"lr": 1e-4, "micro_batch": 3},
        "3": {"grad_accum": 2, "grad_clip": 0.5},
        "4": {"batch_size": 30},
    },
}
TURNS = {"lm": [0, 2, 3, 5, 5], "vision": [0, 2, 3, 4, 5]}
"""The steps before which, or in which, something is compiled."""
CHOICES: dict[str, dict[str, tuple[Any, ...]]] = {
    "lm": {
        "micro_batch": (1, 2, 3, 8, 5_000),
        "grad_accum": (0, 1, 2, 3),
        "batch_tokens": (0, 16, 32, 64, 144),
        "seq_len": (8, 16, 24),
        "lr": (1e-3, 1e-2, 7.0),
        "checkpointing": (False, True),
        "heads": (3,),
    },
    "vision": {
        "micro_batch": (1, 2, 3, 8),
        "grad_accum": (0, 1, 2, 3),
        "batch_size": (0, 1, 2, 7, 31),
        "weight_decay": (0.1, 0.2, -1.0),
        "checkpointing": (False, True),
        "precision": ("fp32", "bf16"),
        "grad_clip": (0.5, 2.0),
        "heads": (3,),
    },
}
"""Some are out of bounds, some cannot be: refused on both ranks alike."""
STEPS = 26


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("ranks")
    (found / "corpus").mkdir()
    draw = random.Random(7)
    for number in range(60):
        (found / "corpus" / f"{number:02d}.txt").write_text(" ".join(draw.choices("abcdefg", k=150)))
    return found


def options(folder: Path, workload: str, **fields: Any) -> dict[str, Any]:
    found = {"preset": "tiny", "evaluate_every": 0, "device": "cpu", "threads": 1, **fields}
    text = {"corpus": str(folder / "corpus"), "corpus_mb": 0.0, "eval_tokens": 400}
    return found | (text if workload == "lm" else {})


def turned_job(folder: Path, workload: str, world: int) -> Job:
    """Six iterations with knobs turned between them."""
    checkpoints = str(folder / f"{workload} on {world}")
    given = options(folder, workload, iterations=6, evaluate_every=6, checkpoint_dir=checkpoints)
    if workload == "lm":
        given["stream"] = world > 1
    knobs = SMALL[workload] | ({"compile": "default"} if world > 1 else {})
    return {"workload": workload, "options": given, "knobs": knobs, "after": TURNED[workload]}


def restless_job(folder: Path, workload: str) -> Job:
    """Two random changes after each iteration."""
    draw, choices = random.Random(11), CHOICES[workload]
    after = {
        str(step): {name: draw.choice(choices[name]) for name in draw.sample(list(choices), 2)}
        for step in range(STEPS - 1)
    }
    given = options(folder, workload, iterations=STEPS)
    return {"workload": workload, "options": given, "knobs": SMALL[workload], "after": after}


def restarting_job(folder: Path) -> Job:
    """A command in the middle of which the model is to be another one."""
    given = options(folder, "lm", iterations=6, checkpoint_dir=str(folder / "restarted")) | SMALL["lm"]
    typed = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    return {"command": ["lm", "--json", *typed], "after": {"2": {"d_model": 32, "layers": 2}}}


def impatient_job(folder: Path, world: int) -> Job:
    """A run that diverges, and ends for want of a better evaluation."""
    given = options(
        folder, "lm", evaluate_every=1, patience=2, checkpoint_dir=str(folder / f"ended on {world}")
    )
    knobs = SMALL["lm"] | {"lr": 0.1, "grad_clip": 100.0}
    return {"workload": "lm", "options": given, "knobs": knobs}


def on_two(jobs: list[Job]) -> list[list[dict[str, Any]]]:
    """What each rank says: first by rank, then by line."""
    with ranks("-m", "tests.trainer.steered", json.dumps(jobs)) as children:
        said = [child.communicate(timeout=LIMIT_S) for child in children]
    for child, (_, error) in zip(children, said, strict=True):
        assert child.returncode == 0, error
    return [[json.loads(line) for line in out.splitlines()] for out, _ in said]


@pytest.fixture(scope="module")
def together(folder: Path) -> list[list[dict[str, Any]]]:
    """All jobs on two ranks, each of them one pair of processes: what is slow is to import torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        jobs = [turned_job(folder, "lm", 2), turned_job(folder, "vision", 2)]
        jobs += [restless_job(folder, "lm"), restless_job(folder, "vision"), impatient_job(folder, 2)]
        jobs.append(restarting_job(folder))  # what comes after a restart is in other processes
        return on_two(jobs)


def assert_same_story(first: Told, second: Told) -> None:
    assert [first["rank"], second["rank"]] == [0, 1]
    for what in ("values", "positions", "weights"):
        assert first[what] == second[what], what


@pytest.mark.timeout(240)  # the first one waits for the processes
@pytest.mark.parametrize(("number", "workload"), [(0, "lm"), (1, "vision")])
def test_two_ranks_train_as_one_with_knobs_turned(
    together: list[list[Told]], folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, workload: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("HOPTUI", "off")
    first, second = (jobs[number] for jobs in together)
    alone = trained(turned_job(folder, workload, 1))
    assert_same_story(first, second)
    assert first["positions"] == alone["positions"]
    assert first["stages"] == alone["stages"] == ["applied"] * sum(map(len, TURNED[workload].values()))
    # One after the other before the first step, for each change of a size, and in the language model's
    # evaluation.
    assert first["turns"] == second["turns"] == TURNS[workload]
    one, two = (read_checkpoint(folder / f"{workload} on {world}", workload) for world in (1, 2))
    assert one["position"] == two["position"]
    newest = one["evaluations"]["newest"]
    assert newest.keys() == ({"val_loss", "val_bpb"} if workload == "lm" else {"val_loss", "accuracy"})
    assert two["evaluations"]["newest"] == pytest.approx(newest, rel=1e-4)
    weights, others = tensors(one), tensors(two)
    assert weights.keys() == others.keys()
    assert len(weights) > 10
    for name, value in weights.items():
        torch.testing.assert_close(others[name], value, rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("number", "workload"), [(2, "lm"), (3, "vision")])
def test_fifty_random_changes_leave_both_ranks_the_same(
    together: list[list[Told]], number: int, workload: str
) -> None:
    first, second = (jobs[number] for jobs in together)
    assert_same_story(first, second)
    assert len(first["values"]) == STEPS
    assert len({str(values) for values in first["values"]}) > STEPS // 2
    assert len(first["stages"]) > 30  # what is out of bounds is refused at once
    assert {"applied", "failed"} <= set(first["stages"])


@pytest.mark.timeout(240)
def test_both_ranks_end_early_and_the_first_keeps_the_best_weights(
    together: list[list[Told]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("HOPTUI", "off")
    assert_same_story(*(jobs[4] for jobs in together))
    trained(impatient_job(folder, 1))
    one, two = (read_checkpoint(folder / f"ended on {world}", "lm") for world in (1, 2))
    best = one["evaluations"]["best_iteration"]
    assert two["evaluations"]["best_iteration"] == best
    assert one["iteration"] == two["iteration"] == best + 2
    for world, last in ((1, one), (2, two)):
        file = folder / f"ended on {world}" / "lm-best.pt"
        assert last["evaluations"]["file"] == str(file)
        kept = read_checkpoint(file, "lm")
        assert (kept["iteration"], kept["evaluations"]["best"]) == (best, last["evaluations"]["best"])


@pytest.mark.timeout(240)
def test_both_ranks_restart_for_another_model_and_one_result_is_told(
    together: list[list[dict[str, Any]]], folder: Path
) -> None:
    first, second = (lines[5:] for lines in together)
    assert second == []
    (result,) = first
    assert (result["workload"], result["ending"]) == ("lm", "finished")
    assert (result["restarts"], result["iterations"]) == (1, 6)
    saved = read_checkpoint(folder / "restarted", "lm")
    assert (saved["iteration"], saved["born"], saved["run"]["epoch"]) == (6, 3, 2)
    assert {name: saved["shape"][name] for name in ("d_model", "layers")} == {"d_model": 32, "layers": 2}
    assert result["tokens"] == saved["position"] == 6 * 144
    before = read_checkpoint(folder / "restarted" / "lm-000000003.ckpt", "lm")
    assert (before["config"]["d_model"], before["config"]["layers"]) == (16, 1)
