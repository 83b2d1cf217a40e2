"""A node whose GPU sampler is a script that does what a test tells it to."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pytest

from hoptui.protocol import messages
from tests.conftest import RawViewer, TestNode, until
from tests.daemon.quiet_node import UP, QuietNode
from tests.impatient import brisk_command

FAKE = Path(__file__).with_name("fake_gpus.py")


def _command(process: psutil.Process) -> list[str]:
    """The command line of a process, empty if it has just ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


class GpuNode:
    """A node with two GPUs, a daemon, and a viewer."""

    def __init__(self, node: TestNode, directory: Path) -> None:
        self.node = node
        self._plan = directory / "plan.json"
        self.viewer: RawViewer

    def start(
        self, metrics: str = "", timings: Mapping[str, float] = MappingProxyType({}), **environment: str
    ) -> RawViewer:
        """Start the daemon, brisk and with other `timings`; returns its viewer."""
        root = str(FAKE.parents[2])
        command = [*brisk_command(**timings), metrics, sys.executable, str(FAKE), str(self._plan)]
        self.daemon = self.node.spawn(command, PYTHONPATH=root, **environment)
        until(self.node.daemon_pid, what="the daemon")
        self.viewer = self.node.viewer()
        until(lambda: len((state := self.state()).gpus) == 2 and not state.sampler_problems, what="the GPUs")
        return self.viewer

    def state(self, hz: float = 10.0) -> messages.NodeState:
        """The node, asked by somebody who follows it at this rate."""
        node = self.viewer.fetch(cursors={"host": 0}, hz=hz, max_rows=1).node
        assert node is not None
        return node

    def plan(self, **fields: Any) -> None:
        """How the GPU sampler is to behave from its next tick on."""
        new = self._plan.with_suffix(".new")
        new.write_text(json.dumps(fields))
        new.rename(self._plan)

    def last_t(self, source: str) -> int:
        """The stamp of a source's newest row."""
        newest = self.viewer.fetch(latest=True, cursors={"host": 0}, hz=10.0).columns
        found = [c for c in newest if c.source == source and len(c)]
        return found[0].times()[-1] if found else 0

    def goes_on(self, source: str) -> None:
        """New rows come in."""
        before = self.last_t(source)
        until(lambda: self.last_t(source) > before, what=f"rows of {source}")

    def events(self, kind: str) -> list[messages.Event]:
        heard = self.viewer.fetch(cursors={"host": 0}, hz=10.0).events
        return [event for event in heard if event.kind == kind]

    def samplers(self) -> list[psutil.Process]:
        """The GPU samplers that live."""
        children = psutil.Process(self.node.daemon_pid()).children()
        return [child for child in children if str(FAKE) in _command(child)]


@pytest.fixture
def gpu_node(node: TestNode, tmp_path: Path) -> GpuNode:
    return GpuNode(node, tmp_path)


@pytest.fixture
def quiet() -> QuietNode:
    """A run on a node without sockets, disk or clock."""
    found = QuietNode()
    found.hello()
    found.rows(100.0, 101.0)
    return found


@pytest.fixture
def trying(quiet: QuietNode) -> QuietNode:
    """One whose tuner is in the middle of a trial."""
    there = quiet
    there.tune()
    there.script.propose(UP)
    there.look()
    there.outcome(there.commands[0])
    assert there.value() == 64
    return there
