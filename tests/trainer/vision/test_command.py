from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import cyclopts
import psutil
import pytest

from hoptui_trainer.vision.command import vision
from tests.golden import Golden
from tests.trainer.printed import MEASURED, printed
from tests.trainer.warm import Warm

app = cyclopts.App(name="hoptui train")
app.command(vision)

TINY = ("vision", "--preset", "tiny", "--device", "cpu", "--threads", "1", "--batch-size", "16")


def call(*arguments: str) -> int:
    code = app(
        [*TINY, "--iterations", "2", "--evaluate-every", "2", *arguments],
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
    )
    assert isinstance(code, int)
    return code


def test_json_is_one_line_and_an_accuracy_not_reached_is_told_by_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call("--json", "--until-accuracy", "0.999") == 1
    [line] = capsys.readouterr().out.splitlines()
    figures = json.loads(line)
    assert figures["ending"] == "finished"
    assert figures["data"] == "digits"
    assert "rank" not in figures


def test_users_see_what_is_run(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    assert call("--micro-batch", "8") == 0
    lines = capsys.readouterr().out.splitlines()
    golden(printed(lines), normalize=MEASURED)


def test_an_option_that_is_no_number_is_refused() -> None:
    with pytest.raises(cyclopts.CycloptsError, match=r"1\.5"):
        call("--num-workers", "1.5")


def test_a_signal_to_all_its_processes_stops_it_cleanly(tmp_path: Path, image_folder: Path) -> None:
    """As Ctrl-C in a terminal or Slurm's SIGTERM does it: the workers hear it too."""
    options = ["--data", str(image_folder), "--num-workers", "2", "--checkpoint-dir", str(tmp_path / "out")]
    endless = ("--iterations", "1000000", "--evaluate-every", "0")
    with Warm("-m", "hoptui_trainer", *TINY, *options, *endless, new_session=True) as trainer:
        for line in trainer.stdout:
            if line.startswith("iteration "):
                break
        workers = psutil.Process(trainer.pid).children()
        os.killpg(trainer.pid, signal.SIGTERM)
        out, _ = trainer.communicate(timeout=60)
    assert trainer.returncode == 0
    assert out.splitlines()[-1].startswith("stopped after ")
    assert len(list((tmp_path / "out").iterdir())) == 1
    assert len(workers) == 2
    assert not any(worker.is_running() for worker in workers)
