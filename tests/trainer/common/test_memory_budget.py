"""What `--memory-limit` allows, and what is said of a device's memory."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator

import psutil
import pytest
import torch

from hoptui_trainer.common import memory_budget
from hoptui_trainer.common.device import free_bytes
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.memory_budget import (
    USABLE,
    bytes_within_limit,
    held_bytes,
    limit_bytes,
    memory_line,
    set_limit,
    total_bytes,
)
from hoptui_trainer.common.memory_limit import parse_limit

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
GB = 10**9


@pytest.fixture(autouse=True)
def no_limit() -> Iterator[None]:
    set_limit(None)
    yield
    set_limit(None)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 GB, of which other processes have 10 and this one 20."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (50 * GB, 80 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 20 * GB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 20 * GB)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("72GB", 72 * GB), ("1.5 gib", 3 << 29), ("500MB", GB // 2), ("90%", 72 * GB), ("100 %", 80 * GB)],
)
def test_a_limit_is_an_amount_or_a_part(text: str, nbytes: int) -> None:
    assert parse_limit(text).of(80 * GB) == nbytes


@pytest.mark.parametrize("text", ["", "72", "0GB", "0%", "101%", "-3GB", "GB", "1e3GB", "much"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--memory-limit"):
        parse_limit(text)


@pytest.mark.parametrize(
    ("limit", "may_use"),
    [
        (None, int(USABLE * 70 * GB)),
        ("50%", 40 * GB),
        ("72GB", 70 * GB),  # other processes have the rest
        ("100%", 70 * GB),  # a limit replaces the part that is planned with otherwise
    ],
)
def test_on_a_gpu_the_limit_replaces_the_usual_part(gpu: None, limit: str | None, may_use: int) -> None:
    set_limit(limit)
    assert limit_bytes(GPU, 1) == may_use


def test_what_the_limit_leaves_is_known_only_with_one(gpu: None) -> None:
    assert bytes_within_limit(GPU, 1) is None
    set_limit("30GB")
    assert bytes_within_limit(GPU, 1) == 10 * GB
    set_limit("10GB")
    assert bytes_within_limit(GPU, 1) == 0


def test_on_a_cpu_a_limit_never_allows_more_than_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "free_bytes", lambda *_: 10 * GB)
    monkeypatch.setattr(memory_budget, "held_bytes", lambda _: 2 * GB)
    monkeypatch.setattr(memory_budget, "total_bytes", lambda _, ranks: 40 * GB // ranks)
    found = {}
    for text in (None, "100%", "20%", "3GB"):
        set_limit(text)
        found[text] = limit_bytes(CPU, 1), limit_bytes(CPU, 2)
    usual = int(USABLE * 12 * GB)
    assert found == {
        None: (usual, usual),
        "100%": (usual, usual),
        "20%": (8 * GB, 4 * GB),
        "3GB": (3 * GB, 3 * GB),
    }


def test_a_limited_address_space_leaves_less(monkeypatch: pytest.MonkeyPatch) -> None:
    own = psutil.Process().memory_info().vms
    monkeypatch.setattr(resource, "getrlimit", lambda _: (own + 100 * 10**6, -1))
    assert 0 <= free_bytes(CPU, 1) <= 200 * 10**6
    assert total_bytes(CPU, 1) <= own + 100 * 10**6
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, -1))
    assert free_bytes(CPU, 1) > 200 * 10**6


def test_the_line_has_the_figures_of_the_device(gpu: None) -> None:
    set_limit("40 GB")
    assert re.findall(r"[\d.]+", memory_line(GPU, 1)) == ["80.0", "20.0", "50.0", "40.0", "40"]
    set_limit(None)
    total, held, free, planned = map(float, re.findall(r"[\d.]+", memory_line(CPU, 1)))
    assert held_bytes(CPU) / 1e9 == pytest.approx(held, abs=0.2)
    assert max(held, free, planned) <= total
