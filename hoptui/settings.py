"""User settings from an option, the environment, `config.toml`, or a remembered choice, in that order.

They are read once, when a command begins. An invalid value never ends a command: it is reported in one line,
and the next source applies. `read_only` is the exception. It is in force if its value is invalid, if it is
misplaced, and if the file cannot be read.

Choices that a user made in the dashboard (the theme, hidden panels, a single shown panel, the chart's metric)
have their own file in the state directory. It is written whole and moved into place in one step.
`config.toml` is the user's and is never written, because a rewrite would lose its comments and order. So
`config.toml` overrides remembered choices.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hoptui.domain.alert_settings import TABLE as ALERTS
from hoptui.domain.alert_settings import AlertSettings, alert_settings
from hoptui.node.files import place, replaced
from hoptui.presentation import numbers, sentences

THEMES = ("auto", "dark", "light", "ansi", "none")
LONGEST_FILE = 1 << 20
LONGEST_CHOICES = 1 << 16
READ_ONLY = "read_only"
UNTIL_FIXED = ": read-only until that is fixed"
KEYS = "keys"
"""The table of `config.toml` that maps the id of an action to its keys."""

UTF8 = "utf-8"
_COLOURLESS = re.compile(r"dumb|vt\d+(-.*)?|.*-(m|mono)")
"""Terminals without colours, by their names in terminfo."""
_WITHOUT_BRAILLE = re.compile(r"dumb|vt\d+(-.*)?|linux(-.*)?")
"""Terminals without braille and rounded boxes, by the same names."""
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """Remembered choices. Empty means no choice.

    `theme` is a value for `config.toml`, `hidden` the ids of panels, `metric` that of the learning chart.
    """

    theme: str = ""
    hidden: tuple[str, ...] = ()
    metric: str = ""


class Setting(NamedTuple):
    """One setting, which an environment variable can set too. `choices` is empty for a boolean."""

    name: str
    variable: str
    default: str | bool
    help: str
    choices: tuple[str, ...] = ()

    def check(self, value: object) -> str:
        """Return one clause on why a value is invalid, "" if it is valid."""
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
    """A value in force and its origin: `default`, `remembered`, a variable, a file's line, an option."""

    value: str | bool
    origin: str = "default"


class KeyBinding(NamedTuple):
    """The keys that `config.toml` gives to an action, and the line that does so."""

    keys: str
    place: str


@dataclass(frozen=True)
class Config:
    """All settings. `problems` are one line each. `file` is where `config.toml` is or would be."""

    values: Mapping[str, Value] = field(default_factory=lambda: {s.name: Value(s.default) for s in SETTINGS})
    keys: Mapping[str, KeyBinding] = field(default_factory=dict)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    remembered: Remembered = field(default_factory=Remembered)
    problems: tuple[str, ...] = ()
    file: Path | None = None
    choices: Path | None = None
    """Where choices are stored. None: they are not."""

    @classmethod
    def of(cls, **values: str | bool) -> Config:
        """Return the defaults except for these values."""
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
    options: Mapping[str, str | bool | None] | None = None,
    environ: Mapping[str, str] | None = None,
    encoding: str = UTF8,
) -> Config:
    """Return the settings in force. `options` are those of the command line, None if not given.

    Args:
        environ: the environment; default: this process's.
        encoding: the terminal's. If it is not UTF-8, ASCII is on whatever else is set.
    """
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    file, choices = place(environ, "CONFIG", "config.toml"), place(environ, "STATE", "dashboard.json")
    written = _written(file, problems)
    remembered, problem = remembered_choices(choices)
    problems += [problem] if problem else []
    values = {}
    for setting in SETTINGS:
        found = [
            *_from_option(setting, options or {}),
            *_from_environment(setting, environ, problems),
            *_from_file(setting, written, problems),
            *_from_before(setting, remembered),
        ]
        values[setting.name] = found[0] if found else Value(setting.default)
    if not is_utf8(encoding) and values["ascii"].value is not True:
        values["ascii"] = Value(True, "the terminal's encoding")
    keys = _keys(written, problems)
    alerts = _alerts(written, problems)
    return Config(values, keys, alerts, remembered, tuple(problems), file, choices)


def short(path: Path) -> str:
    """Return a path for display, with `~` for the home directory."""
    home = os.environ.get("HOME", "")
    whole = numbers.clean(str(path), 120)
    return f"~{whole[len(home) :]}" if home.startswith("/") and whole.startswith(f"{home}/") else whole


# the sources ------------------------------------------------------------------------------------------------


def _from_option(setting: Setting, options: Mapping[str, str | bool | None]) -> Iterator[Value]:
    value = options.get(setting.name)
    if value is not None:
        name = setting.name.replace("_", "-")
        yield Value(value, f"--no-{name}" if value is False else f"--{name}")


