"""`hoptui __complete`: print the names that fit at the cursor, one per line. The scripts of shells call it.

It is quick and silent: it starts no daemon, waits for a busy one only a little, and reads recordings only for
a little time. Whatever fails, it prints fewer names, and never an error into the line that somebody types.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import hoptui
from hoptui.cli.completion.grammar import Wanted, wanted
from hoptui.cli.completion.shell_words import reply, words

if TYPE_CHECKING:
    from hoptui.node.addresses import Addresses
    from hoptui.protocol.messages import Delta, RunState

ANSWER_S = 1.0
"""How long to wait for the daemon, which answers within milliseconds unless the machine is busy."""
READ_S = 0.1
"""How long to read recordings, the newest first. Those that are not read in this time are not offered."""
NOTHING_NEW = 1 << 62
"""A cursor beyond every event and command."""
RECORDED = ".hoptui"
EXAMPLES = Path(hoptui.__file__).parent / "examples"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def main(arguments: Sequence[str]) -> int:
    """Print the candidates of a shell.

    Args:
        arguments: `bash LINE BREAKS`, the line up to the cursor and `COMP_WORDBREAKS`; or `zsh WORDS…` or
            `fish WORDS…`, the words behind `hoptui`, the last one as it stands in the line.
    """
    with contextlib.suppress(Exception):  # an error would be printed into the line that is typed
        sys.stdout.write("".join(f"{one}\n" for one in _lines(arguments)))
        sys.stdout.flush()
    return 0


def _lines(arguments: Sequence[str]) -> list[str]:
    shell, *given = arguments
    if shell != "bash":
        *before, raw = given
        return candidates([*before, words(raw)[0].value])
    line, breaks = given
    typed = words(line)
    while _VARIABLE.match(typed[0].value):
        del typed[0]
    offered = candidates([word.value for word in typed[1:]])
    last = typed[-1]
    return [text for one in offered if (text := reply(last, one, breaks)) is not None]


def candidates(typed: Sequence[str]) -> list[str]:
    """The whole words that the last of these words may become. `typed` are the words behind `hoptui`."""
    asked = wanted(typed)
    if asked is None:
        return []
    begun = typed[-1]
    names = [name for name in _named(asked, begun) if name.startswith(begun) and name.isprintable()]
    return list(dict.fromkeys([*names, *(_files(begun) if asked.files else ())]))


def _named(asked: Wanted, begun: str) -> Iterator[str]:
    from hoptui.node.addresses import AddressError, addresses

    if asked.source == "example":
        yield from sorted(path.name.removesuffix(RECORDED) for path in EXAMPLES.glob(f"*{RECORDED}"))
        return
    try:
        where = addresses(create=False)
    except AddressError:
        return
    if asked.source in ("assignment", "knob"):
        yield from _knobs(where, asked, begun)
        return
    living: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    if asked.source != "recorded" and (node := _node(where)) is not None and node.node is not None:
        from hoptui.model.runs import lives

        for run in node.node.runs:
            (living if lives(run, node.vitals) else others).append((run.run, run.name))
    if asked.source == "living":
        yield from _unique(living)
        return
    yield from _unique([*living, *others, *_recorded(where)])


def _unique(runs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The name of each run, or its id where the name does not say which run is meant."""
    known = dict(runs)
    count = Counter(known.values())
    for run, name in known.items():
        clear = name and count[name] == 1 and name.isprintable() and not name.startswith("-")
        yield name if clear and "/" not in name else run


def _node(where: Addresses) -> Delta | None:
    """The runs of the daemon; None if there is none, or if it does not answer soon."""
    from hoptui.node.processes import daemon_lives

    if not daemon_lives(where):
        return None
    from hoptui.client.session import RefusedError, Session, Unreachable

    try:
        with Session(where, client="completion", timeout_s=ANSWER_S, read_only=True) as session:
            return session.fetch(events=NOTHING_NEW, commands=NOTHING_NEW)
    except (Unreachable, RefusedError):
        return None


def _recorded(where: Addresses) -> Iterator[tuple[str, str]]:
    """The id and the name of each recorded run, the last written first, as far as there is time."""
    from hoptui.recording import RecordingError, library

    until = time.monotonic() + READ_S
    try:
        found = library.paths(where.state)
    except RecordingError:
        return
    written = [(seen[0], path) for path in found if (seen := library.measured(path)) is not None]
    for _, path in sorted(written, reverse=True):
        if time.monotonic() >= until:
            return
        if (entry := library.entry(path)) is not None and entry.state is not None:
            yield entry.run, entry.state.name


def _knobs(where: Addresses, asked: Wanted, begun: str) -> Iterator[str]:
    """The knobs of the run that is named, as `knob=`, or the values of the knob that is typed."""
    run = _run(where, asked.run)
    if run is None:
        return
    for knob in run.knobs:
        spec = knob.spec
        if asked.source == "knob":
            yield spec.name
        elif not begun.startswith(f"{spec.name}="):
            yield f"{spec.name}="
        else:
            for choice in ("on", "off") if spec.kind == "bool" else spec.choices:
                yield f"{spec.name}={choice}"


def _run(where: Addresses, name: str) -> RunState | None:
    from hoptui.model.runs import Ambiguous, NoSuchRun, find_run

    node = _node(where)
    if node is None or node.node is None:
        return None
    try:
        return find_run(node.node, node.vitals, name)
    except (NoSuchRun, Ambiguous):
        return None


def _files(begun: str) -> list[str]:
    """The recordings whose path begins like this, and with `begun` the directories. Hidden ones only after
    a dot."""
    head, slash, tail = begun.rpartition("/")
    shown = f"{head}{slash}"
    found = []
    with contextlib.suppress(OSError, RuntimeError), os.scandir(Path(shown).expanduser()) as entries:
        for entry in entries:
            name = entry.name
            if not name.startswith(tail) or not name.isprintable() or (not tail and name[0] == "."):
                continue
            if not slash and name.startswith("-"):  # it would be read as an option
                continue
            if name.endswith(RECORDED):
                found.append(f"{shown}{name}")
            elif begun and entry.is_dir():
                found.append(f"{shown}{name}/")
    return sorted(found)
