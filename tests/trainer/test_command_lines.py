"""Command lines of all workloads: what is drawn at random resolves or is refused in one sentence, and each
option is in the help and in effect."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from cyclopts import CycloptsError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from hoptui_trainer.__main__ import app, main
from hoptui_trainer.check import compute, transfer
from hoptui_trainer.check.outcome import failed
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.memory_budget import set_limit
from hoptui_trainer.common.options import declared, value_range
from hoptui_trainer.vision import images
from tests.trainer.option_reads import WORKLOADS, Option, options, resolved, values

EXAMPLES = 40
ODD = (
    "x",
    "-1",
    "0",
    "7",
    "0.5",
    "nan",
    "inf",
    "1e9",
    "4_096",
    "true",
    "",
    "--",
    "auto",
    "99999999999999999999",
)
"""Values that most options do not take."""
SLURM = ("--", "lm", "--checkpoint-dir", "/shared/ck")
SLURM_NEEDS = {"stop_before": ["--requeue"], "processes_per_node": ["--gpus-per-node", "0"]}
"""Options of slurm that are refused without another one."""
SLURM_VALUES = {
    "mem": "64GB",
    "time": "02:00:00",
    "env": "NCCL_DEBUG=INFO",
    "sbatch": "exclusive",
    "stop_before": "60",
}


def option_words(workload: str, option: Option) -> st.SearchStrategy[list[str]]:
    """The words of an option with a value that it takes, or with an odd one."""
    preset = next(iter(WORKLOADS[workload].presets))
    good = list(values(option, WORKLOADS[workload], {"preset": preset}, None))
    bad = [[f"{option.written}={value}"] for value in ODD]
    return st.one_of(st.sampled_from(good), st.sampled_from(good), st.sampled_from(bad))


@st.composite
def command_line(draw: st.DrawFn, workload: str) -> list[str]:
    known = options(workload)
    chosen = draw(st.lists(st.sampled_from(known), max_size=6, unique_by=lambda option: option.name))
    drawn = [draw(option_words(workload, option)) for option in chosen]
    small = [] if any(option.name == "preset" for option in chosen) else ["--preset", "tiny"]
    return [*small, *(word for each in drawn for word in each)]


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
def test_any_command_line_resolves_or_is_refused_in_a_sentence(
    workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(images, "POOL_BYTES", 1 << 14)
    seen: dict[str, int] = {"resolved": 0, "refused": 0}

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(command_line(workload))
    def check(line: list[str]) -> None:
        said = ""
        try:
            resolved(workload, line, at_once=True)
        except (UsageError, CycloptsError) as error:
            said = str(error)
        set_limit(None)
        seen["refused" if said else "resolved"] += 1
        assert not said or re.search(r"--[a-z]", said), (line, said)
        assert "\n" not in said, (line, said)

    check()
    assert min(seen.values()) > EXAMPLES // 10, seen


@pytest.mark.parametrize(
    ("workload", "name"),
    [(workload, "threads") for workload in WORKLOADS]
    + [("lm", "vocab_size"), ("vision", "image_size"), ("vision", "frames"), ("vision", "patch_size")],
)
def test_a_number_without_sense_is_refused_before_anything_is_made(workload: str, name: str) -> None:
    written = "--" + name.replace("_", "-")
    with pytest.raises(CycloptsError, match=written):
        resolved(workload, ["--preset", "tiny", written, "99999999999999999999"], at_once=True)


def test_a_sample_that_memory_has_no_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "limit_bytes", lambda *_: 10_000)
    with pytest.raises(UsageError, match=r"^--image-size, --frames: one sample takes"):
        resolved("vision", ["--preset", "tiny", "--data", "synthetic", "--image-size", "64"])


@pytest.mark.parametrize("workload", [*WORKLOADS, "slurm", "check"])
def test_help_lists_each_option_once_with_its_range_and_default(workload: str) -> None:
    wide = Console(width=1000, file=io.StringIO())  # the parser's own keeps the width that it had first
    app([workload, "--help"], console=wide, result_action="return_value")
    lines = [line.strip("│ ") for line in wide.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    arguments = {argument.name: argument for argument in app[workload].assemble_argument_collection()}
    knobs = {}
    if workload in WORKLOADS:
        knobs = {name: (kind, knob) for name, kind, knob in declared(WORKLOADS[workload].config)}
    for option in options(workload):
        [line] = [line for line in lines if re.match(rf"(\S+ )?{option.written}(?![\w-])", line)]
        if option.name in knobs:
            kind, knob = knobs[option.name]
            assert kind is bool or value_range(knob) in line
            assert "[default: " in line
        elif arguments[option.written].field_info.default not in (None, False, ()):
            assert "[default: " in line


@pytest.mark.parametrize("option", options("slurm"), ids=lambda option: option.name)
def test_every_option_of_slurm_changes_the_batch_file(
    option: Option, capsys: pytest.CaptureFixture[str]
) -> None:
    value = [] if option.kind is bool else [SLURM_VALUES.get(option.name, "3" if option.kind is int else "x")]
    given = [option.written, *value]
    needed = SLURM_NEEDS.get(option.name, [])
    if needed:
        assert main(["slurm", *given, *SLURM]) == 2
        assert capsys.readouterr().err.startswith(f"hoptui train: {option.written}")
    assert main(["slurm", *needed, *SLURM]) == 0
    usual = capsys.readouterr().out
    assert main(["slurm", *needed, *given, *SLURM]) == 0
    assert capsys.readouterr().out != usual


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], ("auto", Path())),
        (["--device", "cpu"], ("cpu", Path())),
        (["--dir", "/data"], ("auto", Path("/data"))),
    ],
)
def test_every_option_of_check_has_an_effect(
    given: list[str],
    expected: tuple[Any, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def note(what: object) -> Any:
        asked.append(what)
        return failed("a check", RuntimeError("no"), "nothing helps")

    monkeypatch.setattr(compute, "torch_device", lambda name: (None, note(name)))
    monkeypatch.setattr(transfer, "disk", note)
    assert main(["check", *given]) == 2
    assert tuple(asked) == expected
    plain = capsys.readouterr().out
    assert main(["check", "--json", *given]) == 2
    assert capsys.readouterr().out.startswith("{") > plain.startswith("{")
    assert {option.name for option in options("check")} == {"device", "dir", "json"}
