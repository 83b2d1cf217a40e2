"""The `hoptui train` command as people and scripts call it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from hoptui_trainer.__main__ import main
from hoptui_trainer.common.checkpoint import read_checkpoint
from tests.golden import Golden
from tests.trainer.printed import MEASURED, printed
from tests.trainer.warm import Warm

DEADLINE_S = 60
SMALL = ("--num-envs", "8", "--rollout-len", "16", "--minibatch-size", "64", "--epochs", "2")

HELP = """
import sys
from hoptui_trainer.__main__ import main
main(["ppo", "--help"])
assert "torch" not in sys.modules
"""


def test_until_return_with_json_prints_nothing_but_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["ppo", *SMALL, "--json", "--iterations", "50", "--evaluate-every", "3", "--until-return", "5"]
    )
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    figures = json.loads(out)
    assert {"evaluation_return", "env_steps", "seconds", "iterations", "env_steps_per_s"} < figures.keys()
    assert (figures["workload"], figures["ending"]) == ("ppo", "passed")
    assert (figures["iterations"], figures["env_steps"]) == (3, 3 * 128)
    assert figures["evaluation_return"] >= 5
    assert figures["env_steps_per_s"] == pytest.approx(384 / figures["seconds"])


def test_a_return_that_is_not_reached_exits_with_1_and_the_result_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["ppo", *SMALL, "--json", "--iterations", "2", "--until-return", "501"]) == 1
    figures = json.loads(capsys.readouterr().out)
    assert figures["iterations"] == 2
    assert figures["evaluation_return"] < 501


def test_without_json_the_result_is_a_sentence(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    fixed = ("--device", "cpu", "--threads", "1", "--seed", "3")
    assert main(["ppo", *SMALL, *fixed, "--iterations", "2", "--evaluate-every", "0"]) == 0
    golden(printed(capsys.readouterr().out.splitlines()), normalize=MEASURED)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--env Pong-v5", "--env"),
        ("--num-envs 0", "--num-envs"),
        ("--num-envs 70000", "--num-envs"),
        ("--num-envs many", "--num-envs"),
        ("--lr nan", "--lr"),
        ("--lr -1", "--lr"),
        ("--clip-range inf", "--clip-range"),
        ("--grad-accum 1.5", "--grad-accum"),
        ("--iterations 0", "--iterations"),
        ("--iterations 2.5", "--iterations"),
        ("--seed -1", "--seed"),
        ("--threads 0", "--threads"),
        ("--device tpu", "--device"),
        ("--device cuda", "--device"),
        ("--until-return nan", "--until-return"),
        ("--until-return 400 --evaluate-every 0", "--evaluate-every"),
        ("--patience 2 --evaluate-every 0", "--evaluate-every"),
        ("--patience -1", "--patience"),
        ("--until-loss 1", "--until-loss"),
        ("--checkpoint-every 5", "--checkpoint-dir"),
        ("--checkpoint-dir /dev/null/x", "--checkpoint-dir"),
        ("--resume /nowhere/at/all", "--resume"),
        ("--resume /dev/null", "--resume"),
        ("--learning-rate 1", "--learning-rate"),
    ],
)
def test_a_bad_option_is_one_sentence_that_names_it(
    options: str, named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("hoptui_trainer.ppo.train.learned", lambda *_: pytest.fail("it trains"))
    assert main(["ppo", *options.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hoptui train: ")
    assert named in err
    assert err.count("\n") == 1


def test_more_than_the_memory_holds_is_refused_before_training(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hoptui_trainer.ppo.state.free_bytes", lambda *_: 10**9)
    assert main(["ppo", "--num-envs", "65536", "--rollout-len", "8192"]) == 2
    assert "--num-envs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        ({"PYTORCH_ALLOC_CONF": "backend:native"}, {"PYTORCH_ALLOC_CONF": "backend:native"}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}),
    ],
)
def test_memory_that_sizes_fragment_can_be_used_unless_somebody_says_otherwise(
    given: dict[str, str], found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", given)
    main(["slurm"])
    assert os.environ == found


def test_an_interrupt_in_the_start_is_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hoptui_trainer.ppo.train.train", interrupted)
    assert main(["ppo"]) == 130
    golden(capsys.readouterr().err)


def test_help_names_every_knob_with_its_bounds_and_needs_no_torch() -> None:
    found = subprocess.run(
        [sys.executable, "-c", HELP],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")
    for knob in ("num-envs", "rollout-len", "minibatch-size", "epochs", "grad-accum", "lr", "clip-range"):
        assert f"--{knob}" in found.stdout
    assert "1 to 65,536 [default: 64]" in found.stdout
    assert "Pendulum-v1: 128" in found.stdout


@contextmanager
def long_run(*options: str) -> Iterator[Warm]:
    """A training process without end, past its first iterations; reaped whatever happens."""
    with Warm("-m", "hoptui_trainer", "ppo", *SMALL, "--iterations", "1000000", *options) as process:
        too_late = threading.Timer(DEADLINE_S, process.kill)
        too_late.start()
        try:
            for line in process.stdout:
                if line.startswith("iteration "):
                    break
            yield process
        finally:
            too_late.cancel()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_iteration_and_leaves_a_checkpoint(
    tmp_path: Path, number: signal.Signals
) -> None:
    with long_run("--checkpoint-dir", str(tmp_path)) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
    state = read_checkpoint(tmp_path, "ppo")
    assert f"stopped after {state['iteration']:,} iterations" in out.splitlines()[-1]
    assert err.startswith(f"{number.name}: ")
    assert err.count("\n") == 1


def test_a_second_interrupt_ends_at_once(tmp_path: Path, golden: Golden) -> None:
    # Iterations of minutes: the first signal alone would not end the test in time.
    slow = ("--evaluate-every", "0", "--epochs", "64", "--num-envs", "4096", "--minibatch-size", "16")
    with Warm("-m", "hoptui_trainer", "ppo", *slow, "--checkpoint-dir", str(tmp_path)) as process:
        assert process.stdout.readline().startswith("ppo-cartpole")
        process.send_signal(signal.SIGINT)
        golden(process.stderr.readline(), "first")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S / 2)
    assert process.returncode == 130
    golden(err, "second")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_stops_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    """Ctrl-C ends what a run is piped into as well, and may do so first."""
    with long_run("--checkpoint-dir", str(tmp_path)) as process:
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr.read() == ""
    assert read_checkpoint(tmp_path, "ppo")["iteration"] > 0


def test_a_result_that_nobody_reads_is_no_traceback() -> None:
    with Warm("-m", "hoptui_trainer", "ppo", *SMALL, "--iterations", "1", "--json") as process:
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 1
        assert process.stderr.read() == ""


def test_a_full_disk_under_the_log_is_not_the_end_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is left in its buffer cannot be written at its end either.
    with suppress(OSError), Path("/dev/full").open("w") as full:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", full)
            code = main(["ppo", *SMALL, "--iterations", "3", "--checkpoint-dir", str(tmp_path)])
        assert code == 0
    assert read_checkpoint(tmp_path, "ppo")["iteration"] == 3
