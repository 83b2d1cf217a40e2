"""The page of the five guides is true as far as this can be checked without training: its rows, their states,
tests, benchmarks, commands, options and knobs."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cyclopts import CycloptsError

from docs._generate.layout import load
from hoptui.presentation import targets
from hoptui_trainer.__main__ import app as trainer
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.options import declared
from hoptui_trainer.slurm.training_command import WORKLOADS, checked
from tests.docs.markdown import ROOT, blocks

PAGE = ROOT / "docs/guides.md"
HARDWARE = ROOT / "docs/reference/training.md"
STATES = ("works", "refuted")
ROWS = 123
STARTS = {
    "H100, reinforcement learning": 1,
    "H200, hybrid reinforcement learning": 21,
    "H200, vision": 43,
    "H100, language model on several GPUs": 67,
    "H100, FP8 language model": 102,
    "All guides": 122,
}
"""The first row of each guide."""
ON = {"on": True, "off": False}


class Row(NamedTuple):
    """A row of the page."""

    number: int
    guide: str
    asked: str
    here: str
    state: str
    evidence: str

    @property
    def spans(self) -> list[str]:
        """The code in its answer."""
        return re.findall(r"`([^`]+)`", self.here)

    @property
    def commands(self) -> list[list[str]]:
        """The words after `hoptui` of each command in its answer."""
        return [shlex.split(span)[1:] for span in self.spans if span.split()[0] == "hoptui"]

    @property
    def workloads(self) -> list[str]:
        """Those that its commands train."""
        trained = [_trained(words) for words in self.commands]
        return [words[0] for words in trained if words]


def _trained(words: Sequence[str]) -> list[str]:
    """The training command in the words of a command: `lm --preset tiny`. None is empty."""
    if words[:2] == ["train", "slurm"]:
        return [*words[words.index("--") + 1 :]]
    return [*words[1:]] if words[0] == "train" and words[1] in WORKLOADS else []


def _rows() -> Iterator[Row]:
    guide = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            guide = line.removeprefix("## ")
        elif re.match(r"\| \d", line):
            number, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
            assert len(cells) == 4, f"row {number} has {len(cells)} cells"
            yield Row(int(number), guide, *cells)


FOUND = list(_rows())
EACH = pytest.mark.parametrize("row", FOUND, ids=lambda row: str(row.number))


def test_there_are_123_rows_in_their_order() -> None:
    assert [row.number for row in FOUND] == list(range(1, ROWS + 1))


def test_each_guide_has_its_rows_and_a_command_with_its_settings() -> None:
    first = {guide: min(row.number for row in FOUND if row.guide == guide) for guide in STARTS}
    assert first == STARTS
    parts = re.split(r"(?m)^## ", PAGE.read_text())[1:]
    for part in parts:
        before, _, _ = part.partition("\n| # |")
        assert "```sh\nhoptui train " in before, part.splitlines()[0]


def test_the_page_counts_its_states() -> None:
    assert {row.state for row in FOUND} <= set(STATES)
    works = sum(row.state == "works" for row in FOUND)
    text = " ".join(PAGE.read_text().split())
    assert f"{works} of the {ROWS} rows work. {ROWS - works} are refuted" in text


@EACH
def test_a_row_says_what_was_asked_and_how_it_is_done(row: Row) -> None:
    assert row.asked
    assert row.here
    kinds = ("hoptui ", "--", "tests/", "benchmarks/")
    assert [span for span in row.spans if not span.startswith(kinds)] == []
    if row.state == "works" and not row.commands:
        assert row.here.startswith("always: ") or "`benchmarks/" in row.evidence, "no command"


@EACH
def test_its_evidence_exists(row: Row) -> None:
    named = re.findall(r"`([^`]+)`", row.evidence)
    assert named
    for name in named:
        file, _, function = name.partition("::")
        assert (ROOT / file).is_file(), name
        if function:
            assert function in _tests(ROOT / file), name
        else:
            assert file.startswith("benchmarks/"), name
            assert "main" in _functions(ROOT / file), name


@EACH
def test_a_refuted_row_leads_to_the_figure(row: Row) -> None:
    if row.state != "refuted":
        return
    link = re.search(r"\[([^]]+)\]\(reference/training\.md#what-the-hardware-allows\)", row.evidence)
    assert link, "no link"
    assert re.search(r"\d", row.here), "no figure"
    paragraphs = _hardware().split("\n\n")
    about = [text for text in paragraphs if link[1] in " ".join(text.split()).replace("`", "")]
    assert any(re.search(r"\d", text) for text in about), f"no figure about {link[1]}"


@EACH
def test_its_commands_are_understood(row: Row) -> None:
    for words in row.commands:
        _understood(words)


@EACH
def test_its_options_are_those_of_its_commands(row: Row) -> None:
    known = {option for words in row.commands for option in _options(words)}
    for span in row.spans:
        if span.startswith("--"):
            assert span.split()[0] in known, span
            if " " in span:
                assert any(_takes(words, span.split()) for words in row.commands), span


@EACH
def test_its_knobs_are_declared_and_take_the_value(row: Row) -> None:
    for words in row.commands:
        if words[0] != "set":
            continue
        assert row.workloads, "no command says whose knob it is"
        for assignment in words[2:]:
            name, _, value = assignment.partition("=")
            for workload in row.workloads:
                knobs = {knob.name: knob for knob in declared(WORKLOADS[workload].config)}
                assert name in knobs, f"{workload} has no knob {name}"
                kind = knobs[name].kind
                knobs[name].knob.check(name, ON[value] if kind is bool else kind(value))


@pytest.mark.parametrize("line", [line for block in blocks(PAGE, "sh") for line in block.code.splitlines()])
def test_the_settings_of_a_guide_are_understood(line: str) -> None:
    _understood(shlex.split(line)[1:])


def test_what_is_not_true_is_found() -> None:
    with pytest.raises(CycloptsError):
        _understood(["train", "lm", "--no-such-option", "3"])
    with pytest.raises(UsageError):
        _understood(["train", "lm", "--preset", "no-such-preset"])
    with pytest.raises(CycloptsError):
        _understood(["gpus", "--no-such-option"])
    with pytest.raises(ValueError, match="no_such_reading"):
        _understood(["target", "RUN", "no_such_reading=1"])
    assert "--iterations" in _options(["train", "lm"])
    assert "--hz" in _options(["watch", "RUN"])
    assert not _takes(["train", "lm"], ["--evaluate-every", "often"])
    assert "no_such_test" not in _tests(Path(__file__))


def _understood(words: Sequence[str]) -> None:
    """Parse a command as hoptui and the trainer do, without running it."""
    if words[0] == "train":
        trainer.parse_args([*words[1:]], exit_on_error=False, print_error=False)
        if trained := _trained(words):
            world = 4 if "slurm" in words else 1
            checked(trained, world=world, on_gpu="cpu" not in trained, has_folder=True)
        return
    _, _, ignored = _hoptui().parse_args([*words], exit_on_error=False, print_error=False)
    assert not ignored
    if words[0] == "target":
        for written in words[2:]:
            targets.parse(written)


def _takes(words: Sequence[str], option: Sequence[str]) -> bool:
    """Whether a command can be given an option and its value, in place of one that it has."""
    at = words.index(option[0]) if option[0] in words else len(words)
    try:
        _understood([*words[:at], *words[at + len(option) :], *option])
    except (CycloptsError, UsageError):
        return False
    return True


def _options(words: Sequence[str]) -> set[str]:
    """All options of a command; of a batch file also those of the command in it."""
    known = set[str]()
    if words[0] != "train":
        known |= _names(_hoptui(), words[:1])
    else:
        known |= _names(trainer, words[1:2])
        if words[1] == "slurm":
            known |= _names(trainer, _trained(words)[:1])
    return known


def _names(app: Any, path: Sequence[str]) -> set[str]:
    found = app
    for name in path:
        found = found[name]
    return {name for argument in found.assemble_argument_collection() for name in argument.names}


@functools.cache
def _hoptui() -> Any:
    return load("cli").build()


@functools.cache
def _functions(path: Path) -> frozenset[str]:
    """The functions of a module."""
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def _tests(path: Path) -> frozenset[str]:
    return frozenset(name for name in _functions(path) if name.startswith("test_"))


@functools.cache
def _hardware() -> str:
    """The section on what the hardware allows."""
    return HARDWARE.read_text().partition("\n## What the hardware allows\n")[2]
