"""Tests of the adapters. `make test-integrations` runs them in environments that have the frameworks."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.docs.python_pages import FRAMEWORKS
from tests.integrations.proof import Proof, required

FOLDER = Path(__file__).parent
MIXED_PRECISION = "ACCELERATE_MIXED_PRECISION"
if any(importlib.util.find_spec(name) is None for name in FRAMEWORKS):
    # `make test-integrations` checks that none is missing there. A GPU node rarely has all of them.
    collect_ignore = [path.name for path in FOLDER.glob("test_*.py") if path.name != "test_two_gpus.py"]
elif importlib.util.find_spec("torchtitan") is None:
    collect_ignore = ["test_torchtitan.py"]  # it has one supported version, and is in the newest environment


STARTS_RAY = ("test_ray.py::", "[ray_train.py]", "[docs/frameworks/ray.md]")


TORCH_ALONE = (
    "test_own_loops.py::", "test_ipython.py::", "test_gradient_buckets.py::",
    "[ddp.py]", "[fsdp2.py]", "[plain_loop.py]",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts Ray: `make test-ray` runs it, alone. Mark what needs no other framework than torch."""
    for item in items:
        for mark, names in (("ray", STARTS_RAY), ("torch_alone", TORCH_ALONE)):
            if any(name in item.nodeid for name in names):
                item.add_marker(mark)


PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture(autouse=True)
def numerics() -> Iterator[None]:
    """Restore what a framework sets for the whole process: threads and precision.

    Older versions of TrainingArguments leave `bf16` to all that come later, in a variable.
    """
    import torch

    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    mixed = os.environ.get(MIXED_PRECISION)
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    os.environ.pop(MIXED_PRECISION, None)
    if mixed is not None:
        os.environ[MIXED_PRECISION] = mixed


@pytest.fixture
def proof(request: pytest.FixtureRequest) -> Iterator[Proof]:
    """Takes what the markers `live_safe` of the test claim, and fails the test if something is missing."""
    found = Proof()
    yield found
    if not request.node.stash.get(PASSED, False):
        return
    for mark in request.node.iter_markers("live_safe"):
        missing = required({mark.kwargs["effect"]}, mark.kwargs.get("ranks", 2)) - found.given
        assert not missing, f"the table claims more than this test shows: {sorted(missing)}"
