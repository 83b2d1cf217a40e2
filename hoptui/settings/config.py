"""What a person has set: by an option, the environment, `config.toml`, or a choice remembered from before, in
that order.

Read once, when a command begins. Nothing in here ends a command: what cannot be used is told in one line and
the next source holds. Only `read_only` is in force where its value makes no sense, where it stands in the
wrong place, and where the file cannot be read: whoever wrote it wanted less to be possible.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hoptui.presentation import numbers
from hoptui.settings.ui_state import Remembered, load

THEMES = ("auto", "dark", "light", "ansi", "none")
LONGEST_FILE = 1 << 20
READ_ONLY = "read_only"
UNTIL_MENDED = ": read-only until that is mended"
KEYS = "keys"
"""The table of `config.toml` that maps the id of an action to its keys."""

_COLOURLESS = re.compile(r"dumb|vt\d+(-.*)?|.*-(m|mono)")
"""Terminals without colours, by their names in terminfo."""
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Setting(NamedTuple):
    """One thing that can be set, also by an environment variable; `choices` is empty for one that is on or
    off."""

    name: str
    variable: str
    default: str | bool
    help: str
    choices: tuple[str, ...] = ()

    def check(self, value: object) -> str:
        """What is wrong with a value, in one clause; empty: nothing is."""
        if self.choices:
            fits, wanted = value in self.choices, f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        else:
            fits, wanted = isinstance(value, bool), "true or false"
        return "" if fits else f"{self.name} takes {wanted}, not {_shown(value)}"


SETTINGS = (
    Setting("theme", "HOPTUI_THEME", "auto", "Colours; auto is dark, or what the terminal can show", THEMES),
    Setting("ascii", "HOPTUI_ASCII", False, "Draw with ASCII only"),
    Setting("mouse", "HOPTUI_MOUSE", True, "Let the dashboard use the mouse"),
    Setting(READ_ONLY, "HOPTUI_READ_ONLY", False, "Look and send nothing: no knob, no command, no signal"),
)


class Value(NamedTuple):
    """A value in force, and where it comes from: `default`, `remembered`, a variable, a file's line, an
    option."""

    value: str | bool
    origin: str = "default"


class KeyBinding(NamedTuple):
    """The keys that `config.toml` gives to an action, and the place it says so."""

    keys: str
    place: str


@dataclass(frozen=True)
class Config:
    """Everything that is set. `problems` are one line each; `file` is where `config.toml` is or would be."""

    values: Mapping[str, Value] = field(default_factory=lambda: {s.name: Value(s.default) for s in SETTINGS})
    keys: Mapping[str, KeyBinding] = field(default_factory=dict)
    remembered: Remembered = field(default_factory=Remembered)
    problems: tuple[str, ...] = ()
    file: Path | None = None
    choices: Path | None = None
    """Where choices are remembered; None: they are not."""

    @classmethod
    def of(cls, **values: str | bool) -> Config:
        """The defaults but for these values."""
        return cls({s.name: Value(values.get(s.name, s.default)) for s in SETTINGS})

    @property
    def theme(self) -> str:
        return str(self.values["theme"].value)

    @property
    def ascii(self) -> bool:
        return self.values["ascii"].value is True

    @property
    def mouse(self) -> bool:
        return self.values["mouse"].value is True

    @property
    def read_only(self) -> bool:
        return self.values[READ_ONLY].value is True


def read(
    options: Mapping[str, str | bool | None] | None = None, environ: Mapping[str, str] | None = None
) -> Config:
    """What is set now; `options` are those of the command line, None where one was not given.

    Args:
        environ: the environment; default: this process's.
    """
    environ = os.environ if environ is None else environ
    told: list[str] = []
    file, choices = place(environ, "CONFIG", "config.toml"), place(environ, "STATE", "dashboard.json")
    written = _written(file, told)
    remembered, problem = load(choices)
    told += [problem] if problem else []
    values = {}
    for setting in SETTINGS:
        found = [
            *_from_option(setting, options or {}),
            *_from_environment(setting, environ, told),
            *_from_file(setting, written, told),
            *_from_before(setting, remembered),
        ]
        values[setting.name] = found[0] if found else Value(setting.default)
    keys = _keys(written, told)
    return Config(values, keys, remembered, tuple(told), file, choices)


def place(environ: Mapping[str, str], kind: str, name: str) -> Path | None:
    """A file of hoptui's as the XDG Base Directory Specification has it: a relative path in a variable is
    ignored.

    Args:
        kind: `CONFIG` or `STATE`.

    Returns:
        None where there is no home directory.
    """
    home = environ.get("HOME", "")
    given = environ.get(f"XDG_{kind}_HOME", "")
    if given.startswith("/"):
        return Path(given, "hoptui", name)
    if not home.startswith("/"):
        return None
    return Path(home, {"CONFIG": ".config", "STATE": ".local/state"}[kind], "hoptui", name)


def short(path: Path) -> str:
    """A path for people, with `~` for the home directory."""
    home = os.environ.get("HOME", "")
    whole = numbers.clean(str(path), 120)
    return f"~{whole[len(home) :]}" if home.startswith("/") and whole.startswith(f"{home}/") else whole


# the sources ------------------------------------------------------------------------------------------------


def _from_option(setting: Setting, options: Mapping[str, str | bool | None]) -> Iterator[Value]:
    value = options.get(setting.name)
    if value is not None:
        name = setting.name.replace("_", "-")
        yield Value(value, f"--no-{name}" if value is False else f"--{name}")


def _from_environment(setting: Setting, environ: Mapping[str, str], told: list[str]) -> Iterator[Value]:
    given = environ.get(setting.variable, "").strip()
    value: str | bool = given.lower()
    if not setting.choices:
        value = True if value in _TRUE else False if value in _FALSE else given
    if given and (wrong := setting.check(value)):
        told.append(f"{setting.variable}: {wrong}{_all_the_same(setting)}")
        value = setting.name == READ_ONLY or ""
    if given and value != "":
        yield Value(value, setting.variable)
    if setting.name == "ascii" and environ.get("TERM") == "linux":  # the console: its font has no braille
        yield Value(True, "TERM=linux")
    if setting.name == "theme" and environ.get("NO_COLOR"):  # https://no-color.org
        yield Value("none", "NO_COLOR")
    terminal = environ.get("TERM", "")
    if setting.name == "theme" and _COLOURLESS.fullmatch(terminal):
        yield Value("none", f"TERM={terminal}")


class _Written(NamedTuple):
    """What `config.toml` has, and how to say where."""

    path: Path
    source: str
    table: dict[str, Any]

    def place(self, name: str) -> str:
        number = line_of(self.source, name)
        return f"{short(self.path)} line {number}" if number else short(self.path)

    def misplaced(self) -> str:
        """The dotted name of a `read_only` below a table's header, which TOML takes for one of that table; ""
        without one."""
        if READ_ONLY in self.table:
            return ""
        inner = (name for name, value in _flat(self.table) if value is not False)
        return next((name for name in inner if name.endswith(f".{READ_ONLY}")), "")


def _written(file: Path | None, told: list[str]) -> _Written | None:
    """The file, if there is one; of one that cannot be used, only that it asks for `read_only`, or that it
    might."""
    if file is None:
        return None
    try:
        regular = stat.S_ISREG(file.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        # A home of somebody else, as in some containers: nobody says that there is a file.
        told.append(f"{short(file)} cannot be looked for: {error.strerror}")
        return None
    if not regular:
        told.append(f"{short(file)} is not used: it is no file")
        return None
    unknown = _Written(file, "", {READ_ONLY: True})
    try:
        with file.open("rb") as opened:
            content = opened.read(LONGEST_FILE + 1)
    except OSError as error:
        told.append(f"{short(file)} cannot be read: {error.strerror}{UNTIL_MENDED}")
        return unknown
    if len(content) > LONGEST_FILE:
        told.append(f"{short(file)} is not used: it is larger than {LONGEST_FILE >> 10} KiB{UNTIL_MENDED}")
        return unknown
    import tomllib  # here, because most people have no such file, and every command looks for it

    try:
        source = content.decode("utf-8-sig")
        return _Written(file, source, tomllib.loads(source))
    except UnicodeDecodeError:
        why = "it is not UTF-8"
    except tomllib.TOMLDecodeError as error:
        why = numbers.clean(str(error), 160)
    # Without its zeros UTF-16 can be searched too.
    source = content.decode("utf-8-sig", "replace").replace("\0", "")
    meant = re.search(rf"^[^\w#\n]*{READ_ONLY}[\"']?\s*=\s*true\b", source, re.MULTILINE)
    told.append(f"{short(file)} is not used{' but for read_only' if meant else ''}: {why}")
    return _Written(file, source, {READ_ONLY: True}) if meant else None


def _from_file(setting: Setting, written: _Written | None, told: list[str]) -> Iterator[Value]:
    if written is None:
        return
    if setting.name not in written.table:
        inner = written.misplaced() if setting.name == READ_ONLY else ""
        if inner:
            where = written.place(inner)
            told.append(f"{where}: {READ_ONLY} belongs above the first [table]{UNTIL_MENDED}")
            yield Value(True, where)
        return
    value, where = written.table[setting.name], written.place(setting.name)
    if wrong := setting.check(value):
        told.append(f"{where}: {wrong}{_all_the_same(setting)}")
        if setting.name != READ_ONLY:
            return
        value = True
    yield Value(value, where)


def _from_before(setting: Setting, remembered: Remembered) -> Iterator[Value]:
    if setting.name == "theme" and remembered.theme in THEMES:
        yield Value(remembered.theme, "remembered")


def _keys(written: _Written | None, told: list[str]) -> dict[str, KeyBinding]:
    """The table of keys; and every name in the file that nobody knows is told."""
    found: dict[str, KeyBinding] = {}
    for name, value in written.table.items() if written else ():
        assert written is not None
        if name == KEYS and isinstance(value, dict):
            for action, keys in _flat(value):
                if f"{KEYS}.{action}" == written.misplaced():
                    continue  # told already
                where = written.place(f"{KEYS}.{action}")
                if isinstance(keys, str):
                    found[action] = KeyBinding(keys, where)
                else:
                    told.append(
                        f'{where}: the keys of {action} are a text such as "f5,p", not {_shown(keys)}'
                    )
        elif name == KEYS:
            told.append(f"{written.place(name)}: {KEYS} is a table: [{KEYS}]")
        elif name not in (known := [s.name for s in SETTINGS]):
            told.append(f"{written.place(name)}: there is no setting {name}{near(name, [*known, KEYS])}")
    return found


def near(name: str, known: list[str]) -> str:
    """`, did you mean theme?`, where a known name looks like it."""
    import difflib  # here, because a command that finds nothing wrong does not need it

    like = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {like[0]}?" if like else ""


def line_of(source: str, name: str) -> int | None:
    """The line (from 1) of a TOML text that sets a dotted name, None where it is not written plainly."""
    table = ""
    for number, line in enumerate(source.splitlines(), 1):
        bare = re.sub(r"[\s\"']", "", line)
        if header := re.fullmatch(r"\[([^\[\]]+)\](#.*)?", bare):
            table = f"{header[1]}."
            if header[1] == name:
                return number
        elif "=" in bare and f"{table}{bare.partition('=')[0]}" == name:
            return number
    return None


def _flat(table: dict[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """`run.pause = …` without quotes is a table in a table to TOML, and means the same."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _all_the_same(setting: Setting) -> str:
    return UNTIL_MENDED if setting.name == READ_ONLY else ""


def _shown(value: object) -> str:
    said = (
        f'"{value}"'
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )
    return numbers.clean(said, 40)
