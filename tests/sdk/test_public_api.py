"""The public API: its names, its signatures and its documentation, whose examples are run."""

from __future__ import annotations

import inspect
import logging
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import hoptui
import hoptui.sdk
from hoptui.domain import knobs as wire
from hoptui.sdk.knobs import KnobHandle
from tests.run_state import queued_rows, run_state

pytestmark = pytest.mark.usefixtures("off")

SIGNATURES = {
    "connect": "name, *, total=None, resume=None, ranks='auto', config=None, tags=(), notes='', stacks=True",
    "Knob": "min=None, max=None, choices=(), scale='linear', effect='learning', cost='free', keeps='', "
    "unit='', description=''",
    "Knob.check": "name, value",
    "Run": "name, *, total=None, resume=None, ranks='auto', config=None, tags=(), notes='', stacks=True",
    "Run.bind": "obj, /, *, apply=None, **bounds",
    "Run.boundary": "step=None",
    "Run.checkpointed": "path='', *, error=None",
    "Run.close": "reason=None, detail=''",
    "Run.enter": "name",
    "Run.decline": "name, reason",
    "Run.event": "text, *, level='info'",
    "Run.flops": "per_unit, *, metric='', precision='bf16'",
    "Run.gpus": "uuids",
    "Run.hand_over": "where",
    "Run.iterations": "total=None, *, start=0",
    "Run.knob": "name, default, *, min=None, max=None, choices=(), scale='linear', effect='learning', "
    "cost='free', keeps='', unit='', description='', apply=None, read=None",
    "Run.knobs": "config, *, apply=None, read=None, without=()",
    "Run.leave": "name=None",
    "Run.log": "values=None, /, *, step=None, **metrics",
    "Run.metric": "name, *, unit='', headline=False",
    "Run.on_checkpoint": "save",
    "Run.on_profile": "start",
    "Run.optimizer": "optimizer, scheduler=None, *, prefix=''",
    "Run.phase": "name",
    "Run.phase_seconds": "path, seconds, *, ended=None",
    "Run.plan": "total",
    "Run.refuse_restart": "reason",
    "Run.state_dict": "",
    "Run.stop": "by=''",
    "KnobHandle.adopt": "",
    "KnobHandle.explain": "reason",
    "KnobHandle.holds": "",
    "KnobHandle.revert": "value, reason",
}
PROPERTIES = {
    "Run": {"config", "id", "restart_wanted", "step", "stop_asked", "stopping", "summary", "trace_folder"},
    "KnobHandle": {"by", "in_effect", "name", "tuned", "value", "version"},
}
OWNERS: dict[str, type] = {"Run": hoptui.Run, "KnobHandle": KnobHandle}


def public(thing: object) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def find(name: str) -> Any:
    owner, _, member = name.partition(".")
    found = OWNERS.get(owner) or getattr(hoptui, owner)
    return getattr(found, member) if member else found


DOCUMENTED = [*SIGNATURES, *(f"{owner}.{name}" for owner in PROPERTIES for name in sorted(PROPERTIES[owner]))]


def test_the_package_lists_its_names() -> None:
    code = "import hoptui; print([n for n in dir(hoptui) if n[0] != '_'], '__version__' in dir(hoptui))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "['Knob', 'LATER', 'Run', 'connect'] True"
    assert public(hoptui) == ["Knob", "LATER", "Run", "connect"], "also after its packages are imported"
    assert hoptui.sdk.__all__ == ["DescribedValues", "KnobHandle", "RankStore", "TorchStore"]


@pytest.mark.parametrize("owner", OWNERS)
def test_a_class_lists_its_api_alone(owner: str) -> None:
    methods = {name.partition(".")[2] for name in SIGNATURES if name.startswith(f"{owner}.")}
    assert set(public(OWNERS[owner])) == methods | PROPERTIES[owner]


def test_an_object_lists_what_its_class_does(run: hoptui.Run) -> None:
    assert public(run) == public(hoptui.Run)
    assert len(public(run)) <= 40
    assert public(run.knob("n", 1)) == public(KnobHandle)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    signature = inspect.signature(find(name))
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    written = str(inspect.Signature([p for p in plain if p.name != "self"]))
    assert written == f"({SIGNATURES[name]})"


