"""torchao's 8-bit optimizer in tests: as it is written, because to compile it takes ten seconds."""

from __future__ import annotations

import warnings

import pytest
import torch


def eager_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip without torchao; with it, its optimizer runs uncompiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchao.optim")
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
