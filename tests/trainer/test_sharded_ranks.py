"""The language model on two ranks that share out its weights: what ranks with whole weights do, and the same
checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hoptui_trainer.common.checkpoint import read_checkpoint
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.lm.config import LMConfig
from hoptui_trainer.lm.job import LMOptions, resolve_job
from tests.trainer.steered import Job, Told, trained
from tests.trainer.tensors import tensors
from tests.trainer.test_supervised_ranks import on_two, options

pytestmark = pytest.mark.slow

SMALL = {
    "d_model": 16,
    "layers": 2,
    "heads": 2,
    "seq_len": 16,
    "batch_tokens": 128,
    "micro_batch": 2,
    "lr": 1e-2,
}
TURNED: dict[str, dict[str, Any]] = {
    "1": {"micro_batch": 4, "weight_decay": 0.3},
    "2": {"checkpointing": True, "seq_len": 32},
    "0": {"batch_tokens": 256, "grad_clip": 0.1},
}
REFUSED: dict[str, dict[str, Any]] = {"1": {"batch_tokens": 48}, "2": {"optimizer": "adamw8bit"}}
MODES = ("none", "grad", "full")


def job(folder: Path, shard: str, name: str, **fields: Any) -> Job:
    """Six iterations with knobs turned between them."""
    given = {"iterations": 6, "evaluate_every": 6, "checkpoint_every": 4, **fields.pop("options", {})}
    checkpoints = str(folder / name)
    chosen = options(folder, "lm", shard=shard, checkpoint_dir=checkpoints, **given)
    return {"workload": "lm", "options": chosen, "knobs": SMALL, "after": TURNED, **fields}


def resumed(folder: Path, shard: str, of: str) -> Job:
    """The last two iterations again, from the checkpoint of another job."""
    source = str(folder / of / "lm-000000004.ckpt")
    return job(folder, shard, f"{of} as {shard}", options={"resume": source}, knobs={}, after={})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("shards")
    (found / "corpus").mkdir()
    for number in range(60):
        (found / "corpus" / f"{number:02d}.txt").write_text("".join(map(str, range(number, number + 99))))
    return found


@pytest.fixture(scope="module")
def together(folder: Path) -> list[list[Told]]:
    """All jobs on one pair of processes, one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        jobs = [job(folder, shard, shard) for shard in MODES]
        jobs += [
            resumed(folder, "full", "full"),
            resumed(folder, "none", "full"),
            resumed(folder, "full", "none"),
        ]
        jobs.append(job(folder, "full", "refused", after=REFUSED))
        jobs.append(
            job(folder, "full", "open", knobs={**SMALL, "batch_tokens": 0}, options={"iterations": 1})
        )
        return on_two(jobs)


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return tensors(read_checkpoint(folder / name / "lm-000000006.ckpt", "lm"))


@pytest.mark.timeout(120)  # the first one waits for the processes
@pytest.mark.parametrize("shard", ["grad", "full"])
def test_shards_leave_the_training_as_it_was(together: list[list[Told]], folder: Path, shard: str) -> None:
    first, second = (jobs[MODES.index(shard)] for jobs in together)
    whole = together[0][0]
    assert [first["rank"], second["rank"]] == [0, 1]
    assert first["values"] == second["values"]
    parts = zip(first["weights"], second["weights"], strict=True)
    assert [sum(part) for part in parts] == pytest.approx(whole["weights"], abs=1e-3)
    assert first["weights"] != second["weights"]
    assert first["stages"] == ["applied"] * 6
    assert first["positions"] == second["positions"] == whole["positions"]
    expected, found = weights(folder, "none"), weights(folder, shard)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5, msg=name)
    one, other = (read_checkpoint(folder / name, "lm")["evaluations"]["newest"] for name in ("none", shard))
    assert other == pytest.approx(one, rel=1e-5)


@pytest.mark.timeout(120)
def test_ranks_with_shards_choose_a_batch_that_they_can_share(together: list[list[Told]]) -> None:
    first, second = (jobs[-1]["values"][0]["batch_tokens"] for jobs in together)
    assert first == second > 128
    assert first % (2 * 16) == 0


@pytest.mark.timeout(120)
def test_a_resumed_run_goes_on_to_the_bit(together: list[list[Told]], folder: Path) -> None:
    expected, found = weights(folder, "full"), weights(folder, "full as full")
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["full as none", "none as full", "full alone"])
def test_a_checkpoint_fits_other_shards_and_fewer_ranks(
    together: list[list[Told]], folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name == "full alone":
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.setenv("HOPTUI", "off")
        source = str(folder / "full" / "lm-000000004.ckpt")
        trained(job(folder, "none", name, options={"resume": source}, knobs={}, after={}))
    expected, found = weights(folder, "none"), weights(folder, name)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-5, msg=key)


@pytest.mark.timeout(120)
def test_what_shards_cannot_do_is_refused_and_the_run_goes_on(together: list[list[Told]]) -> None:
    for told in (jobs[-2] for jobs in together):
        assert len(told["values"]) == 6
        assert (told["values"][-1]["batch_tokens"], told["values"][-1]["optimizer"]) == (128, "adamw")
    assert together[0][-2]["stages"] == ["failed"] * 2


@pytest.mark.parametrize(
    ("world", "knobs", "option"), [(1, {}, "--shard full"), (3, {"batch_tokens": 128}, "--batch-tokens")]
)
def test_ranks_that_cannot_share_are_refused(world: int, knobs: dict[str, int], option: str) -> None:
    with pytest.raises(UsageError, match=option):
        resolve_job(LMOptions(preset="tiny", shard="full"), knobs, None, world=world, on_gpu=False)
    assert LMConfig().samples % 2 == 0
