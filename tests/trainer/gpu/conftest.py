"""What only GPUs can prove: each test here needs one, or as many as its mark `gpus(count=…)` says, and is
skipped without.

The files are run in `ORDER`, the cheap ones that would explain the failures of others first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.backends import cuda

from hoptui_trainer.common.memory import release

FOLDER = Path(__file__).parent
LIMIT_S = 90.0
ORDER = (
    "test_check",
    "test_random",
    "test_envs",
    "test_graphs",
    "test_policies",
    "test_phases",
    "test_ppo",
    "test_supervised",
    "test_lm",
    "test_vision",
    "test_live",
    "test_memory",
    "test_checkpoints",
    "test_ranks",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpus(count): needs so many GPUs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test here its limits; pytest calls this once, with the tests of all folders."""
    places = [place for place, item in enumerate(items) if item.path.parent == FOLDER]
    ours = sorted((items[place] for place in places), key=lambda item: ORDER.index(item.path.stem))
    for place, item in zip(places, ours, strict=True):
        items[place] = item
        if not item.get_closest_marker("gpus"):
            item.add_marker(pytest.mark.gpus(count=1))
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LIMIT_S))
        # What drivers and compilers of other people warn about differs from machine to machine.
        item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = item.get_closest_marker("gpus")
    assert mark is not None
    needed, found = mark.kwargs["count"], torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < needed:
        pytest.skip(f"needs {needed} GPU{'s'[: needed != 1]}, and there are {found}")


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Leave the process as the test found it: number formats, kernels, compiled code and memory are the
    process's own."""
    matmul, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.set_per_process_memory_fraction(1.0)
    for switch in (cuda.enable_cudnn_sdp, cuda.enable_flash_sdp, cuda.enable_mem_efficient_sdp):
        switch(True)
    cuda.enable_math_sdp(True)
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = convolutions
    torch.compiler.reset()
    release(torch.device("cuda", torch.cuda.current_device()))
