"""`hoptui train check`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hoptui_trainer.__main__ import main
from hoptui_trainer.check import command, compute, transfer
from hoptui_trainer.check.outcome import Outcome, failed, rated
from tests.golden import Golden

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
NAMES = [
    "torch",
    "compile",
    "bf16 product",
    "fp8 product",
    "attention",
    "device memory",
    "host to GPU",
    "between GPUs",
    "disk",
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "SMALL_SIDE", 64)
    monkeypatch.setattr(transfer, "DISK_BYTES", 1 << 20)
    monkeypatch.setattr(transfer, "DISK_BYTES_PER_S", 1.0)
    monkeypatch.setattr(torch, "compile", lambda function, fullgraph: function)


@pytest.mark.usefixtures("small")
def test_a_machine_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--device", "cpu", "--dir", str(tmp_path), "--json"]) == command.OK
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert list(checks) == NAMES
    done = [name for name, check in checks.items() if check["status"] == "ok"]
    assert done == ["torch", "compile", "bf16 product", "disk"]
    assert {check["status"] for name, check in checks.items() if name not in done} == {"skipped"}
    assert checks["bf16 product"]["measured"] > 0
    assert checks["disk"]["measured"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small")
def test_a_gpu_that_torch_cannot_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("torch can use the GPU of this machine")
    assert main(["check", "--device", "cuda", "--dir", str(tmp_path), "--json"]) == command.FAILED
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [(check["name"], check["status"]) for check in checks] == [("torch", "failed"), ("disk", "ok")]
    assert checks[0]["advice"]


@pytest.mark.usefixtures("small")
def test_a_folder_that_takes_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing"
    assert main(["check", "--device", "cpu", "--dir", str(missing), "--json"]) == command.FAILED
    *_, disk = json.loads(capsys.readouterr().out)["checks"]
    assert (disk["name"], disk["status"], disk["measured"]) == ("disk", "failed", None)
    assert str(missing) in disk["advice"]


def test_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "DISK_BYTES", 1 << 20)
    monkeypatch.setattr(transfer, "DISK_BYTES_PER_S", 1e15)
    outcome = transfer.disk(tmp_path)
    assert (outcome.status, outcome.expected) == ("slow", 1e6)


def test_what_a_terminal_shows(golden: Golden) -> None:
    outcomes = (
        rated("bf16 product", 771.2, 643.0, "TFLOP/s", "8192³, 78% of the dense peak", "never shown"),
        rated("host to GPU", 12.5, 44.1, "GB/s", "PCIe 5 × 16", "The slot has fewer lanes."),
        rated("device memory", 900.0, None, "GB/s", "a GPU that is in no table", "never shown"),
        Outcome(name="fp8 product", status="skipped", detail="FP8 needs a GPU"),
        failed("between GPUs", TimeoutError("\n 2 processes did not meet\nand more"), "NCCL_DEBUG=INFO."),
        failed("disk", MemoryError(), "An error without a text has its name."),
    )
    golden("\n".join(line for outcome in outcomes for line in outcome.lines()) + "\n")


def test_a_wrong_product_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "SMALL_SIDE", 64)
    monkeypatch.setattr(compute, "_multiply_bf16", lambda left, right: lambda: left @ right * 1.1)
    outcome = compute.product(CPU, "bf16")
    assert (outcome.status, outcome.measured) == ("failed", None)


def test_a_compiled_kernel_that_is_wrong_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: object, fullgraph: bool) -> object:
        return lambda x: torch.zeros_like(x)

    monkeypatch.setattr(torch, "compile", broken)
    assert compute.compilation(CPU).status == "failed"


def test_a_compiler_that_is_missing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def deferred(function: object, fullgraph: bool) -> object:
        def missing(x: Tensor) -> Tensor:
            raise RuntimeError("no C++ compiler")

        return missing

    monkeypatch.setattr(torch, "compile", deferred)
    outcome = compute.compilation(CPU)
    assert (outcome.status, outcome.detail) == ("failed", "no C++ compiler")
    assert "--compile off" in outcome.advice


def test_a_check_that_raises_is_a_failure_and_the_others_go_on() -> None:
    def raises() -> Outcome:
        raise ZeroDivisionError("never expected")

    assert command._guarded("attention", raises).status == "failed"


def test_a_check_that_hangs_ends_the_process_with_a_sentence() -> None:
    code = (
        "import threading\n"
        "from hoptui_trainer.check import command\n"
        "command.PATIENCE_S = 0.05\n"
        "with command._watched('attention'):\n"
        "    threading.Event().wait(60)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert ended.returncode == command.FAILED
    assert "attention" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_processes_exchange_data_and_none_is_left() -> None:
    assert transfer.all_reduce_rate("gloo", 2, 1 << 16) > 0


def test_a_process_that_fails_is_reported() -> None:
    with pytest.raises(Exception, match="no-such-backend"):
        transfer.all_reduce_rate("no-such-backend", 2, 1 << 16)
