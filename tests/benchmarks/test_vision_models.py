from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks import vision_models
from hoptui_trainer.vision import images


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(images, "POOL_BYTES", images.POOL_BYTES)
    monkeypatch.setattr(vision_models, "report", lambda *_: pytest.fail("a quick try must not keep results"))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_every_case_runs_and_names_what_it_measured(capsys: pytest.CaptureFixture[str]) -> None:
    found = vision_models.main(["--quick", "--limit-s", "1e9"])
    assert list(found["cases"]) == list(vision_models.CASES)
    printed = json.loads(capsys.readouterr().out)
    assert printed["cases"] == found["cases"]
    cases = found["cases"]
    assert cases["vit-l-checkpointing"]["checkpointing"]
    assert cases["vit-l-checkpointing"]["losses"] == cases["vit-l"]["losses"]
    assert cases["clips"]["clips_per_s"]["median"] > 0
    assert cases["clips"]["tokens"] == 16 * cases["vit-l"]["tokens"] == 64
    assert set(cases["cudnn"]) == {
        "step of vit-b, eager",
        "patch embedding, a matmul",
        "patch embedding, a convolution",
    }
    assert cases["cudnn"]["step of vit-b, eager"]["ratio"]["n"] == 2
    assert torch.backends.cudnn.benchmark is False


def test_cases_that_there_is_no_time_for_are_left_out() -> None:
    found = vision_models.main(["--quick", "--limit-s", "0", "vit-l", "clips"])
    assert (found["cases"], found["left_out"]) == ({}, ["vit-l", "clips"])


def test_memory_is_held_against_the_targets() -> None:
    found: dict[str, dict[str, Any]] = {
        "vit-l": {"peak_allocated_bytes": 100},
        "vit-l-checkpointing": {"peak_allocated_bytes": 61},
        "vit-g-checkpointing": {"peak_reserved_bytes": 79e9},
    }
    assert list(vision_models.met(found).values()) == [False, True]
    assert vision_models.met({"vit-l": {"error": "out of memory"}}) == {}
