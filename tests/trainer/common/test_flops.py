from __future__ import annotations

import pytest
import torch

from hoptui.telemetry.gpu_specs import peak_flops
from hoptui_trainer.common.flops import Cost, conventions, mfu, mixed_cost, transformer_flops
from tests.golden import Golden


def test_a_124m_gpt_costs_what_nanogpt_says() -> None:
    # 123,587,328 parameters in matrix products, 12 layers of 768, 1024 tokens: 854.77 MFLOP.
    assert transformer_flops(123_587_328, 12, 768, 1024) == pytest.approx(854.77e6, rel=1e-4)


@pytest.mark.parametrize(("precision", "expected"), [("bf16", 0.5), ("tf32", 1.0)])
def test_mfu_is_measured_against_the_peak_of_the_precision(
    monkeypatch: pytest.MonkeyPatch, precision: str, expected: float
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    cost = Cost(1e9, precision)  # type: ignore[arg-type]
    assert mfu(cost, 494.5e3 * 2, torch.device("cuda"), world=2) == pytest.approx(expected)


def test_under_fp8_the_shortest_times_of_both_parts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    device, rate = torch.device("cuda"), 500e3
    ideal_s = 0.6e9 / 1979e12 + 0.4e9 / 989e12
    assert mfu(mixed_cost(1e9, 0.6e9, device), rate, device) == pytest.approx(ideal_s * rate)
    assert mixed_cost(1e9, 0.0, device) == Cost(1e9, "bf16")


def test_under_fp8_a_gpu_without_its_peak_has_no_mfu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100-SXM4-80GB")
    device = torch.device("cuda")
    assert mfu(mixed_cost(1e9, 0.6e9, device), 500e3, device) is None


def test_mfu_of_a_cpu_and_of_an_unknown_gpu_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mfu(Cost(1e9, "fp32"), 1e3, torch.device("cpu")) is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA Unheard Of")
    assert mfu(Cost(1e9, "bf16"), 1e3, torch.device("cuda")) is None


def test_what_mfu_means_is_told_where_there_is_one(golden: Golden) -> None:
    [line] = conventions(torch.device("cuda"), "; an image is its patches")
    golden(f"{line}\n")
    assert conventions(torch.device("cpu")) == ()


def test_peaks_are_public() -> None:
    assert peak_flops("NVIDIA H200", "bf16") == 989e12
    assert peak_flops("NVIDIA H200", "int3") is None
