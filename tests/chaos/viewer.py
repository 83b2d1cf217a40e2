"""A viewer in a process of its own: it watches, gives commands, and writes down what it is shown.

`python -m tests.chaos.viewer JOURNAL NUMBER COMMANDS_PER_S [START_DAEMON]` runs until it is killed. `Journal`
reads what was written.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.audited_run import KNOBS
from hoptui.client.client import Client
from hoptui.protocol.messages import CommandRecord, RunState

LOOK_S = 0.1
SEEN_EVERY = 5
MOST_COMMANDS = 10**7
"""Command i of viewer v sets the value v * MOST_COMMANDS + i."""
AUDITED = "k0"
"""Only runs with this knob are given commands."""


class Journal:
    """What a viewer has written, in order. It can be read at any time.

    A line is a dict with `t` (monotonic ns) and `what`: `given` (a command, before it is sent), `stage` (of
    any command, when it changes) or `seen` (the runs as shown, several times a second).
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, what: str) -> Iterator[dict[str, Any]]:
        """Yield the lines of a kind. A last line that a kill has cut off is left out."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return
        for line in text.splitlines(keepends=True):
            if line.endswith("\n") and (found := json.loads(line))["what"] == what:
                yield found


class Watcher:
    """One viewer. The thread of the client calls `_changed`, the main thread does the rest."""

    def __init__(self, journal: Path, number: int, per_s: float, *, start_daemon: bool) -> None:
        self._file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._first = number * MOST_COMMANDS
        self._given = 0
        self._per_s = per_s
        self._chosen = random.Random(number)
        self._stages: dict[str, tuple[str, str]] = {}
        self._client = Client(client=f"v{number}", on_change=self._changed, start_daemon=start_daemon)

    def _write(self, what: str, **fields: Any) -> None:
        line = json.dumps({"t": time.monotonic_ns(), "what": what, **fields})
        os.write(self._file, f"{line}\n".encode())

    def _changed(self, change: str) -> None:
        if change != "commands":
            return
        for record in list(self._client.store.commands.values()):
            self._show(record)

    def _show(self, record: CommandRecord) -> None:
        stage = (record.stage, record.code)
        if self._stages.get(record.id) != stage:
            self._stages[record.id] = stage
            fields = {"id": record.id, "stage": record.stage, "code": record.code, "seq": record.seq}
            self._write("stage", effective=record.effective, wanted=record.wanted, **fields)

    def watch(self) -> None:
        """Watch until the process is killed."""
        self._client.start()
        looks = 0
        while True:
            time.sleep(LOOK_S)
            if looks % SEEN_EVERY == 0:
                self._look()
            if self._chosen.random() < self._per_s * LOOK_S:
                self._give()
            looks += 1

    def _look(self) -> None:
        store, link = self._client.store, self._client.link
        node = store.node
        if node is None or link.state != "live":
            self._write("seen", link=link.state)
            return
        self._write("seen", link=link.state, history=node.history, runs=[self._run(run) for run in node.runs])

    def _run(self, run: RunState) -> dict[str, Any]:
        vital = self._client.store.vital(run.run)
        return {
            "run": run.run,
            "name": run.name,
            "epoch": run.epoch,
            "pid": run.pid,
            "exit": run.exit_reason,
            "state": vital.state if vital else "",
            "step": vital.step if vital else 0,
            "dropped": vital.dropped if vital else 0,
            "n": self._client.store.latest(f"run/{run.run}").get("n"),
            "values": {knob.spec.name: knob.value for knob in run.knobs if knob.spec.name.startswith("k")},
        }

    def _give(self) -> None:
        node = self._client.store.node
        runs = [r for r in node.runs if not r.exit_reason and _has(r, AUDITED)] if node else []
        if not runs or self._client.link.state != "live":
            return
        run = self._chosen.choice(runs)
        self._client.watch(run.run)
        self._given += 1
        knob, value = f"k{self._chosen.randrange(KNOBS)}", self._first + self._given
        self._write("given", value=value, run=run.run, epoch=run.epoch, knob=knob)
        self._client.send("set", run.run, knob=knob, value=value)


def _has(run: RunState, name: str) -> bool:
    return any(knob.spec.name == name for knob in run.knobs)


def main() -> None:
    """Watch."""
    journal, number, per_s, *start = sys.argv[1:]
    Watcher(Path(journal), int(number), float(per_s), start_daemon=bool(start)).watch()


if __name__ == "__main__":
    main()
