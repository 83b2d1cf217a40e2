"""The harnesses by their names."""

from __future__ import annotations

from tests.fuzz.command_line import CommandLine
from tests.fuzz.configuration import Configuration
from tests.fuzz.harness import Harness
from tests.fuzz.messages import Messages
from tests.fuzz.recordings import Recordings
from tests.fuzz.ssh import Other

HARNESSES: dict[str, type[Harness]] = {
    kind.name: kind for kind in (Messages, Recordings, Configuration, CommandLine, Other)
}


def make(name: str) -> Harness:
    """Return a new harness."""
    return HARNESSES[name]()
