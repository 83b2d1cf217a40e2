"""Asks git for the commit, the branch and the changes of a script, in a process with a time limit.

The daemon asks, so that a run neither forks nor reads a slow disk. It looks at the root and the working
directory of the run's process, as the run itself sees them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from hoptui.domain.details import Repository
from hoptui.domain.facts import clean_text

LONGEST_S = 5.0
"""A question without an answer is given up after this time, as on a disk that hangs."""
MOST_AT_ONCE = 4
MOST_BYTES = 64 << 10
LONGEST_NAME = 200
STATUS = ("--no-optional-locks", "-c", "core.fsmonitor=false", "status", "--porcelain=v2", "--branch",
          "--untracked-files=no", "--ignore-submodules=all")  # fmt: skip
NONE = "(initial)"
DETACHED = "(detached)"


def parsed(output: str, *, complete: bool) -> Repository | None:
    """Return what `git status --porcelain=v2 --branch` printed, None if there is no commit.

    `complete`: it has ended by itself, so nothing more is changed.
    """
    heads, changed = {}, False
    for line in output.splitlines():
        if line.startswith("# branch."):
            name, _, value = line.removeprefix("# branch.").partition(" ")
            heads[name] = value
        elif line and not line.startswith("#"):
            changed = True
    commit, branch = heads.get("oid", NONE), heads.get("head", DETACHED)
    if commit == NONE:
        return None
    return Repository(
        commit=clean_text(commit, LONGEST_NAME),
        branch="" if branch == DETACHED else clean_text(branch, LONGEST_NAME),
        dirty=True if changed else False if complete else None,
    )


@dataclass
class _Question:
    run: str
    places: list[str]
    until: float
    git: subprocess.Popen[bytes] | None = None
    output: bytearray = field(default_factory=bytearray)


INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Directories of packages that pip installed."""


class RepositoryReader:
    """Asks git about runs, a few at a time. `found` is called with a run's id and its repository.

    Args:
        found: called by `tend`.
        program: the command that is git.
    """

    def __init__(self, found: Callable[[str, Repository], None], program: str = "git") -> None:
        self._found = found
        self._program = program
        self._questions: list[_Question] = []

    def ask(self, run: str, pid: int, script: str) -> None:
        """Look at the directory of the script of a process, else at its working directory.

        The script of a framework, such as that of a worker of Ray, is installed. A repository around its
        environment has nothing to do with it.
        """
        root, here = f"/proc/{pid}/root", f"/proc/{pid}/cwd"
        path = PurePosixPath(script)
        installed = not INSTALLED.isdisjoint(path.parts)
        folder = str(path.parent) if script.startswith("/") and not installed else ""
        places = [*([f"{root}{folder}"] if folder else []), here]
        self._questions = [one for one in self._questions if one.run != run or not self._end(one)]
        self._questions.append(_Question(run, places, time.monotonic() + LONGEST_S))

    @property
    def busy(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._questions)

    def tend(self) -> None:
        """Begin questions, and take answers. It does not wait."""
        for question in list(self._questions[:MOST_AT_ONCE]):
            if question.git is None and not self._begin(question):
                self._questions.remove(question)
                continue
            self._read(question)

    def close(self) -> None:
        """End what is still being asked."""
        for question in self._questions:
            self._end(question)
        self._questions = []

    def _begin(self, question: _Question) -> bool:
        """Start git in the next place. False if there is none left, or no git."""
        question.output.clear()
        while question.places:
            place = question.places.pop(0)
            try:
                # The kernel resolves the link: git sees the directory under its own name.
                question.git = subprocess.Popen(
                    [self._program, *STATUS],
                    cwd=place,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
                )
            except OSError:  # no such directory, or no git
                continue
            assert question.git.stdout is not None
            os.set_blocking(question.git.stdout.fileno(), False)
            return True
        return False

    def _read(self, question: _Question) -> None:
        git = question.git
        assert git is not None
        assert git.stdout is not None
        ended = git.poll() is not None  # before reading: then nothing is missed
        with contextlib.suppress(OSError):
            while len(question.output) < MOST_BYTES and (part := git.stdout.read(MOST_BYTES)):
                question.output += part
        over = time.monotonic() > question.until
        if not (ended or over or len(question.output) >= MOST_BYTES):
            return
        found = None
        if not ended or git.returncode == 0:
            found = parsed(question.output.decode(errors="replace"), complete=ended)
        self._end(question)
        if found is None and not over and self._begin(question):
            return
        self._questions.remove(question)
        if found is not None:
            self._found(question.run, found)

    def _end(self, question: _Question) -> bool:
        git, question.git = question.git, None
        if git is not None:
            if git.poll() is None:
                git.kill()
            assert git.stdout is not None
            git.stdout.close()
            git.poll()  # one that hangs in the kernel is reaped when a later process is started
        return True
