from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.backends import cuda
from torch.library import Library
from torch.nn import attention

from hoptui_trainer.common import attention as choice
from hoptui_trainer.common.attention import FLASH3, INTERFACE, candidates, choose_attention, fastest, slowest
from hoptui_trainer.common.ranks import ALONE


def test_the_fastest_is_the_one_with_the_least_time() -> None:
    assert fastest({"cudnn": 0.7, "flash": 1.1, "efficient": None}) == "cudnn"
    assert fastest({"cudnn": None, "flash": 1.1, "efficient": 0.9}) == "efficient"
    assert fastest({"cudnn": None}) is None


def test_ranks_go_by_the_time_of_the_slowest_and_leave_what_does_not_work_on_all() -> None:
    first = {"cudnn": 0.7, "flash": 1.1, "efficient": 2.0}
    assert slowest([first]) == first
    second = {"cudnn": 1.3, "flash": 1.0, "efficient": None}
    assert slowest([first, second]) == {"cudnn": 1.3, "flash": 1.1, "efficient": None}
    # A kernel that is installed on some of the machines only.
    assert slowest([{**first, FLASH3: 0.5}, first])[FLASH3] is None
    assert FLASH3 not in slowest([first, {**first, FLASH3: 0.5}])


def test_a_cpu_has_no_choice() -> None:
    assert choose_attention((1, 1, 8, 8), torch.float32, torch.device("cpu"), ALONE, causal=True) == ""


@pytest.fixture
def flash3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that stands in for FlashAttention-3: its operators are there and compute nothing."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / f"{INTERFACE}.py").write_text("")
    operators = Library("flash_attn_3", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("fwd", "bwd"):
        operators.define(f"{name}(Tensor q) -> Tensor")  # type: ignore[no-untyped-call]
    monkeypatch.syspath_prepend(folder)
    yield folder
    attention.restore_flash_attention_impl(_raise_warn=False)
    for switch in choice.SWITCHES.values():
        switch(True)
    sys.modules.pop(INTERFACE, None)


def chosen(monkeypatch: pytest.MonkeyPatch, **milliseconds: float | None) -> str:
    """The note of a choice between kernels that take so long."""

    def measured(name: str, *_: Any, **__: Any) -> float | None:
        return milliseconds[name]

    monkeypatch.setattr(choice, "_measured", measured)
    device = torch.device("cuda")
    return choose_attention((1, 1, 8, 8), torch.bfloat16, device, ALONE, causal=True)


def test_flash_attention_3_is_a_candidate_where_it_is_installed(
    flash3: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert candidates() == [*choice.SWITCHES, FLASH3]
    note = chosen(monkeypatch, cudnn=0.7, flash=1.1, efficient=2.0, flash3=0.6)
    assert note.startswith(f"attention: {FLASH3} (")
    assert attention.current_flash_attention_impl() == "FA3"
    assert (cuda.flash_sdp_enabled(), cuda.cudnn_sdp_enabled()) == (True, False)  # type: ignore[no-untyped-call]
    # Torch's own flash kernel is another candidate, and not the one of the package.
    assert chosen(monkeypatch, cudnn=0.7, flash=0.5, efficient=2.0, flash3=0.6).startswith(
        "attention: flash ("
    )
    assert attention.current_flash_attention_impl() is None


def test_where_it_is_not_installed_it_is_not_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert candidates() == list(choice.SWITCHES)
    try:
        assert FLASH3 not in chosen(monkeypatch, cudnn=0.7, flash=1.1, efficient=2.0)
    finally:
        for switch in choice.SWITCHES.values():
            switch(True)


def test_an_installation_that_cannot_be_loaded_is_not_chosen(flash3: Path) -> None:
    (flash3 / f"{INTERFACE}.py").write_text("raise ImportError('undefined symbol')")
    assert choice._measured(FLASH3, (1, 1, 8, 8), torch.bfloat16, torch.device("cuda"), causal=True) is None
    assert attention.current_flash_attention_impl() is None
    assert cuda.math_sdp_enabled()  # type: ignore[no-untyped-call]
