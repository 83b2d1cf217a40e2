"""`hoptui run` where training is in a container: with process ids, mounts and users of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TestNode, until
from tests.injection.scripts import finished, live_run, run_command, script

pytest.importorskip("torch")

CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--kill-child", "--mount", "--mount-proc")


def possible() -> bool:
    """Whether this machine lets a user make such a container."""
    try:
        return subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not possible(), reason="no user namespaces here")
def test_a_run_in_a_container_is_shown_and_steered_by_a_daemon_outside(
    node: TestNode, tmp_path: Path
) -> None:
    path = script(tmp_path)
    viewer = node.viewer()
    child = node.spawn(
        [*CONTAINER, *run_command("--", sys.executable, str(path), "long")], OMP_NUM_THREADS="1"
    )
    run = live_run(viewer, "train")
    assert run.pid != child.pid
    assert Path(f"/proc/{run.pid}").exists(), "its id outside"
    applied = viewer.outcome(viewer.command(run, knob="lr", value=0.02))
    assert (applied.stage, applied.effective) == ("applied", 0.02)
    Path(f"{path}.end").touch()
    code, _, err = finished(child)
    assert (code, err) == (0, "")
    until(lambda: all(r.exit_reason for r in viewer.state().runs), what="the ends")
    assert {r.exit_reason for r in viewer.state().runs} == {"finished"}