def _from_environment(setting: Setting, environ: Mapping[str, str], problems: list[str]) -> Iterator[Value]:
    given = environ.get(setting.variable, "").strip()
    value: str | bool = given.lower()
    if not setting.choices:
        value = True if value in _TRUE else False if value in _FALSE else given
    if given and (wrong := setting.check(value)):
        problems.append(f"{setting.variable}: {wrong}{_consequence(setting)}")
        value = setting.name == READ_ONLY or ""
    if given and value != "":
        yield Value(value, setting.variable)
    if setting.name == "ascii" and (why := _without_unicode(environ)):
        yield Value(True, why)
    if setting.name == "theme" and environ.get("NO_COLOR"):  # https://no-color.org
        yield Value("none", "NO_COLOR")
    terminal = environ.get("TERM", "")
    if setting.name == "theme" and _COLOURLESS.fullmatch(terminal):
        yield Value("none", f"TERM={terminal}")


def is_utf8(encoding: str | None) -> bool:
    """Return whether an encoding is UTF-8, however it is spelled. An unknown one is not."""
    return (encoding or "").lower().replace("-", "") == "utf8"


def _without_unicode(environ: Mapping[str, str]) -> str:
    """Why the terminal shows ASCII only: its name or `LC_ALL=C`; "" if it may show braille.

    `LANG=C` or no locale is what containers start with, mostly on a terminal with UTF-8: Python treats it as
    unset (PEP 538, PEP 540). `LC_ALL=C` is chosen.
    """
    terminal, locale = environ.get("TERM", ""), environ.get("LC_ALL", "")
    if _WITHOUT_BRAILLE.fullmatch(terminal):
        return f"TERM={terminal}"
    return f"LC_ALL={locale}" if locale in ("C", "POSIX") else ""


class _Written(NamedTuple):
    """The content of `config.toml`, and the position of its entries."""

    path: Path
    source: str
    table: dict[str, Any]

    def place(self, name: str, item: int = 0) -> str:
        number = line_of(self.source, name, item)
        return f"{short(self.path)} line {number}" if number else short(self.path)

    def misplaced(self) -> str:
        """Return the dotted name of a `read_only` below a table's header, "" without one.

        TOML takes it for an entry of that table.
        """
        if READ_ONLY in self.table:
            return ""
        inner = (name for name, value in _flat(self.table) if value is not False)
        return next((name for name in inner if name.endswith(f".{READ_ONLY}")), "")


