"""Golden texts: what a user reads, compared with a file beside the test.

The text of `test_x` in `tests/cli/test_ls.py` is in `tests/cli/golden/test_ls/x.txt`. `--update-snapshots`
writes the texts of now, and removes the files that no test has used. Without the option an unused file fails
the session, if all tests of its module ran and passed.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

OPTION = "--update-snapshots"
PROPERTY = "golden"
"""The property of a test's report that has the path of a golden file that it used."""
SHOWN = 100  # lines of a difference
NOTHING = "(nothing)"
NO_NEWLINE = " (without a newline)"


class Golden:
    """`golden(text)`: compare a text, or the lines of one, with the golden file of the test's name.

    A test with several texts gives each a `name`. `normalize` has patterns of what differs from run to run,
    such as pids and paths, and the replacement of each. They are applied in this order, as `re.sub` does.
    `golden(sheet(texts))` compares many short texts, each below a heading.
    """

    def __init__(self, test: pytest.Function, *, update: bool) -> None:
        self._test = test
        self._update = update
        self._used: set[str] = set()

    def __call__(
        self, text: str | Iterable[str], name: str = "", *, normalize: Mapping[str, str] | None = None
    ) -> None:
        path = self._path(name)
        text = text if isinstance(text, str) else "".join(f"{line}\n" for line in text)
        for pattern, placeholder in (normalize or {}).items():
            text = re.sub(pattern, placeholder, text)
        self._test.user_properties.append((PROPERTY, str(path)))
        if self._update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
            return
        command = f"pytest {OPTION} '{self._test.nodeid}'"
        if not path.is_file():
            pytest.fail(f"there is no golden file {path}; to write it: {command}", pytrace=False)
        if (stored := path.read_bytes().decode()) != text:
            changes = difference(stored, text)
            pytest.fail(f"another text than in {path}:\n{changes}\nto keep it: {command}", pytrace=False)

    def _path(self, name: str) -> Path:
        parts = [
            self._test.originalname.removeprefix("test_"),
            *self._parameters(),
            *([name] if name else []),
        ]
        stem = "-".join(re.sub(r"[^\w.-]+", "_", part) for part in parts)
        if stem in self._used:
            raise ValueError(f"two golden texts of this test are named {name!r}")
        self._used.add(stem)
        return folder(self._test.path) / f"{stem}.txt"

    def _parameters(self) -> list[str]:
        spec = getattr(self._test, "callspec", None)
        return [spec.id] if spec else []


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """What compares the texts of this test with its golden files."""
    return Golden(request.node, update=request.config.getoption(OPTION))


def sheet(texts: Mapping[str, str | Iterable[str]]) -> str:
    """One text of many: each below its heading, without the blanks at the ends of its lines."""
    parts = []
    for heading, text in texts.items():
        lines = text.split("\n") if isinstance(text, str) else text
        body = "\n".join(line.rstrip() for line in lines).rstrip("\n") or NOTHING
        parts.append(f"== {heading}\n{body}\n")
    return "\n".join(parts)


def folder(module: Path) -> Path:
    """Where the golden files of a test module are."""
    return module.parent / "golden" / module.stem


def difference(stored: str, text: str) -> str:
    """What changed, as a unified diff, as far as it is short enough to be read."""
    old, new = (shown.splitlines(keepends=True) for shown in (stored, text))
    changes = difflib.unified_diff(old, new, "golden", "now", n=2)
    lines = [
        _shown(line.removesuffix("\n")) + ("" if line.endswith("\n") else NO_NEWLINE) for line in changes
    ]
    rest = [f"… and {len(lines) - SHOWN} more lines"] if len(lines) > SHOWN else []
    return "\n".join(lines[:SHOWN] + rest)


def _shown(line: str) -> str:
    """The line with what a terminal would obey or not show."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


class Leftovers:
    """Which golden files no test has used, of the modules that ran as a whole.

    It is where the reports arrive: in the only process, or in the one that hands out the tests.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._used: dict[Path, set[Path]] = defaultdict(set)
        self._partial: set[Path] = set()
        self.files: list[Path] = []
        """The files without a test, known when the session is over."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        module = self._root / report.nodeid.partition("::")[0]
        self._used[module] |= {Path(str(value)) for key, value in report.user_properties if key == PROPERTY}
        if not report.passed:
            self._partial.add(module)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.OK or _selects(session.config):
            return
        ran = self._used.keys() - self._partial
        self.files = sorted(
            file
            for files in {module.parent / "golden" for module in ran}
            for file in files.glob("*/*.txt")
            if self._is_left_over(file, ran)
        )
        if session.config.getoption(OPTION):
            for file in self.files:
                file.unlink()
        elif self.files:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _is_left_over(self, file: Path, ran: set[Path]) -> bool:
        module = file.parent.parent.parent / f"{file.parent.name}.py"
        return not module.exists() or (module in ran and file not in self._used[module])

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if self.files:
            done = "removed" if config.getoption(OPTION) else f"pytest {OPTION} removes them"
            terminalreporter.section(f"golden files that no test has used ({done})")
            for file in self.files:
                terminalreporter.write_line(str(file))


def _selects(config: pytest.Config) -> bool:
    """Whether the options may leave out some tests of a module."""
    options = ("keyword", "markexpr", "deselect", "lf", "stepwise")
    return any("::" in arg for arg in config.args) or any(config.getoption(name, None) for name in options)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        OPTION, action="store_true", help="write what is shown now as the golden files of texts and screens"
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker of xdist sees some of the tests only
        config.pluginmanager.register(Leftovers(config.rootpath))
