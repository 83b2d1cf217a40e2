"""A run as another tool has logged it, and the recording of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hoptui.domain.columns import LOGGED_NAN, pack
from hoptui.domain.details import LONGEST_NOTES, MOST_CONFIG_BYTES, MOST_SUMMARY_BYTES, RunDetails
from hoptui.domain.facts import clean_text
from hoptui.protocol.messages import RunState
from hoptui.protocol.ranges import MOST_COUNT, MOST_WALL
from hoptui.recording import Recording, library, stored_json
from hoptui.recording.ingest import Boot
from hoptui.sdk.details import DescribedValues, clean_tags, fitting, shown_values
from hoptui.sdk.metric_values import clean_name

SECOND = 1_000_000_000
LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
IMPORTED = "imported"
"""The reason of the end of a run whose files do not say how it ended."""
PART_ROWS = 4096

ScalarRow = tuple[float, int, Mapping[str, float]]
"""Wall time in seconds since 1970, step, and values by name."""


class ForeignRunError(Exception):
    """The files cannot be read. The text is one sentence."""


@dataclass(kw_only=True)
class ForeignRun:
    """A run of another tool. `place` is where its files are; `rows` are in order of time.

    `ending` is how it ended, as far as the files say it. `unreadable` counts damaged entries.
    """

    place: Path
    name: str
    rows: list[ScalarRow] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    tags: Iterable[str] = ()
    notes: str = ""
    host: str = ""
    ending: str = IMPORTED
    unreadable: int = 0

    @property
    def id(self) -> str:
        """The id of the run: the same whenever the same place is imported."""
        number = int.from_bytes(hashlib.sha256(str(self.place.resolve()).encode()).digest()[:8], "big")
        found = ""
        for _ in range(8):
            number, letter = divmod(number, len(LETTERS))
            found += LETTERS[letter]
        return found


def merged(values: Iterable[tuple[float, int, str, float]]) -> list[ScalarRow]:
    """Return rows of single values (wall time, step, name, value), in order of time.

    Neighbours of one step are one row, with the time of its first value.
    """
    rows: list[tuple[float, int, dict[str, float]]] = []
    for wall, step, name, value in sorted(values, key=lambda one: one[0]):
        if not (abs(wall) <= MOST_WALL and abs(step) <= MOST_COUNT):  # false for NaN
            continue
        last = rows[-1] if rows else None
        if last is None or last[1] != step or name in last[2]:
            rows.append((wall, step, last_row := {}))
        else:
            last_row = last[2]
        last_row[name] = LOGGED_NAN if math.isnan(value) else value
    return list(rows)


def record(run: ForeignRun, path: Path) -> None:
    """Write the recording of a run that has rows. What its files do not say stays unknown.

    Raises:
        RecordingError: it cannot be written.
    """
    began, ended = run.rows[0][0], run.rows[-1][0]
    offset = round(began * SECOND) - SECOND
    boot = Boot(f"imported-{run.id}", offset, SECOND)
    rows: list[tuple[int, int, dict[str, float]]] = []
    for wall, step, values in run.rows:
        t = max(round(wall * SECOND) - offset, rows[-1][0] + 1 if rows else SECOND)
        rows.append((t, step, {_metric(name): value for name, value in values.items()}))
    config, config_left_out = fitting(_shown(run.config), MOST_CONFIG_BYTES)
    summary, summary_left_out = fitting(_shown(run.summary), MOST_SUMMARY_BYTES)
    details = RunDetails(
        config=config,
        config_left_out=config_left_out,
        summary=summary,
        summary_left_out=summary_left_out,
        tags=clean_tags(run.tags),
        notes=clean_text(run.notes, LONGEST_NOTES),
        directory=clean_text(str(run.place), 1000),
        host=clean_text(run.host, 100),
    )
    state = RunState(
        run=run.id,
        name=clean_name(run.name) or run.id,
        epoch=1,
        pid=0,
        started_wall=began,
        exit_reason=clean_text(run.ending, 100),
        exited_wall=ended,
        tags=details.tags,
    )
    known = library.KnownRun(state=state, nonce="", process_started=0, details=details)
    with Recording.create(path, boot=boot) as recording:
        recording.remember(library.RUN, stored_json.encode(known))
        for first in range(0, len(rows), PART_ROWS):
            recording.append(pack(f"run/{run.id}", rows[first : first + PART_ROWS]))
            recording.flush()


def _shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flat values without secrets."""
    described = DescribedValues(lambda: None)
    described.update(dict(values))
    return shown_values(described)


def _metric(name: str) -> str:
    """The name of a metric. One that hoptui would take for a phase of its own gets another one."""
    found = clean_name(name)
    return f"logged/{found}" if found.startswith("phase/") else found
