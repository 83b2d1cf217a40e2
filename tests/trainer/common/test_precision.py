from __future__ import annotations

import pytest
import torch

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.precision import autocast, choose_precision, compute_dtype, grad_scaler, use

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_the_cpu_computes_in_float32_unless_told_otherwise() -> None:
    assert choose_precision("auto", CPU) == "fp32"
    assert choose_precision("bf16", CPU) == "bf16"


@pytest.mark.parametrize("name", ["tf32", "fp8"])
def test_what_only_a_gpu_has_is_refused_on_the_cpu(name: str) -> None:
    with pytest.raises(UsageError, match=f"--precision {name}: it needs a GPU"):
        choose_precision(name, CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize(("capability", "chosen"), [((7, 0), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_auto_takes_bf16_from_ampere_on(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], chosen: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert choose_precision("auto", GPU) == chosen


@pytest.mark.parametrize(("name", "capability"), [("bf16", (7, 5)), ("tf32", (7, 0)), ("fp8", (8, 0))])
def test_an_old_gpu_is_named_with_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Old GPU")
    with pytest.raises(
        UsageError, match=rf"--precision {name}: Old GPU has compute capability {capability[0]}"
    ):
        choose_precision(name, GPU)  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_autocast_computes_in_the_precision_asked_for(precision: str) -> None:
    layer = torch.nn.Linear(4, 4)
    with autocast(precision, CPU):  # type: ignore[arg-type]
        assert layer(torch.ones(1, 4)).dtype == compute_dtype(precision)  # type: ignore[arg-type]


def test_losses_are_scaled_under_fp16_alone() -> None:
    assert grad_scaler("fp16", CPU).is_enabled()
    assert not grad_scaler("bf16", CPU).is_enabled()


def test_float32_products_use_tf32_unless_fp32_is_asked_for() -> None:
    matmul, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    found = {}
    try:
        for precision in ("fp32", "tf32", "bf16"):
            use(precision)
            found[precision] = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolutions
    assert found == {"fp32": ("highest", False), "tf32": ("high", True), "bf16": ("high", True)}
