"""Processes that may use little memory: a batch that does not fit is computed in smaller pieces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.slow

LIMITED = """
import os, resource, sys
import psutil, torch
from hoptui_trainer.__main__ import main
torch.set_num_threads(1)
space = psutil.Process().memory_info().vms + int(sys.argv[1]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (space, space))
sys.exit(main(sys.argv[2:]))
"""
"""A process that can allocate only so many MiB more."""


def limited(mebibytes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    always = ("--threads", "1", "--preset", "tiny", "--iterations", "1", "--evaluate-every", "0")
    command = [sys.executable, "-c", LIMITED, str(mebibytes), *arguments, *always]
    env = {**os.environ, "HOPTUI": "off"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("lm", "--batch-tokens", "32768", "--micro-batch", "512"), 512),
        (("vision", "--data", "synthetic", "--batch-size", "4096", "--micro-batch", "4096"), 4096),
    ],
)
def test_a_batch_that_does_not_fit_is_computed_in_smaller_pieces(
    arguments: tuple[str, ...], asked: int
) -> None:
    """Such micro-batches take 400 MiB and more."""
    assert 1 <= result(limited(350, *arguments, "--json"))["micro_batch"] < asked


def test_a_minibatch_that_does_not_fit_is_computed_in_more_pieces() -> None:
    """In one piece it takes more than 300 MiB."""
    sizes = ("--num-envs", "256", "--rollout-len", "64", "--minibatch-size", "16384", "--hidden", "512")
    figures = result(limited(220, "ppo", *sizes, "--json"))
    assert figures["grad_accum"] > 1
    assert (figures["minibatch_size"], figures["env_steps"]) == (16_384, 16_384)


EXHAUSTED = """
import sys, torch
from hoptui_trainer.__main__ import main
from hoptui_trainer.ppo.rollout import Rollout
play, played = Rollout.play, []
def limited(self, *arguments):
    played.append(1)
    if len(played) > 1:
        raise torch.OutOfMemoryError("made up")
    play(self, *arguments)
Rollout.play = limited
sys.exit(main(sys.argv[1:]))
"""
"""A process whose memory is too short from the second iteration on."""


def test_a_process_with_a_smaller_model_takes_the_place_of_one_without_memory() -> None:
    arguments = ("ppo", "--preset", "tiny", "--iterations", "3", "--threads", "1", "--smaller-model-on-oom")
    command = [sys.executable, "-c", EXHAUSTED, *arguments, "--evaluate-every", "0", "--json"]
    done = subprocess.run(
        command, env={**os.environ, "HOPTUI": "off"}, capture_output=True, text=True, timeout=60
    )
    figures = result(done)
    assert (figures["iterations"], figures["restarts"], figures["ending"]) == (3, 1, "finished")
    assert figures["env_steps"] == 3 * 4 * 8  # with the sizes of before