@pytest.mark.parametrize("name", DOCUMENTED)
def test_each_name_has_a_docstring_with_its_arguments_and_an_example(name: str) -> None:
    doc = inspect.getdoc(find(name)) or ""
    assert re.match(r"[A-Z].*\.", doc), "it begins with a sentence"
    assert "\nExample:\n    ```python\n" in doc
    parameters = [] if name not in SIGNATURES else [*inspect.signature(find(name)).parameters]
    block = re.search(r"^Args:\n((?:    .*\n|\n)*)", doc + "\n", re.MULTILINE)
    listed = re.findall(r"^    (\w+): \S", block.group(1), re.MULTILINE) if block else []
    assert listed == [parameter for parameter in parameters if parameter != "self"]


@pytest.mark.parametrize("name", ["Knob", "Run.knob"])
@pytest.mark.parametrize("parameter", ["Scale", "Effect", "Cost"])
def test_each_allowed_value_is_explained(name: str, parameter: str) -> None:
    doc = inspect.getdoc(find(name)) or ""
    (text,) = re.findall(rf"^    {parameter.lower()}: (.*(?:\n        .*)*)", doc, re.MULTILINE)
    text = " ".join(text.split())
    for value in getattr(wire, parameter).__args__:
        assert f"`{value}`: " in text


def examples() -> list[Any]:
    found = []
    for name, thing in [
        ("hoptui", hoptui),
        ("KnobHandle", KnobHandle),
        *((name, find(name)) for name in DOCUMENTED),
    ]:
        for number, code in enumerate(
            re.findall(r"```python\n(.*?)```", inspect.getdoc(thing) or "", re.DOTALL)
        ):
            found.append(pytest.param(code, id=f"{name} {number}"))
    return found


@pytest.mark.parametrize("code", examples())
def test_the_example_runs(
    code: str,
    run: hoptui.Run,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("_HOPTUI_RESTART", "")  # restored afterwards
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"hoptui": hoptui, "run": run, "__name__": "example"}
    monkeypatch.setitem(sys.modules, "example", type(sys)("example"))  # dataclasses look their module up
    with caplog.at_level(logging.WARNING, "hoptui"):
        exec(compile(textwrap.dedent(code), "example", "exec", dont_inherit=True), names)
        run.boundary()
    assert not caplog.records, "hoptui logs its errors and raises none"


def test_there_is_an_example_for_every_name() -> None:
    assert len(examples()) >= len(DOCUMENTED) + 1


def test_an_attribute_of_the_script_collides_with_nothing(
    run: hoptui.Run, caplog: pytest.LogCaptureFixture
) -> None:
    own: Any = run
    before = {name: getattr(run, name) for name in PROPERTIES["Run"]}
    for name in ("state", "alive", "notes", "rows", "inbox", "phases", "rank", "total", "epoch"):
        setattr(own, name, "the script's")
    with caplog.at_level(logging.WARNING, "hoptui"):
        for name in PROPERTIES["Run"]:
            setattr(own, name, "the script's")
    assert len(caplog.records) == len(PROPERTIES["Run"])
    assert {record.args for record in caplog.records} == {("Run", name) for name in PROPERTIES["Run"]}
    assert {name: getattr(run, name) for name in PROPERTIES["Run"]} == before
    for step in run.iterations(3):
        run.log(x=step)
    assert [row["x"] for _, _, row in queued_rows(run_state(run))] == [0, 1, 2]
    assert own.rows == "the script's"


def test_a_value_cannot_be_assigned_past_the_boundary(
    run: hoptui.Run, caplog: pytest.LogCaptureFixture
) -> None:
    handle: Any = run.knob("n", 4, min=1, max=9)
    with caplog.at_level(logging.WARNING, "hoptui"):
        handle.value = 5
    assert handle.value == 4
    assert [record.args for record in caplog.records] == [("KnobHandle", "value")]