def _written(file: Path | None, problems: list[str]) -> _Written | None:
    """Return the file's content, None without a file.

    Of an unusable file, it returns only that `read_only` is set or might be set.
    """
    if file is None:
        return None
    try:
        regular = stat.S_ISREG(file.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        # Another user's home, as in some containers: the file need not exist.
        problems.append(f"{short(file)} cannot be looked for: {error.strerror}")
        return None
    if not regular:
        problems.append(f"{short(file)} is not used: it is no file")
        return None
    unknown = _Written(file, "", {READ_ONLY: True})
    try:
        with file.open("rb") as opened:
            content = opened.read(LONGEST_FILE + 1)
    except OSError as error:
        problems.append(f"{short(file)} cannot be read: {error.strerror}{UNTIL_FIXED}")
        return unknown
    if len(content) > LONGEST_FILE:
        problems.append(f"{short(file)} is not used: it is larger than {LONGEST_FILE >> 10} KiB{UNTIL_FIXED}")
        return unknown
    import tomllib  # imported here: every command calls this, and most users have no file

    try:
        source = content.decode("utf-8-sig")
        return _Written(file, source, tomllib.loads(source))
    except UnicodeDecodeError:
        why = "it is not UTF-8"
    except tomllib.TOMLDecodeError as error:
        why = numbers.clean(str(error), 160)
    except RecursionError:
        why = "it is nested too deeply"
    # Without its zero bytes, UTF-16 text can be searched too.
    source = content.decode("utf-8-sig", "replace").replace("\0", "")
    meant = re.search(rf"^[^\w#\n]*{READ_ONLY}[\"']?\s*=\s*true\b", source, re.MULTILINE)
    problems.append(f"{short(file)} is not used{' but for read_only' if meant else ''}: {why}")
    return _Written(file, source, {READ_ONLY: True}) if meant else None


def _from_file(setting: Setting, written: _Written | None, problems: list[str]) -> Iterator[Value]:
    if written is None:
        return
    if setting.name not in written.table:
        inner = written.misplaced() if setting.name == READ_ONLY else ""
        if inner:
            where = written.place(inner)
            problems.append(f"{where}: {READ_ONLY} belongs above the first [table]{UNTIL_FIXED}")
            yield Value(True, where)
        return
    value, where = written.table[setting.name], written.place(setting.name)
    if wrong := setting.check(value):
        problems.append(f"{where}: {wrong}{_consequence(setting)}")
        if setting.name != READ_ONLY:
            return
        value = True
    yield Value(value, where)


def _from_before(setting: Setting, remembered: Remembered) -> Iterator[Value]:
    if setting.name == "theme" and remembered.theme in THEMES:
        yield Value(remembered.theme, "remembered")


def _keys(written: _Written | None, problems: list[str]) -> dict[str, KeyBinding]:
    """Return the table of keys. Reports every unknown name in the file."""
    found: dict[str, KeyBinding] = {}
    for name, value in written.table.items() if written else ():
        assert written is not None
        if name == KEYS and isinstance(value, dict):
            for action, keys in _flat(value):
                if f"{KEYS}.{action}" == written.misplaced():
                    continue  # already reported
                where = written.place(f"{KEYS}.{action}")
                if isinstance(keys, str):
                    found[action] = KeyBinding(keys, where)
                else:
                    problems.append(
                        f'{where}: the keys of {_name(action)} are a text such as "f5,p", not {_shown(keys)}'
                    )
        elif name == KEYS:
            problems.append(f"{written.place(name)}: {KEYS} is a table: [{KEYS}]")
        elif name not in (known := [*(s.name for s in SETTINGS), ALERTS]):
            like = near(name, [*known, KEYS])
            problems.append(f"{written.place(name)}: there is no setting {_name(name)}{like}")
    return found


def _alerts(written: _Written | None, problems: list[str]) -> AlertSettings:
    """Return the table of alerts. Reports each entry that is not used."""
    if written is None:
        return AlertSettings()
    found, wrong = alert_settings(written.table.get(ALERTS))
    for problem in wrong:
        inner = f"{ALERTS}.targets" if problem.target else ALERTS
        where = written.place(f"{inner}.{problem.key}" if problem.key else ALERTS, problem.target)
        what = sentences.sentence(problem.what)
        number = f"target {problem.target}: " if problem.target else ""
        problems.append(f"{where}: {number}{what}")
    return found


def near(name: str, known: list[str]) -> str:
    """Return `, did you mean theme?` if a known name is similar, else ""."""
    import difflib  # imported here: most commands do not need it

    like = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {like[0]}?" if like else ""


def line_of(source: str, name: str, item: int = 0) -> int | None:
    """Return the line (from 1) of a TOML text that sets a dotted name, None if it is not found.

    Args:
        item: the number, from 1, of the `[[table]]` that sets it; 0 for an entry of a plain table.
    """
    table, seen, begins = "", 0, None
    for number, line in enumerate(source.splitlines(), 1):
        bare = re.sub(r"[\s\"']", "", line)
        if header := re.fullmatch(r"\[\[([^\[\]]+)\]\](#.*)?", bare):
            seen += name.startswith(f"{header[1]}.")
            table = f"{header[1]}." if item and seen == item else "[["
            if item and seen == item:
                begins = begins or number
            continue
        if header := re.fullmatch(r"\[([^\[\]]+)\](#.*)?", bare):
            table = f"{header[1]}."
            if header[1] == name:
                return number
        elif "=" in bare and f"{table}{bare.partition('=')[0]}" == name:
            return number
    return begins


def _flat(table: dict[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """Yield dotted names. For TOML, `run.pause = …` without quotes is a table in a table, with the same
    meaning."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _consequence(setting: Setting) -> str:
    return UNTIL_FIXED if setting.name == READ_ONLY else ""


def _name(written: str) -> str:
    """Return a name of a TOML file for display. In quotes it may hold anything."""
    return numbers.clean(written, 60)


def _shown(value: object) -> str:
    said = (
        f'"{value}"'
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )
    return numbers.clean(said, 40)


def remembered_choices(path: Path | None) -> tuple[Remembered, str]:
    """Return what is remembered, and one line if the file cannot be used ("" if it can)."""
    if path is None:
        return Remembered(), ""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(LONGEST_CHOICES), type=Remembered), ""
    except (FileNotFoundError, NotADirectoryError):
        return Remembered(), ""
    except OSError as error:
        return Remembered(), f"{path} cannot be read: {error.strerror}"
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Remembered(), f"{path} is damaged: what it remembered is forgotten"


def remember(path: Path | None, **fields: str | tuple[str, ...]) -> str:
    """Remember these fields and keep the others, which another dashboard may have written.

    Returns the reason if it failed, else "". The old file stays until the new one is complete: a full disk or
    a crash loses only the change.
    """
    if path is None:
        return "there is no home directory"
    present, _ = remembered_choices(path)
    kept = msgspec.structs.replace(present, **fields)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replaced(path, 0o600) as file:
            file.write(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return ""
