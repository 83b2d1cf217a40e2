"""The pages themselves: each function returns Markdown."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, get_args

import msgspec

from docs._generate.layout import load

VARIABLES = (
    ("HOPTUI", "on", "`off`: `hoptui.connect()` does nothing in this process."),
    ("HOPTUI_DIR", "`/tmp/hoptui-<uid>`", "Sockets, lock and log. An absolute path, mode 0700."),
    ("HOPTUI_STATE_DIR", "`/var/tmp/hoptui-<uid>`",
     "Recordings. An absolute path on a local disk, mode 0700."),
    ("HOPTUI_KEEP_DAYS", "", "Recordings that are older than this many days are deleted."),
    ("HOPTUI_KEEP_GB", "", "Size of all recordings together. The oldest are deleted first."),
    ("HOPTUI_RUN_GB", "", "Size of one recording. Beyond it the oldest rows go, and their summaries stay."),
    ("HOPTUI_METRICS", "none", "`HOST:PORT` of the Prometheus endpoint of a daemon that starts by itself."),
    ("HOPTUI_LIGHTNING", "off", "`1` or a name: every Trainer of Lightning gets the callback of hoptui."),
    ("HOPTUI_STACKS", "on", "`off`: the stack of the training thread is not sampled for `hoptui where`."),
    ("HOPTUI_OUTPUT", "none", "`copy`: the Python code of the training process passes on what it writes to a "
     "terminal or a pipe. `hoptui run --output` sets it."),
    ("HOPTUI_IDLE_S", "60", "Seconds after which a daemon ends that no run and no viewer uses."),
)  # fmt: skip
"""Environment variables that `config.toml` cannot set."""

SCOPES = {
    "everywhere": "Everywhere",
    "overview": "Overview",
    "run": "Run",
    "gpus": "GPUs",
    "settings": "Settings",
    "runs": "Table of runs",
    "history": "History",
    "tuner": "Tuner",
    "where": "Lines",
    "output": "Output",
    "job": "Several nodes",
    "nodes": "Several nodes: the map",
    "limits": "Tuner: limits",
    "chart": "Charts",
    "finder": "Series finder",
    "list": "Any list",
    "editor": "Knob editor",
    "staged": "Staged changes",
    "conflict": "Conflict",
    "filter": "History: filter",
    "story": "History: one command",
    "confirm": "Questions",
    "help": "Help",
    "text": "Any long text",
    "hosts": "Several hosts",
    "replay": "Replay",
    "goto": "Replay: go to",
    "note": "Notes",
}


def cli() -> str:
    """Every command with its options."""
    app = load("cli").build()
    text: str = app.generate_docs(output_format="markdown", heading_level=1)
    text = re.sub(r"## Table of Contents\n.*?(?=\n\*\*)", "", text, count=1, flags=re.S)
    return _generated("the command line's parser", text.replace("# hoptui\n", "# Command line\n", 1))


def keys() -> str:
    """Every action of the dashboard with its keys."""
    actions = load("actions")
    parts = [
        "# Keys",
        "The footer of the dashboard shows the most useful keys. `?` explains all keys of a screen, and "
        "`ctrl+p` finds any action by its name. The ids are for the `[keys]` table of `config.toml`, see "
        "[Settings](settings.md).",
    ]
    for scope in get_args(actions.Scope):
        rows = [
            (_key_names(action.keys), action.help, f"`{action.id}`")
            for action in actions.ACTIONS
            if action.scope == scope
        ]
        if rows:
            parts += [
                f"## {SCOPES.get(scope, scope.capitalize())}",
                _table(("Keys", "What it does", "Id"), rows),
            ]
    return _generated("the list of actions", "\n\n".join(parts))


def concepts(template: str) -> str:
    """The page of concepts: the template with the table of verdicts filled in."""
    rows = [(f"`{verdict}`", text.meaning) for verdict, text in load("verdicts").VERDICTS.items()]
    return template.replace("<!-- verdicts -->", _table(("verdict", "meaning"), rows))


def settings(template: str) -> str:
    """The settings page: the template with both tables filled in."""
    config, retention = load("config"), load("retention")
    shared = [
        (f"`{s.name}`", f"`{s.variable}`", _option(s), _default(s.default), s.help + _choices(s))
        for s in config.SETTINGS
    ]
    defaults = {name: f"{value:g}" for name, value in retention.DEFAULTS.items()}
    alone = [(f"`{name}`", defaults.get(name, default), text) for name, default, text in VARIABLES]
    filled = template.replace(
        "<!-- settings -->", _table(("Setting", "Variable", "Option", "Default", "Meaning"), shared)
    ).replace("<!-- variables -->", _table(("Variable", "Default", "Meaning"), alone))
    return _generated("the settings reader", filled)


def readings() -> str:
    """Every reading with its unit, meaning and source."""
    found = load("readings")
    groups = (
        ("GPU", "Source `gpu/<uuid>`.", load("gpu_readings").GPU),
        ("GPU and run together", "Source `derived/<run id>`. The daemon computes these.", found.DERIVED),
        ("Host", "Source `host`.", found.HOST),
        ("Processes of a run", "Source `process/<run id>`.", found.PROCESS),
    )
    parts = [
        "# Readings",
        "What hoptui reads from the GPUs and the host. In the dashboard `d` shows the same texts beside "
        "the values. Readings marked *GPM* come from the performance counters of Hopper and newer GPUs.",
    ]
    for title, note, meanings in groups:
        parts += [f"## {title}", note]
        parts += [_reading(name, meaning) for name, meaning in meanings.items()]
    return _generated("the dashboard's texts", "\n\n".join(parts))


def messages() -> str:
    """Every message with its fields."""
    module = load("messages")
    sides = (
        ("From a run to the daemon", module.FromRun),
        ("From the daemon to a run", module.ToRun),
        ("From a viewer to the daemon", module.FromViewer),
        ("From the daemon to a viewer", module.ToViewer),
        ("From a sampler to the daemon", load("devices").FromSampler),
        ("From the daemon to a sampler", load("devices").ToSampler),
    )
    parts = [
        "# Messages",
        f"Protocol version {module.PROTOCOL}. A message is a msgpack map, and its `type` is the name in "
        "the headings here. Every field with a default may be left out. "
        "[Protocol](../internals/protocol.md) says when each message is sent.",
    ]
    described: set[str] = set()
    for title, union in sides:
        parts.append(f"## {title}")
        for kind in _members(union):
            tag = str(kind.__struct_config__.tag)
            if tag in described:
                parts.append(f"`{tag}`: see above.")
                continue
            described.add(tag)
            parts += [f"### {tag}", _fields(kind)]
    return _generated("the message types", "\n\n".join(parts))


def recording() -> str:
    """The schema of a recording."""
    database = load("database")
    db = sqlite3.connect(":memory:")
    for migration in database.MIGRATIONS:
        for statement in migration:
            db.execute(statement)
    found = db.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type, name")
    parts = [
        "# Recording schema",
        f"A recording is one SQLite file. Its `application_id` is `{database.APPLICATION_ID:#x}`, and its "
        f"`user_version` is the schema version, now {database.SCHEMA}. Newer versions of hoptui read every "
        "older schema.",
        "In the table `meta`, `run` is the run as JSON, and `node` the node. A recording of a node alone, by "
        "`hoptui record`, has no `run`.",
        "For your own analysis use `hoptui export`. It unpacks the blocks into CSV, JSON lines or Parquet. "
        "The two views `event_log` and `command_log` are made for `sqlite3` at the prompt:",
        "```sql\nSELECT utc, knob, before, effective, gain FROM command_log;\n```",
    ]
    for kind, name, sql in found.fetchall():
        if kind != "index":
            parts += [f"## {kind.capitalize()} `{name}`", f"```sql\n{_unindented(sql)}\n```"]
    db.close()
    return _generated("the schema of the recorder", "\n\n".join(parts))


COMPARED = ("hoptui", "btop", "leet", "symon", "hoptui_h200", "nvitop_h200")
"""Pictures of monitors, in three sizes each."""
PICTURES = (
    "cast.webp",
    *(f"comparison/{tool}_{size}.png" for tool in COMPARED for size in ("80x24", "120x40", "200x50")),
)
"""Screenshots that pages show: as `../screenshots/<name>`, so that they are there on GitHub too, and as
`pictures/<name>` on the site."""
SCREENSHOTS = "../screenshots"
"""Where pages, all of them in `docs`, say that the screenshots are."""
PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": cli,
    "reference/keys.md": keys,
    "reference/readings.md": readings,
    "reference/messages.md": messages,
    "reference/recording.md": recording,
}
"""Generated pages by their place."""
TEMPLATES: dict[str, Callable[[str], str]] = {"concepts.md": concepts, "reference/settings.md": settings}
"""Pages with tables to fill in, by their place."""


def _generated(source: str, text: str) -> str:
    return f"{text.rstrip()}\n\n*This page is generated from {source}.*\n"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def _key_names(keys: str) -> str:
    names = load("actions")
    return " ".join(f"`{names.key_text(key)}`" for key in keys.split(",")) or "none"


def _option(setting: Any) -> str:
    name = setting.name.replace("_", "-")
    return f"`--{name}`" if setting.choices else f"`--{name}`, `--no-{name}`"


def _default(value: object) -> str:
    return f"`{str(value).lower()}`"


def _choices(setting: Any) -> str:
    return f": {', '.join(f'`{choice}`' for choice in setting.choices)}." if setting.choices else "."


def _reading(name: str, meaning: Any) -> str:
    gpm = " · *GPM*" if "gpm" in meaning.needs else ""
    good = f"\n\n*How to judge it:* {meaning.good}." if meaning.good else ""
    return (
        f"### `{name}`\n\n**{meaning.label}**, {meaning.unit}{gpm}. {meaning.long}{good}\n\n*Source:* "
        f"{meaning.source}."
    )


def _members(union: Any) -> tuple[Any, ...]:
    return get_args(union) or (union,)


def _fields(kind: type[msgspec.Struct]) -> str:
    rows = []
    for field in msgspec.structs.fields(kind):
        required = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
        default = "required" if required else f"`{_plain_default(field)}`"
        rows.append((f"`{field.encode_name}`", f"`{_type_name(field.type)}`", default))
    note = " ".join((kind.__doc__ or "").split())
    note = f"{note}\n\n" if note and not note.startswith(f"{kind.__name__}(") else ""
    return note + (_table(("Field", "Type", "Default"), rows) if rows else "No fields.")


def _plain_default(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        return repr(field.default)
    return repr(field.default_factory())


def _type_name(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return re.sub(r"\b(?:[a-z_]+\.)+([A-Z])", r"\1", text).replace("typing.", "")


def _unindented(sql: str) -> str:
    lines = sql.strip().splitlines()
    indents = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    # The first line of a statement has lost its indentation, so the least of the others is that of the
    # closing line.
    cut = min(indents, default=0)
    return "\n".join([lines[0], *(line[cut:] for line in lines[1:])])
