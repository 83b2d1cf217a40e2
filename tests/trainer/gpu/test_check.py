"""`hoptui train check` on a real GPU."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hoptui_trainer.__main__ import main

LIMIT_S = 60.0


def test_every_check_of_a_gpu_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    code = main(["check", "--dir", str(tmp_path), "--json"])
    assert time.monotonic() - began < LIMIT_S
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    print(json.dumps(checks))
    assert code in (0, 1), checks
    assert "failed" not in {check["status"] for check in checks.values()}
    for name in ("compile", "bf16 product", "device memory", "host to GPU", "disk"):
        assert checks[name]["measured"] > 0
