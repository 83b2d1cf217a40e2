"""What a run is, as text: its configuration, results, tags, notes, code and packages."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from hoptui.domain.details import Repository, RunDetails
from hoptui.presentation import numbers

SHORT_COMMIT = 8
LONGEST = 500
Rows = list[tuple[str, str]]
"""Labels and values."""


def json_of(details: RunDetails | None) -> dict[str, Any] | None:
    """Return the details as every `--json` shows them: JSON has no number for NaN and infinities."""
    if details is None:
        return None
    found: dict[str, Any] = finite(msgspec.to_builtins(details))
    return found


def tag_text(tags: tuple[str, ...]) -> str:
    """`#baseline #a100`: the tags of a run."""
    return " ".join(f"#{numbers.clean(tag, LONGEST)}" for tag in tags)


def commit(repository: Repository | None) -> str:
    """`3f9c2a1b on main, with changes`: the code of a run, "" if it is unknown."""
    if repository is None:
        return ""
    on = f" on {numbers.clean(repository.branch, 60)}" if repository.branch else ""
    changes = {True: ", with uncommitted changes", False: "", None: ", changes unknown"}
    return f"{numbers.clean(repository.commit[:SHORT_COMMIT])}{on}{changes[repository.dirty]}"


def job(details: RunDetails) -> str:
    """`Slurm 4711`: the job of a run, "" if it is in none."""
    number = details.environment.get("SLURM_JOB_ID", "")
    return f"Slurm {numbers.clean(number, 40)}" if number else ""


def origin_rows(details: RunDetails) -> Rows:
    """Where a run comes from. What is unknown is left out."""
    packages = details.packages
    first = [name for name in ("torch", "CUDA") if name in packages]
    names = [*first, *sorted(name for name in packages if name not in first)]
    versions = ", ".join(f"{numbers.clean(name, 40)} {numbers.clean(packages[name], 40)}" for name in names)
    who = f"{details.user} on {details.host}" if details.user and details.host else details.user
    ranks = ", ".join(f"{name}={value}" for name, value in details.environment.items())
    rows = [
        ("tags", tag_text(details.tags)),
        ("notes", details.notes),
        ("command", details.command),
        ("job", job(details)),
        ("directory", details.directory),
        ("commit", commit(details.repository)),
        ("Python", details.python),
        ("packages", versions),
        ("user", who),
        ("environment", ranks),
    ]
    return [(label, _clean(text)) for label, text in rows if text]


def value_rows(values: Mapping[str, Any], left_out: int) -> Rows:
    """The entries of a configuration or of a summary, and how many are left out."""
    rows = [(numbers.clean(name, 200), value_text(value)) for name, value in values.items()]
    return [*rows, ("…", f"{numbers.counted(left_out, 'other')} too large to show")] if left_out else rows


def value_text(value: object) -> str:
    """A value of a configuration as one line."""
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return _clean(json.dumps(finite(value), ensure_ascii=False))


def _clean(text: str) -> str:
    return numbers.clean(" ".join(text.split()), 4 * LONGEST)


def finite(value: Any) -> Any:
    """Return a value with texts for NaN and infinities, for which JSON has no number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(name): finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return value
