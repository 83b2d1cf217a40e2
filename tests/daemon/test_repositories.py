"""What git says of a run's script: in time, or it is unknown."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hoptui.daemon import repositories
from hoptui.daemon.repositories import RepositoryReader, parsed
from hoptui.domain.details import Repository
from tests.conftest import over, until

HEAD = "# branch.oid 3f9c2a1b\n# branch.head main\n"
CHANGED = "1 .M N... 100644 100644 100644 aaaa bbbb train.py\n"


@pytest.mark.parametrize(
    ("output", "complete", "found"),
    [
        (HEAD, True, Repository(commit="3f9c2a1b", branch="main", dirty=False)),
        (HEAD, False, Repository(commit="3f9c2a1b", branch="main", dirty=None)),
        (HEAD + CHANGED, False, Repository(commit="3f9c2a1b", branch="main", dirty=True)),
        ("# branch.oid 3f\n# branch.head (detached)\n", True, Repository(commit="3f", dirty=False)),
        ("# branch.oid (initial)\n# branch.head main\n", True, None),
        ("", True, None),
    ],
)
def test_what_git_prints(output: str, complete: bool, found: Repository | None) -> None:
    assert parsed(output, complete=complete) == found


@pytest.fixture
def found() -> dict[str, Repository]:
    return {}


@pytest.fixture
def reader(found: dict[str, Repository]) -> Iterator[RepositoryReader]:
    reading = RepositoryReader(found.__setitem__)
    yield reading
    reading.close()


def ask(reader: RepositoryReader, script: str = "") -> None:
    reader.ask("r1", os.getpid(), script)

    def answered() -> bool:
        reader.tend()
        return not reader.busy

    until(answered, what="git")


def git(where: Path, *words: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    names = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", *names, *words], cwd=where, env={**os.environ, **own}, capture_output=True, text=True,
        check=True, timeout=30,
    ).stdout.strip()  # fmt: skip


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_real_repository(
    tmp_path: Path, reader: RepositoryReader, found: dict[str, Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, elsewhere = tmp_path / "code", tmp_path / "elsewhere"
    for place in (code, elsewhere):
        place.mkdir()
    script = code / "train.py"
    script.write_text("pass\n")
    git(code, "init", "-q", "-b", "topic")
    git(code, "add", ".")
    git(code, "commit", "-qm", "first")
    commit = git(code, "rev-parse", "HEAD")
    monkeypatch.chdir(elsewhere)
    ask(reader, str(script))
    assert found.pop("r1") == Repository(commit=commit, branch="topic", dirty=False)
    (code / "untracked").touch()
    ask(reader, str(script))
    assert found.pop("r1").dirty is False
    script.write_text("changed\n")
    ask(reader, str(script))
    assert found.pop("r1").dirty is True
    ask(reader, "")  # as in a notebook: the working directory
    assert not found
    monkeypatch.chdir(code)
    ask(reader, "/nowhere/train.py")
    assert found.pop("r1").commit == commit
    git(code, "checkout", "-q", "--detach")
    ask(reader, str(script))
    assert found.pop("r1").branch == ""


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_an_installed_script_is_not_of_the_repository_that_its_environment_is_in(
    tmp_path: Path, reader: RepositoryReader, found: dict[str, Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, elsewhere = tmp_path / "code", tmp_path / "elsewhere"
    packages = code / ".venv/lib/python3.11/site-packages/ray"
    for place in (packages, elsewhere):
        place.mkdir(parents=True)
    git(code, "init", "-q", "-b", "main")
    git(code, "commit", "-qm", "first", "--allow-empty")
    monkeypatch.chdir(elsewhere)
    ask(reader, str(packages / "default_worker.py"))
    assert not found
    monkeypatch.chdir(code)
    ask(reader, str(packages / "default_worker.py"))
    assert found["r1"].commit == git(code, "rev-parse", "HEAD"), "of the working directory"


def test_without_git_it_is_unknown(found: dict[str, Repository], tmp_path: Path) -> None:
    reader = RepositoryReader(found.__setitem__, program=str(tmp_path / "git"))
    ask(reader, __file__)
    assert not found


def test_a_git_that_hangs_is_killed(
    found: dict[str, Repository], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repositories, "LONGEST_S", 0.5)
    program, pid = tmp_path / "git", tmp_path / "pid"
    program.write_text(f"#!/bin/sh\necho $$ > {pid}\nprintf '{HEAD}'\nexec sleep 60\n".replace("\n#", "\\n#"))
    program.chmod(stat.S_IRWXU)
    reader = RepositoryReader(found.__setitem__, program=str(program))
    ask(reader)
    assert found == {"r1": Repository(commit="3f9c2a1b", branch="main", dirty=None)}
    until(lambda: over(int(pid.read_text())), what="the end of git")
