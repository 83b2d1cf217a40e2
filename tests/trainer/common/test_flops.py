from __future__ import annotations

import pytest
import torch

from hoptui.telemetry.gpu_specs import peak_flops
from hoptui_trainer.common.flops import conventions, mfu, transformer_flops
from tests.golden import Golden


def test_a_124m_gpt_costs_what_nanogpt_says() -> None:
    # 123,587,328 parameters in matrix products, 12 layers of 768, 1024 tokens: 854.77 MFLOP.
    assert transformer_flops(123_587_328, 12, 768, 1024) == pytest.approx(854.77e6, rel=1e-4)


@pytest.mark.parametrize(("precision", "expected"), [("bf16", 0.5), ("tf32", 1.0), ("fp8", None)])
def test_mfu_is_measured_against_the_peak_of_the_precision(
    monkeypatch: pytest.MonkeyPatch, precision: str, expected: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    value = mfu(1e9, 494.5e3 * 2, torch.device("cuda"), precision, world=2)  # type: ignore[arg-type]
    assert value == (None if expected is None else pytest.approx(expected))


def test_mfu_of_a_cpu_and_of_an_unknown_gpu_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mfu(1e9, 1e3, torch.device("cpu"), "fp32") is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA Unheard Of")
    assert mfu(1e9, 1e3, torch.device("cuda"), "bf16") is None


def test_what_mfu_means_is_told_where_there_is_one(golden: Golden) -> None:
    [line] = conventions(torch.device("cuda"), "; an image is its patches")
    golden(f"{line}\n")
    assert conventions(torch.device("cpu")) == ()


def test_peaks_are_public() -> None:
    assert peak_flops("NVIDIA H200", "bf16") == 989e12
    assert peak_flops("NVIDIA H200", "int3") is None
