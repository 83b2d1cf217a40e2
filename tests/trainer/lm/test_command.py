"""`hoptui train lm` as a command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hoptui_trainer.__main__ import main

LIMIT_S = 90.0


def test_its_options_are_read_without_torch() -> None:
    script = "import sys, hoptui_trainer.lm.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=LIMIT_S, check=False).returncode == 0


def test_early_stopping_is_told_in_json_and_no_failure_unless_a_target_was_missed(
    corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["lm", "--preset", "tiny", "--corpus", str(corpus_folder), "--eval-tokens", "400", "--json"]
    command += ["--patience", "2", "--evaluate-every", "1", "--lr", "0.1", "--iterations", "60"]
    for target, code in (((), 0), (("--until-loss", "0.001"), 1)):
        folder = tmp_path / f"exits with {code}"
        assert main([*command, *target, "--checkpoint-dir", str(folder)]) == code
        figures = json.loads(capsys.readouterr().out)
        assert figures["ending"] == "early-stopped"
        assert figures["best_iteration"] == figures["iterations"] - 2
        assert figures["best_val_loss"] < figures["val_loss"]
        assert figures["best_val_bpb"] < figures["val_bpb"]
        assert figures["best_file"] == str(folder / "lm-best.pt")
        assert Path(figures["best_file"]).is_file()
