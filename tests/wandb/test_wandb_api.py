"""The public names of `hoptui.wandb`, and the examples of their documentation."""

from __future__ import annotations

import inspect
import logging
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hoptui.wandb

wandb: Any = hoptui.wandb

SIGNATURES = {
    "alert": "title='', text='', level=None, **others",
    "define_metric": "name='', *args, **others",
    "finish": "exit_code=None, **others",
    "init": "entity=None, project=None, dir=None, id=None, name=None, notes=None, tags=None, config=None, "
    "config_exclude_keys=None, config_include_keys=None, group=None, job_type=None, mode=None, resume=None, "
    "reinit=None, sync_tensorboard=None, **others",
    "log": "data=None, step=None, commit=None, **others",
    "login": "*args, **others",
}
OF_A_RUN = [
    "alert", "config", "define_metric", "dir", "disabled", "entity", "finish", "get_url", "group", "hoptui",
    "id", "job_type", "log", "name", "notes", "offline", "path", "project", "resumed", "start_time", "step",
    "summary", "sweep_id", "tags", "url",
]  # fmt: skip


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("HOPTUI", "off")
    monkeypatch.chdir(tmp_path)
    yield
    wandb.finish()


def test_the_names_are_these() -> None:
    assert set(wandb.__all__) == {*SIGNATURES, "WandbRun", "WandbSummary", "config", "run", "summary"}
    run = wandb.init()
    assert [name for name in dir(run) if not name.startswith("_")] == OF_A_RUN


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    signature = inspect.signature(getattr(wandb, name))
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    assert str(inspect.Signature(plain)) == f"({SIGNATURES[name]})"


@pytest.mark.parametrize("name", [*SIGNATURES, "WandbRun", ""])
def test_the_example_runs(name: str, caplog: pytest.LogCaptureFixture) -> None:
    doc = inspect.getdoc(getattr(wandb, name) if name else hoptui.wandb) or ""
    (code,) = re.findall(r"```python\n(.*?)```", doc, re.DOTALL)
    with caplog.at_level(logging.WARNING, "hoptui"):
        exec(compile(textwrap.dedent(code), "example", "exec", dont_inherit=True), {})
    assert not caplog.records


def test_neither_wandb_nor_torch_is_imported() -> None:
    code = (
        "import sys, hoptui.wandb; print([n for n in ('wandb', 'torch', 'zmq', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
