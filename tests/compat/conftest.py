"""A node on which the daemon, the runs and the viewers are each of the newest or of the previous release."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.compat import previous
from tests.conftest import TestNode, until

Release = Literal["newest", "previous"]

SCRIPT = """
import sys, time, hoptui
from pathlib import Path
run = hoptui.connect("toy")
grad_accum = run.knob("grad_accum", 4, min=1, max=64, effect="speed")
lr = run.knob("lr", 3e-4, min=1e-6, max=1e-1, scale="log")

@run.on_checkpoint
def save():
    return str(Path(sys.argv[1]) / "model.pt")

for step in run.iterations():
    with run.phase("update"):
        time.sleep(0.01)
    run.log(samples=100 * grad_accum.value, loss=1.0 / (step + 1))
    if step == 3:
        run.event("warm")
run.close()
print(step + 1, Path(hoptui.__file__).parents[1])
"""


class MixedNode:
    """A node with processes of two releases."""

    def __init__(self, node: TestNode, package: Path, directory: Path) -> None:
        self.node = node
        self.package = package
        self._directory = directory

    def environment(self, release: Release) -> dict[str, str]:
        return previous.environment(self.package) if release == "previous" else {}

    def daemon(self, release: Release) -> int:
        """Start the daemon; its pid."""
        self.node.spawn([sys.executable, "-m", "hoptui.daemon"], **self.environment(release))
        return until(self.node.daemon_pid, what="the daemon")

    def run(self, release: Release) -> subprocess.Popen[str]:
        """Start a run, which prints the number of its iterations and where its hoptui is."""
        return self.node.start(SCRIPT, str(self._directory), **self.environment(release))

    def ended(self, run: subprocess.Popen[str], release: Release) -> int:
        """Wait for the end of a run; the number of its iterations."""
        out, errors = run.communicate(timeout=20)
        assert (run.returncode, errors) == (0, "")
        iterations, place = out.split()
        assert (Path(place) == self.package) == (release == "previous")
        return int(iterations)

    def hoptui(self, release: Release, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of the command line."""
        return subprocess.run(
            [sys.executable, "-m", "hoptui", *words],
            env=self.node.environment | self.environment(release),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
        )

    def done(self, release: Release, *words: str) -> str:
        """What a command prints that succeeds."""
        ended = self.hoptui(release, *words)
        assert ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def json(self, release: Release, *words: str) -> Any:
        """The value that a command with `--json` prints."""
        return json.loads(self.done(release, *words, "--json"))


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the package of the previous release."""
    directory = tmp_path_factory.mktemp("previous")
    previous.unpack(directory)
    return directory


@pytest.fixture
def mixed(node: TestNode, package: Path, tmp_path: Path) -> MixedNode:
    return MixedNode(node, package, tmp_path)
