"""`trainer lm` as a command: one process, and two that train as one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer.common.checkpoint import read_checkpoint
from trainer.lm.job import LMOptions
from trainer.lm.train import train

LIMIT_S = 90.0
SMALL = {"d_model": 16, "layers": 1, "heads": 2, "seq_len": 16, "batch_tokens": 144, "lr": 1e-2}
SHORT: dict[str, Any] = {
    "preset": "tiny",
    "corpus_mb": 0.0,
    "eval_tokens": 400,
    "iterations": 6,
    "evaluate_every": 3,
}
SCRIPT = """
import json, pathlib, sys, torch
torch.set_num_threads(1)
from trainer.lm.job import LMOptions
from trainer.lm.train import train
corpus, options, knobs = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
folder = pathlib.Path(options.pop("checkpoint_dir"))
train(LMOptions(corpus=pathlib.Path(corpus), checkpoint_dir=folder, **options), knobs, print)
"""


def test_its_options_are_read_without_torch() -> None:
    script = "import sys, trainer.lm.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=LIMIT_S, check=False).returncode == 0


def test_two_processes_train_as_one(corpus_folder: Path, tmp_path: Path) -> None:
    """Nine sequences: one rank has four, the other five."""
    options = {**SHORT, "json": True, "checkpoint_dir": str(tmp_path / "two")}
    command = [
        *(
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "--no-python",
        ),
        *(sys.executable, "-c", SCRIPT, str(corpus_folder), json.dumps(options), json.dumps(SMALL)),
    ]
    with subprocess.Popen(
        command,
        env={**os.environ, "HOPTUI": "off", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as both:
        try:
            out, err = both.communicate(timeout=LIMIT_S)
        finally:
            if both.poll() is None:
                os.killpg(both.pid, 9)
    assert both.returncode == 0, err
    (line,) = out.splitlines()
    two = json.loads(line)

    job = LMOptions(corpus=corpus_folder, checkpoint_dir=tmp_path / "one", **SHORT)
    one = train(job, SMALL, lambda _: None)
    assert two["loss"] == pytest.approx(one.loss, abs=1e-5)
    assert two["val_bpb"] == pytest.approx(one.val_bpb, abs=1e-5)
    assert two["tokens"] == one.tokens == 6 * 144
    first, second = (read_checkpoint(tmp_path / name, "lm") for name in ("one", "two"))
    for name, weight in first["model"].items():
        assert (weight - second["model"][name]).abs().max() < 1e-4, name
