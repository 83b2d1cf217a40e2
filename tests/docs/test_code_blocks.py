"""Every code block of the README and the documentation works: Python runs, commands parse, TOML and JSON are
read."""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cyclopts import CycloptsError

from docs._generate.layout import load
from tests.docs import python_pages
from tests.docs.markdown import PAGES, ROOT, Block, blocks, name

COMMANDS = [
    pytest.param(line, id=f"{block.place}:{line}")
    for page in PAGES
    for block in blocks(page, "sh", "console")
    for line in block.code.splitlines()
    if line.removeprefix("$ ").startswith("hoptui")
]
NOT_YET = {"train": "hoptui train ", "example": "hoptui replay --example"}
"""Commands of the documentation that another change brings: by what they need."""
OTHER_COMMANDS = ("pip install ", "make ", "python ", "torchrun ", "accelerate launch ", "srun ")
MODULE = "code_of_a_page"
KINDS = ("python", "sh", "console", "toml", "json", "text", "yaml", "sql")


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """No daemon, and a directory to write into, which is the working directory."""
    monkeypatch.setenv("HOPTUI", "off")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    # A page may set signal handlers and define dataclasses, which look for their module.
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setitem(sys.modules, MODULE, ModuleType(MODULE))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("page", python_pages.HERE, ids=name)
def test_python_blocks_of_a_page_run_in_order(page: Path, quiet: Path) -> None:
    namespace = _namespace(quiet)
    if page.name in ("ddp.md", "own_loop.md"):
        store = dist.FileStore(str(quiet / "ranks"), 1)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    for block in blocks(page, "python"):
        code = block.code
        if block.replace:
            assert block.replace[0] in code, f"{block.place}: nothing to replace"
            code = code.replace(*block.replace)
        _execute(block, block.setup, namespace)
        _execute(block, code, namespace)


def test_pages_that_need_a_framework_are_run_where_the_frameworks_are() -> None:
    """`make test-integrations` installs these, and fails if one is missing; tests/integrations/test_pages.py
    runs the pages."""
    makefile = (ROOT / "Makefile").read_text()
    assert f"import {', '.join(python_pages.FRAMEWORKS)}'" in makefile
    packages = (ROOT / "tests/integrations/newest.txt").read_text().replace("-", "_")
    assert [name for name in python_pages.FRAMEWORKS if f"\n{name}" not in packages] == []
    assert (ROOT / "tests/integrations/test_pages.py").exists()
    assert not set(python_pages.HERE) & set(python_pages.WITH_FRAMEWORKS)


def _execute(block: Block, code: str, namespace: dict[str, Any]) -> None:
    # The lines of the page, so that a traceback points into it.
    source = "\n" * block.line + code
    exec(compile(source, block.place, "exec", dont_inherit=True), namespace)


def _namespace(directory: Path) -> dict[str, Any]:
    """What the blocks assume to be there: a short training loop."""
    import hoptui

    optimizer = SimpleNamespace(param_groups=[{"lr": 3e-4}])
    return {
        "__name__": MODULE,
        "hoptui": hoptui,
        "nn": torch.nn,
        "optimizer": optimizer,
        "os": os,
        "torch": torch,
        "tmp": directory,
        "total_steps": 3,
        "train_step": lambda micro_batches: (0.5, 256),
        "set_lr": lambda value: optimizer.param_groups[0].update(lr=value),
        "get_lr": lambda: optimizer.param_groups[0]["lr"],
    }


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_understood_by_the_command_line(line: str) -> None:
    app = _app()
    words = shlex.split(line.removeprefix("$ "), comments=True)[1:]
    if _not_yet(app, line):
        pytest.skip("this command comes with another change")
    try:
        _, _, ignored = app.parse_args(words, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        pytest.fail(f"{line}: {error}")
    assert not ignored


@functools.cache
def _app() -> Any:
    """The command line; its parser changes nothing in it."""
    return load("cli").build()


@functools.cache
def _help() -> str:
    """All options of all commands."""
    return str(_app().generate_docs(output_format="markdown"))


def _not_yet(app: Any, line: str) -> bool:
    if line.startswith(NOT_YET["train"]):
        return "train" not in set(app)
    if line.startswith(NOT_YET["example"]):
        return "--example" not in _help()
    return False


def test_other_commands_are_the_few_that_a_reader_has() -> None:
    unknown = [
        f"{block.place}: {line}"
        for page in PAGES
        for block in blocks(page, "sh", "console")
        for line in block.code.splitlines()
        if line.strip() and not line.removeprefix("$ ").startswith(("hoptui", *OTHER_COMMANDS))
    ]
    assert unknown == []


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    asked = [
        line.split()[1]
        for page in PAGES
        for block in blocks(page, "sh", "text")
        for line in block.code.splitlines()
        if line.startswith("make ")
    ]
    assert asked
    assert [target for target in asked if f"\n{target}:" not in makefile] == []


@pytest.mark.parametrize(
    "block", [b for page in PAGES for b in blocks(page, "toml")], ids=lambda block: block.place
)
def test_settings_are_read_without_a_problem(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "hoptui" / "config.toml"
    file.parent.mkdir()
    file.write_text(block.code)
    found = load("config").read(environ={"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)})
    assert found.problems == ()
    known = load("actions").DEFAULT_KEYS
    assert [action for action in found.keys if action not in known] == []


@pytest.mark.parametrize(
    "block", [b for page in PAGES for b in blocks(page, "json")], ids=lambda block: block.place
)
def test_json_is_json(block: Block) -> None:
    assert json.loads(block.code)


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    found = {block.kind for page in PAGES for block in blocks(page, *KINDS, "")}
    every = {kind for page in PAGES for kind in _kinds(page)}
    assert every - found == set()
    assert "" not in found, "a block without a language"


def _kinds(page: Path) -> Iterator[str]:
    inside = False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            if not inside:
                yield line.removeprefix("```")
            inside = not inside
