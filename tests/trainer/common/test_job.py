from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from hoptui import Knob
from hoptui.domain import traces
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.job import JobOptions, preset, resolve
from hoptui_trainer.common.trace_plan import MOST_TRACED, TracePlan
from tests.golden import Golden


@dataclass(kw_only=True)
class Config:
    width: Annotated[int, Knob(1, 64, cost="restart", description="width")] = 8
    lr: Annotated[float, Knob(1e-6, 1.0, scale="log", description="rate")] = 0.1
    mode: Annotated[Literal["a", "b"], Knob(choices=("a", "b"), description="mode")] = "a"


def test_the_command_line_wins_over_the_checkpoint_and_that_over_the_preset(golden: Golden) -> None:
    config, notes = resolve(Config(), {"width": 16, "lr": 0.2, "mode": "b"}, {"lr": 0.3})
    assert config == Config(width=16, lr=0.3, mode="b")
    golden("".join(f"{note}\n" for note in notes))


def test_without_a_checkpoint_there_is_nothing_to_explain() -> None:
    assert resolve(Config(), None, {"width": 2}) == (Config(width=2), ())


@pytest.mark.parametrize(("name", "value"), [("width", 0), ("lr", 7.0), ("mode", "c")])
def test_a_value_out_of_bounds_names_its_option(name: str, value: int | float | str) -> None:
    with pytest.raises(UsageError, match=f"--{name}"):
        resolve(Config(), None, {name: value})


def test_an_unknown_preset_names_the_ones_there_are() -> None:
    assert preset({"tiny": {"width": 1}}, "tiny") == {"width": 1}
    with pytest.raises(UsageError, match="--preset huge: there is no such preset; there are tiny, large"):
        preset({"tiny": {}, "large": {}}, "huge")


def test_checkpoints_need_a_folder_that_can_be_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--checkpoint-every needs a folder"):
        JobOptions(checkpoint_every=3).check()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--checkpoint-dir .*file/below: Not a directory"):
        JobOptions(checkpoint_dir=tmp_path / "file" / "below").check()
    JobOptions(checkpoint_dir=tmp_path / "a" / "b").check()
    assert (tmp_path / "a" / "b").is_dir()


def test_a_checkpoint_is_due_every_few_iterations() -> None:
    options = JobOptions(checkpoint_dir=Path("here"), checkpoint_every=3)
    assert [i for i in range(1, 8) if options.checkpoint_due(i)] == [3, 6]
    assert not any(JobOptions().checkpoint_due(i) for i in range(1, 8))


def test_the_tiny_preset_ends_soon_unless_told_otherwise() -> None:
    assert JobOptions().iterations == 1000
    assert JobOptions(preset="tiny").iterations == 100
    assert JobOptions(preset="tiny", iterations=7).iterations == 7


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"profile_wait": 3}, "--profile-wait"),
        ({"profile_warmup": 0}, "--profile-warmup"),
        ({"profile_stacks": True}, "--profile-stacks"),
        ({"profile_shapes": True}, "--profile-shapes"),
        ({"profile_memory": True}, "--profile-memory"),
        ({"profile_steps": 1001}, "--profile-steps"),
        ({"profile_steps": 1, "iterations": 11}, "--profile-steps"),
    ],
)
def test_a_trace_that_cannot_be_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=f"^{named}"):
        JobOptions(**options).check()


def test_a_trace_from_the_command_line() -> None:
    job = JobOptions(profile_steps=4, profile_warmup=2, profile_memory=True, iterations=13)
    job.check()
    assert job.trace == TracePlan(steps=4, wait=10, warmup=2, memory=True)
    assert JobOptions().trace is None


def test_the_command_line_allows_as_long_a_trace_as_a_viewer() -> None:
    assert MOST_TRACED == traces.MOST_TRACED
