"""What the documentation promises of a live run: the tutorial's script can be turned, and `--json` has the
documented keys."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import threading
from typing import Any

import pytest

from docs._generate.layout import load
from hoptui.cli.main import COMMANDS, FUNCTIONS
from tests.conftest import TestNode, until
from tests.docs.markdown import ROOT, blocks

TUTORIAL = ROOT / "docs/getting_started/tutorial.md"
JSON = (ROOT / "docs/reference/json.md").read_text()


def documented(heading: str) -> set[str]:
    """The keys in the tables of a section of the page about JSON."""
    _, found, rest = JSON.partition(f"## `hoptui {heading} --json`\n")
    section = re.split(r"(?m)^## ", rest)[0] if found else ""
    cells = re.findall(r"(?m)^\| ((?:`\w+`(?:, )?)+) \|", section)
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


def hoptui(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    """A command in this process: its exit code, and the value that it printed as JSON."""
    capsys.readouterr()
    code = load("cli").main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_script_of_the_tutorial_can_be_turned(node: TestNode, capsys: pytest.CaptureFixture[str]) -> None:
    *_, script = blocks(TUTORIAL, "python")
    viewer = node.viewer()
    namespace: dict[str, Any] = {}
    code = compile(script.code, script.place, "exec", dont_inherit=True)
    # In a thread: torch is imported here already, and a process of its own would import it once more.
    training = threading.Thread(target=exec, args=(code, namespace), daemon=True)
    training.start()
    try:
        until(
            lambda: "pieces" in [knob.spec.name for knob in viewer.run("tutorial").knobs],
            seconds=30,
            what="the knobs",
        )
        status, done = hoptui(capsys, "set", "tutorial", "pieces=1", "lr=3e-4")
        assert status == 0
        assert [command["stage"] for command in done["commands"]] == ["applied", "applied"]
        assert [command["effective"] for command in done["commands"]] == [1, 3e-4]
        assert namespace["optimizer"].param_groups[0]["lr"] == 3e-4
    finally:
        namespace["run"].stop()
        training.join(30)
        namespace["run"].close()
    assert not training.is_alive()


@pytest.mark.parametrize("command", [name for name, _, _ in COMMANDS])
def test_every_command_with_json_is_documented(command: str) -> None:
    function = FUNCTIONS.get(command, command)
    module = importlib.import_module(f"hoptui.cli.commands.{function}")
    if "json" in inspect.signature(getattr(module, function)).parameters:
        assert documented(command), f"describe the keys of hoptui {command} --json in docs/reference/json.md"


def test_json_has_the_documented_keys(node: TestNode, capsys: pytest.CaptureFixture[str]) -> None:
    node.start()
    viewer = node.viewer()
    until(lambda: len(viewer.run().knobs) == 2, what="the knobs")
    code, done = hoptui(capsys, "set", "toy", "grad_accum=8")
    assert code == 0
    keys = set(done) | set(done["commands"][0])
    assert set(done) == documented("set")
    assert all(f"`{key}`" in JSON for key in keys)
    _, [first] = hoptui(capsys, "ls")
    assert set(first) <= documented("ls")
    _, [more] = hoptui(capsys, "ls", "--all")
    assert set(more) == documented("ls")
    _, [tabled] = hoptui(capsys, "runs")
    assert set(tabled) == documented("runs")
    _, shown = hoptui(capsys, "status", "toy")
    assert set(shown) - set(first) == documented("status")
    for command, words in {
        "get": ["get", "toy"],
        "gpus": ["gpus"],
        "tune": ["tune", "toy", "--report"],
        "target": ["target", "toy"],
        "daemon status": ["daemon", "status"],
        "doctor": ["doctor"],
    }.items():
        _, value = hoptui(capsys, *words)
        only_of_errors = {"error", "code"} - set(value)
        assert set(value) == documented(command) - only_of_errors, command
    _, [given] = hoptui(capsys, "history", "toy")
    assert set(given) == documented("history")
    code, refused = hoptui(capsys, "status", "nobody")
    assert (code, set(refused)) == (3, {"error", "code"})
