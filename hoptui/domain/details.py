"""What a run is: its configuration, results, tags, notes, and where its code comes from."""

from __future__ import annotations

from typing import Any

import msgspec

MOST_CONFIG_BYTES, MOST_SUMMARY_BYTES = 32 << 10, 16 << 10
"""The most that the configuration and the summary of a run take in a message."""
MOST_TAGS, LONGEST_TAG, LONGEST_NOTES = 20, 64, 2000


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """The git repository of a script when its run began.

    `dirty`: tracked files differ from the commit. None: git did not answer in time. `branch` is "" for none.
    """

    commit: str
    branch: str = ""
    dirty: bool | None = None


class RunDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What describes a run besides its rows, knobs and state.

    `config` and `summary` come from the script: flat names such as `optimizer.lr`, and JSON values. Of a
    large one the first entries are kept, and `config_left_out` and `summary_left_out` count the others.
    Secrets are masked. `command` is the whole command line, `directory` the working directory at the start,
    `script` the file that Python runs ("" for none). `packages` are the versions of what is imported.
    `environment` has the variables that place this process among the ranks. The daemon finds `repository`;
    None is unknown.
    """

    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    config_left_out: int = 0
    summary_left_out: int = 0
    tags: tuple[str, ...] = ()
    notes: str = ""
    command: str = ""
    directory: str = ""
    script: str = ""
    python: str = ""
    packages: dict[str, str] = {}
    host: str = ""
    user: str = ""
    environment: dict[str, str] = {}
    repository: Repository | None = None
