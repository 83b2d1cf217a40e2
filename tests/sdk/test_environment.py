"""What the environment says of a process."""

from __future__ import annotations

import pytest

from hoptui.sdk.process import (
    LONGEST_COMMAND,
    VARIABLE,
    command_line,
    ranks,
    slurm_gpus,
    switched_off,
    take_handover,
    versions,
    visible_devices,
)


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no", "false"])
def test_switched_off(word: str) -> None:
    assert switched_off({"HOPTUI": word})


@pytest.mark.parametrize("word", ["", "on", "1", "yes"])
def test_on_otherwise(word: str) -> None:
    assert not switched_off({"HOPTUI": word})
    assert not switched_off({})


def test_ranks() -> None:
    assert ranks({"RANK": "3", "WORLD_SIZE": "8"}) == (3, 8)
    assert ranks({}) == (0, 1)
    assert ranks({"RANK": "three"}) == (0, 1)
    assert ranks({"RANK": "0", "WORLD_SIZE": "9" * 20}) == (0, 1)


def test_visible_devices_are_passed_on_as_they_are() -> None:
    assert visible_devices({}) is None
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}) == ""  # no GPU at all, which is not the same
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "GPU-1,2"}) == "GPU-1,2"


def test_slurm_says_the_gpus_of_the_step_before_those_of_the_job() -> None:
    assert slurm_gpus({"SLURM_JOB_GPUS": "0,1,2,3"}) == "0,1,2,3"
    assert slurm_gpus({"SLURM_JOB_GPUS": "0,1,2,3", "SLURM_STEP_GPUS": "2"}) == "2"
    assert slurm_gpus({"SLURM_STEP_GPUS": ""}) == ""


def test_variables_that_are_not_utf_8_can_be_sent() -> None:
    """Python shows such bytes as lone surrogates, which no message can carry."""
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "0,\udcff"}) == "0,?"
    assert slurm_gpus({"SLURM_STEP_GPUS": "\udcff"}) == "?"


def test_a_handover_that_is_not_utf_8_is_none() -> None:
    assert take_handover({VARIABLE: "\udcff"}, 1, "r") is None


def test_a_command_line_is_whole_or_says_that_it_is_not() -> None:
    words = ["/usr/bin/trainer", "ppo", *(f"--option-{i} value" for i in range(20))]
    assert command_line(words) == f"trainer ppo {' '.join(words[2:])}"
    assert len(command_line(words)) > 300
    cut = command_line([*words, "x" * 2000])
    assert (len(cut), cut[-1]) == (LONGEST_COMMAND, "…")
    assert command_line(["odd\udc80"]) == "odd?"
    assert command_line([]) == ""
    assert command_line(["/opt/lib/trainer/__main__.py", "ppo"]) == command_line(["/opt/bin/trainer", "ppo"])
    assert command_line(["__main__.py"]) == "__main__.py"


def test_versions_are_those_of_what_is_imported_already() -> None:
    class Torch:
        __version__ = "2.12.0+cu130"

    assert versions({"torch": Torch, "numpy": Torch}) == {"torch": "2.12.0+cu130"}
    assert versions({}) == versions({"torch": None}) == versions({"torch": object()}) == {}
