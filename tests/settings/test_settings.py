"""Options, environment, config.toml and remembered choices: who wins, and that nothing wrong is fatal."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from hoptui import settings
from hoptui.settings import Config, Remembered, Value, line_of
from tests.golden import Golden


def read(home: Path, written: str | None = None, *, options: Any = None, **environ: str) -> Config:
    """The configuration of a person whose `config.toml` has this text."""
    if written is not None:
        path = home / ".config/hoptui/config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(written)
    return settings.read(options, {"HOME": str(home), "TERM": "xterm-256color", **environ})


def before(home: Path, **fields: Any) -> None:
    assert not settings.remember(home / ".local/state/hoptui/dashboard.json", **fields)


def test_without_anything_there_are_the_defaults(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert (found.theme, found.ascii, found.mouse, found.read_only) == ("auto", False, True, False)
    assert {value.origin for value in found.values.values()} == {"default"}
    assert not found.problems
    assert found.file == tmp_path / ".config/hoptui/config.toml"


def test_an_option_beats_the_environment_beats_the_file_beats_what_is_remembered(tmp_path: Path) -> None:
    def theme(*args: Any, **named: Any) -> Value:
        return read(tmp_path, *args, **named).values["theme"]

    before(tmp_path, theme="light")
    assert theme() == Value("light", "remembered")
    path = f"{tmp_path}/.config/hoptui/config.toml"
    assert theme('\ntheme = "ansi"') == Value("ansi", f"{path} line 2")
    assert theme(NO_COLOR="1") == Value("none", "NO_COLOR")
    for mono in ("dumb", "vt100", "vt220-w", "linux-m", "xterm-mono"):
        assert theme(TERM=mono) == Value("none", f"TERM={mono}")
    assert theme(TERM="xterm").value == theme(TERM="vte-256color").value == "ansi", "these have colours"
    assert theme(NO_COLOR="1", HOPTUI_THEME="dark") == Value("dark", "HOPTUI_THEME")
    assert theme(HOPTUI_THEME="dark", options={"theme": "none"}) == Value("none", "--theme")
    assert theme(options={"theme": None}) == Value("ansi", f"{path} line 2")


@pytest.mark.parametrize(
    ("environ", "origin"),
    [
        ({"TERM": "vt100"}, "TERM=vt100"),
        ({"TERM": "vt220-w"}, "TERM=vt220-w"),
        ({"TERM": "dumb"}, "TERM=dumb"),
        ({"TERM": "linux-16color"}, "TERM=linux-16color"),
        ({"TERM": "xterm", "LC_ALL": "C"}, "LC_ALL=C"),
        ({"TERM": "xterm", "LC_ALL": "POSIX"}, "LC_ALL=POSIX"),
    ],
)
def test_a_terminal_without_unicode_is_drawn_in_ascii(
    tmp_path: Path, environ: dict[str, str], origin: str
) -> None:
    assert read(tmp_path, **environ).values["ascii"] == Value(True, origin)
    assert read(tmp_path, HOPTUI_ASCII="0", **environ).values["ascii"] == Value(False, "HOPTUI_ASCII")


@pytest.mark.parametrize(
    "environ",
    [{"TERM": "vte-256color"}, {"LANG": "C"}, {"LC_ALL": "C.UTF-8"}, {"LC_CTYPE": "C"}, {}],
)
def test_what_may_show_unicode_is_not_drawn_in_ascii(tmp_path: Path, environ: dict[str, str]) -> None:
    assert read(tmp_path, **environ).values["ascii"] == Value(False)


def test_the_linux_console_has_no_braille_and_is_drawn_in_ascii(tmp_path: Path) -> None:
    assert read(tmp_path, TERM="linux").values["ascii"] == Value(True, "TERM=linux")
    assert read(tmp_path, TERM="linux", HOPTUI_ASCII="0").values["ascii"] == Value(False, "HOPTUI_ASCII")
    assert read(tmp_path).values["ascii"] == Value(False)


def test_places_are_those_of_the_xdg_specification(tmp_path: Path) -> None:
    found = read(tmp_path, XDG_CONFIG_HOME=f"{tmp_path}/c", XDG_STATE_HOME=f"{tmp_path}/s")
    assert (found.file, found.choices) == (
        tmp_path / "c/hoptui/config.toml",
        tmp_path / "s/hoptui/dashboard.json",
    )
    assert read(tmp_path, XDG_CONFIG_HOME="relative").file == tmp_path / ".config/hoptui/config.toml"
    nobody = settings.read({}, {})
    assert (nobody.file, nobody.choices, nobody.problems) == (None, None, ())


def test_what_is_wrong_is_one_line_with_its_place_and_the_rest_holds(tmp_path: Path, golden: Golden) -> None:
    text = ""
    for written, line in (
        ('theme = "blue"', " line 1: "),
        ("\n\nascii = 1", " line 3: "),
        ('thme = "dark"', " line 1: "),
        ("blocks = true", " line 1: "),
        ("keys = 3", " line 1: "),
        ("[keys]\nrun.pause = 7", " line 2: "),
        ("theme = ", " "),
        ("[colours]\nx = 1", " line 1: "),
    ):
        found = read(tmp_path, written)
        (problem,) = found.problems
        assert problem.startswith(f"{tmp_path}/.config/hoptui/config.toml{line}")
        assert (found.theme, found.ascii, found.mouse) == ("auto", False, True)
        text += f"{written.strip()}\n    {problem}\n"
    golden(text, normalize={re.escape(str(tmp_path)): "~"})


def test_a_name_in_quotes_may_hold_anything_and_its_problem_is_one_line(tmp_path: Path) -> None:
    found = read(tmp_path, '"a\\nb" = 1\n[keys]\n"run\\r.pause" = 7')
    assert len(found.problems) == 2
    assert all(problem.isprintable() for problem in found.problems)


def test_a_wrong_variable_is_told_and_the_file_holds(tmp_path: Path, golden: Golden) -> None:
    found = read(tmp_path, "ascii = true", HOPTUI_ASCII="perhaps", HOPTUI_MOUSE="off")
    (problem,) = found.problems
    assert "HOPTUI_ASCII" in problem
    golden(problem)
    assert (found.ascii, found.mouse) == (True, False)


@pytest.mark.parametrize(
    ("written", "environ", "wanted"),
    [
        ("read_only = true", {}, True),
        ("read_only = false", {"HOPTUI_READ_ONLY": "1"}, True),
        ("read_only = true", {"HOPTUI_READ_ONLY": "0"}, False),
        ('read_only = "yes"', {}, True),
        ("", {"HOPTUI_READ_ONLY": "maybe"}, True),
        ("read_only = true\ntheme = ", {}, True),
        ("# read_only = true\ntheme = ", {}, False),
        ('theme = \n"read_only"=true', {}, True),
        ('[keys]\n"run.stop" = ""\nread_only = true', {}, True),
        ("[dashboard]\nread_only = 1", {}, True),
        ("[keys]\nread_only = false", {}, False),
        ("read_only = false\n[keys]\nread_only = true", {}, False),
        ("[keys]\nread_only = true", {"HOPTUI_READ_ONLY": "0"}, False),
        ("", {}, False),
    ],
)
def test_read_only_holds_where_its_value_makes_no_sense(
    tmp_path: Path, written: str, environ: dict[str, str], wanted: bool
) -> None:
    assert read(tmp_path, written, **environ).read_only is wanted


def test_read_only_below_the_keys_is_told_once_with_its_line(tmp_path: Path, golden: Golden) -> None:
    found = read(tmp_path, '[keys]\n"run.stop" = ""\nread_only = true')
    where = f"{tmp_path}/.config/hoptui/config.toml line 3"
    assert found.values["read_only"] == Value(True, where)
    (problem,) = found.problems
    assert problem.startswith(f"{where}: ")
    golden(problem, normalize={re.escape(str(tmp_path)): "~"})


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"# f\xfcr mich\nread_only = true\n", True),
        ("read_only = true\n".encode("utf-16"), True),
        (b"# f\xfcr mich: read_only = true\n", False),
        (b"#" * (settings.LONGEST_FILE + 1), True),
        (b"read_only = true\na = " + b"[" * 20_000, True),
    ],
)
def test_a_file_that_cannot_be_used_is_told_and_read_only_in_it_holds(
    tmp_path: Path, content: bytes, wanted: bool
) -> None:
    path = tmp_path / ".config/hoptui/config.toml"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    found = read(tmp_path)
    assert (found.read_only, len(found.problems)) == (wanted, 1)
    assert "is not used" in found.problems[0]
    assert ("read" in found.problems[0]) is wanted


def test_a_file_that_may_not_be_opened_may_ask_for_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def closed(*_: object) -> None:
        raise PermissionError(13, os.strerror(13))

    read(tmp_path, "theme = 'dark'")
    monkeypatch.setattr(Path, "open", closed)
    found = settings.read(None, {"HOME": str(tmp_path), "XDG_STATE_HOME": "/dev/null"})
    assert found.read_only
    text = "".join(f"{problem}\n" for problem in found.problems)
    assert "config.toml" in text
    monkeypatch.undo()
    monkeypatch.setattr(Path, "stat", closed)
    found = settings.read(None, {"HOME": str(tmp_path), "XDG_STATE_HOME": "/dev/null"})
    assert not found.read_only
    text += "".join(f"{problem}\n" for problem in found.problems)
    monkeypatch.undo()
    golden(text, normalize={re.escape(str(tmp_path)): "~"})


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    found = read(tmp_path, "\ufeffmouse = false\n")
    assert (found.mouse, found.problems) == (False, ())


def test_an_option_takes_read_only_back(tmp_path: Path) -> None:
    found = read(tmp_path, "read_only = true", options={"read_only": False})
    assert found.values["read_only"] == Value(False, "--no-read-only")


def test_keys_may_be_written_with_and_without_quotes(tmp_path: Path) -> None:
    found = read(tmp_path, '[keys]\n"run.pause" = "f5"\nrun.stop = ""  # none\n')
    path = f"{tmp_path}/.config/hoptui/config.toml"
    assert found.keys == {"run.pause": ("f5", f"{path} line 2"), "run.stop": ("", f"{path} line 3")}
    assert not found.problems


@pytest.mark.parametrize(
    ("source", "name", "line"),
    [
        ("a = 1\nb = 2", "b", 2),
        ("[keys]\nb = 1", "b", None),
        ("[keys]\n'run.pause'= 'x'", "keys.run.pause", 2),
        ("keys.run.pause = 'x'", "keys.run.pause", 1),
        ("[keys.run]\n\npause='x'", "keys.run.pause", 3),
        ("#b = 1\nb = 2", "b", 2),
        ("x = {b = 1}", "x.b", None),
    ],
)
def test_the_line_of_a_name(source: str, name: str, line: int | None) -> None:
    assert line_of(source, name) == line


def test_files_that_are_no_files_of_ours_are_told(tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / ".config/hoptui/config.toml"
    path.mkdir(parents=True)
    (folder,) = read(tmp_path).problems
    path.rmdir()
    path.write_bytes(b'theme = "\xff"')
    (damaged,) = read(tmp_path).problems
    assert all(problem.startswith(f"{path} ") for problem in (folder, damaged))
    golden(f"{folder}\n{damaged}\n", normalize={re.escape(str(tmp_path)): "~"})


def test_the_home_directory_is_written_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings.short(tmp_path / "a/b") == "~/a/b"
    assert settings.short(Path("/etc/a")) == "/etc/a"


# what is remembered -----------------------------------------------------------------------------------------


def test_choices_come_back_and_another_dashboards_are_left(tmp_path: Path) -> None:
    path = tmp_path / "new/dashboard.json"
    assert settings.remembered_choices(path) == (Remembered(), "")
    assert settings.remember(path, theme="light") == ""
    assert settings.remember(path, hidden=("run.events",)) == ""
    assert settings.remembered_choices(path) == (Remembered(theme="light", hidden=("run.events",)), "")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["dashboard.json"]
    assert json.loads(path.read_text())["theme"] == "light"


@pytest.mark.parametrize("content", [b"", b"{", b'{"theme": 3}', b"\xff"])
def test_a_damaged_file_is_told_and_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "dashboard.json"
    path.write_bytes(content)
    found, problem = settings.remembered_choices(path)
    assert found == Remembered()
    assert "damaged" in problem
    assert settings.remember(path, metric="loss") == ""
    assert settings.remembered_choices(path) == (Remembered(metric="loss"), "")


def test_what_cannot_be_written_is_one_sentence_and_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    path = tmp_path / "dashboard.json"
    settings.remember(path, theme="light")

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "replace", full)
    problem = settings.remember(path, theme="dark")
    assert (str(path) in problem, problem.endswith(f": {os.strerror(28)}")) == (True, True)
    assert settings.remembered_choices(path)[0].theme == "light"
    assert [one.name for one in tmp_path.iterdir()] == ["dashboard.json"]
    homeless = settings.remember(None, theme="dark")
    golden(f"{problem}\n{homeless}\n", normalize={re.escape(str(tmp_path)): "~"})
