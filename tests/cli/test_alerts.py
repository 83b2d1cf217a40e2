"""`hoptui alerts test`: each target is tried, and the exit code says whether all worked."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TestNode, over, until


@pytest.fixture
def there(node: TestNode, tmp_path: Path) -> TestNode:
    node.environment["XDG_CONFIG_HOME"] = str(tmp_path)
    (tmp_path / "hoptui").mkdir()
    return node


def configure(tmp_path: Path, text: str) -> None:
    (tmp_path / "hoptui" / "config.toml").write_text(f"[alerts]\n{text}")


COMMAND = '[[alerts.targets]]\ntype = "command"\ncommand = {}\n'
DEAD = '[[alerts.targets]]\ntype = "webhook"\nformat = "slack"\nurl = "http://127.0.0.1:1/SECRET"\n'


def test_without_targets_it_fails_with_one_sentence(there: TestNode, tmp_path: Path) -> None:
    done = there.hoptui("alerts", "test")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no targets" in done.stderr
    assert done.stderr.count("\n") == 1


def test_each_target_is_reported(there: TestNode, tmp_path: Path) -> None:
    configure(tmp_path, COMMAND.format('["true"]') + DEAD)
    done = there.hoptui("alerts", "test")
    assert done.returncode == 1
    assert sorted(done.stdout.splitlines()) == [
        "✓ command 1",
        "✕ webhook 2 (slack): it cannot be reached: Connection refused",
    ]
    listed = json.loads(there.hoptui("alerts", "test", "--json").stdout)["targets"]
    assert [(each["target"], each["worked"]) for each in listed] == [
        ("command 1", True),
        ("webhook 2 (slack)", False),
    ]
    assert "SECRET" not in done.stdout + done.stderr


def test_all_that_work_give_zero(there: TestNode, tmp_path: Path) -> None:
    configure(tmp_path, COMMAND.format('["true"]') * 2)
    assert there.hoptui("alerts", "test").returncode == 0


def test_wrong_settings_are_one_line_each_and_the_rest_is_used(there: TestNode, tmp_path: Path) -> None:
    configure(tmp_path, "bel = true\n" + COMMAND.format('"true"') + COMMAND.format('["true"]') + "x = 1\n")
    done = there.hoptui("alerts", "test")
    assert (done.returncode, done.stdout) == (0, "✓ command 2\n")
    file = tmp_path / "hoptui" / "config.toml"
    assert done.stderr.splitlines() == [
        f"hoptui: {file} line 2: alerts have no setting bel, did you mean bell?",
        f"hoptui: {file} line 5: target 1: command takes a list of texts: the program and its arguments",
        f"hoptui: {file} line 9: target 2: alerts have no setting x",
    ]


def test_ctrl_c_leaves_no_command_behind(there: TestNode, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    configure(tmp_path, COMMAND.format(f'["sh", "-c", "echo $$ > {pid}; sleep 60"]'))
    child = subprocess.Popen([sys.executable, "-m", "hoptui", "alerts", "test"], env=there.environment)
    try:
        until(lambda: pid.exists() and pid.read_text().strip(), what="the command")
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130
    finally:
        child.kill()
        child.wait()
    until(lambda: over(int(pid.read_text())), what="the end of the command")
