"""Which evaluation is the best, and how many have come since."""

from __future__ import annotations

from pathlib import Path

from hoptui_trainer.common.evaluations import Evaluations


def test_the_best_is_the_lowest_or_the_highest() -> None:
    losses, returns = Evaluations("loss"), Evaluations("reward", higher=True)
    values = (3.0, 2.0, 2.0, 2.5, 1.0)
    lower = [losses.add({"loss": value, "bpb": 2 * value}, 10 * i) for i, value in enumerate(values, 1)]
    higher = [returns.add({"reward": value}, 10 * i) for i, value in enumerate(values, 1)]
    assert lower == [True, True, False, False, True]
    assert higher == [True, False, False, False, False]
    assert (losses.since_best, returns.since_best) == (0, 4)
    assert losses.result() == {
        "loss": 1.0,
        "bpb": 2.0,
        "best_loss": 1.0,
        "best_bpb": 2.0,
        "best_iteration": 50,
        "best_file": None,
    }
    assert (returns.newest, returns.best, returns.best_iteration) == ({"reward": 1.0}, {"reward": 3.0}, 10)


def test_what_is_not_a_number_is_never_better() -> None:
    found = Evaluations("loss")
    assert not found.add({"loss": float("nan")}, 1)
    assert (found.best_iteration, found.since_best) == (None, 1)
    assert found.add({"loss": float("inf")}, 2)
    assert found.add({"loss": 1.0}, 3)
    assert not found.add({"loss": float("nan")}, 4)
    assert found.result()["best_loss"] == 1.0


def test_a_checkpoint_keeps_them_and_a_file_that_has_gone_is_none(tmp_path: Path) -> None:
    found, again = Evaluations("loss"), Evaluations("loss")
    found.add({"loss": 1.0}, 1)
    found.add({"loss": 2.0}, 2)
    found.file = tmp_path / "best.pt"
    again.load_state_dict(found.state_dict())
    assert again.file is None
    found.file.write_bytes(b"weights")
    again.load_state_dict(found.state_dict())
    assert again.state_dict() == found.state_dict()
    assert not again.add({"loss": 1.5}, 3)
    assert again.since_best == 2
