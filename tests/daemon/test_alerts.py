"""A daemon delivers alerts while no dashboard is open, and nothing of a target can harm it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hoptui.daemon.alert_worker import MOST_WAITING, AlertWorker, fired_alerts
from hoptui.daemon.state.alert_book import FiredAlerts
from hoptui.domain.alerts import Alert
from hoptui.domain.facts import fact
from hoptui.domain.pacing import Timings
from tests.alerts.conftest import Hook, hook
from tests.conftest import TestNode, until
from tests.impatient import impatient_daemon

__all__ = ["hook"]
SECRET = "T0K3N-s3cr3t"
SCRIPT = """
import math, time, hoptui
run = hoptui.connect("toy")
for step in run.iterations():
    time.sleep(0.02)
    run.log(loss=math.nan if step >= 10 else 0.5)
"""
NAN = Alert(kind="nan", what=fact("number.bad", metric="loss", value="NaN"), host="n", wall=1.0)
BRISK = Timings(alerts_s=0.02, alert_pause_s=0.01)


def configure(directory: Path, hook: Hook, more: str = "") -> None:
    folder = directory / "hoptui"
    folder.mkdir(exist_ok=True)
    new = folder / "new"
    text = f'[alerts]\n{more}\n[[alerts.targets]]\ntype = "webhook"\nurl = "{hook.url}/{SECRET}"\n'
    new.write_text(text)
    new.rename(folder / "config.toml")


def kinds(hook: Hook) -> list[str]:
    return [json.loads(got.body)["kind"] for got in hook.received]


@pytest.fixture
def there(node: TestNode, tmp_path: Path) -> TestNode:
    node.environment["XDG_CONFIG_HOME"] = str(tmp_path)
    return node


def start_daemon(there: TestNode) -> None:
    impatient_daemon(there, alerts_s=0.1, alert_pause_s=0.05)


def test_a_crash_and_a_number_reach_the_target_once(there: TestNode, tmp_path: Path, hook: Hook) -> None:
    configure(tmp_path, hook)
    start_daemon(there)
    training = there.start(SCRIPT)
    until(lambda: kinds(hook) == ["nan"], what="the alert of the loss")
    assert "HTTP" not in there.hoptui("ls").stderr
    training.send_signal(signal.SIGKILL)
    training.wait(20)
    until(lambda: kinds(hook) == ["nan", "crashed"], what="the alert of the end")
    body = json.loads(hook.received[1].body)
    assert body["title"].startswith("toy: crashed")
    assert "killed by SIGKILL" in body["text"]
    assert hook.received[1].path == f"/{SECRET}"
    assert [event.alert for event in there.viewer().fetch().events if event.alert] == ["nan", "crashed"]


def test_a_later_daemon_reports_an_end_it_missed_and_nothing_twice(
    there: TestNode, tmp_path: Path, hook: Hook
) -> None:
    configure(tmp_path, hook)
    start_daemon(there)
    training = there.start(SCRIPT)
    until(lambda: kinds(hook) == ["nan"], what="the alert of the loss")
    training.send_signal(signal.SIGSTOP)  # so that it starts no daemon
    daemon = there.daemon_pid()
    os.kill(daemon, signal.SIGKILL)
    until(lambda: not there.daemon_pid(), what="the end of the daemon")
    training.kill()
    training.wait(20)
    start_daemon(there)
    until(lambda: kinds(hook) == ["nan", "crashed"], what="the alert of the end")
    os.kill(there.daemon_pid(), signal.SIGKILL)
    until(lambda: not there.daemon_pid(), what="the end of the daemon")
    start_daemon(there)
    there.status_at_end("toy")
    there.start(
        "import hoptui\nrun = hoptui.connect('other')\nfor _ in zip(range(3), run.iterations()): pass"
    )
    until(lambda: len(kinds(hook)) > 2, what="the alert of another run")
    assert kinds(hook) == ["nan", "crashed", "ended"]


def test_a_dead_target_is_a_problem_of_the_node_without_its_address(
    there: TestNode, tmp_path: Path, hook: Hook
) -> None:
    hook.statuses = [500] * 3
    configure(tmp_path, hook)
    start_daemon(there)
    there.start(SCRIPT)
    said = until(lambda: there.hoptui("ls").stderr, what="the problem in hoptui ls")
    assert (
        said
        == "hoptui: alerts do not reach webhook 1 (json) (1 in a row): it answered with HTTP status 500\n"
    )
    assert kinds(hook) == ["nan"] * 3, "two more tries"
    doctor = there.hoptui("doctor", "--json").stdout
    (check,) = [each for each in json.loads(doctor)["checks"] if each["id"] == "alerts"]
    assert check["status"] == "warning"
    everything = [doctor, there.hoptui("status", "toy", "--json").stdout, there.where.log.read_text()]
    everything += [there.where.alerts.read_text(), *map(repr, there.viewer().fetch().events)]
    assert not [text for text in everything if SECRET in text]


def test_a_file_that_others_can_read_is_reported(there: TestNode, tmp_path: Path, hook: Hook) -> None:
    configure(tmp_path, hook)
    config = tmp_path / "hoptui" / "config.toml"
    config.chmod(0o644)
    start_daemon(there)

    def line() -> str:
        lines = there.hoptui("doctor").stdout.splitlines()
        return next(each for each in lines if each.split()[1] == "alerts")

    assert f"others can read {config}" in line()
    config.chmod(0o600)
    assert "1 target" in line()


class Worker:
    """A worker whose program is a script. What it was given is in `given`, one JSON in a line."""

    def __init__(self, folder: Path) -> None:
        self.given_file, self.folder = folder / "given", folder
        self.store = folder / "alerts.json"

    def make(self, script: str) -> AlertWorker:
        source = f"import json, sys, time\ngiven = sys.stdin.read()\n{script}"
        command = (sys.executable, "-c", source, str(self.given_file))
        environ = {"XDG_CONFIG_HOME": str(self.folder)}
        self.worker = AlertWorker(self.store, environ=environ, timings=BRISK, command=command)
        return self.worker

    @property
    def given(self) -> list[Any]:
        lines = self.given_file.read_text().splitlines() if self.given_file.exists() else []
        return [json.loads(line) for line in lines]


KEEP = "print(given, file=open(sys.argv[1], 'a'))\n"
WORKED = KEEP + "print(json.dumps([{'target': 0}]))"
SILENT = KEEP + "print('nonsense')"


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Worker]:
    found = Worker(tmp_path)
    yield found
    found.worker.close(20)


def test_changed_settings_are_read(work: Worker, hook: Hook) -> None:
    worker = work.make(WORKED)
    worker.start(10)
    assert worker.settings.targets == ()
    configure(work.folder, hook, "gpu_idle_minutes = 3")
    until(lambda: worker.settings.targets, what="the settings")
    assert worker.settings.gpu_idle_minutes == 3
    (work.folder / "hoptui" / "config.toml").write_text("[alerts\n")
    configure(work.folder, hook, "gpu_idle_minutes = 4")
    until(lambda: worker.settings.gpu_idle_minutes == 4, what="the settings after a broken file")
    (work.folder / "hoptui" / "config.toml").unlink()
    until(lambda: not worker.settings.targets, what="settings without a file")


def test_a_program_that_fails_is_tried_three_times(work: Worker, hook: Hook) -> None:
    configure(work.folder, hook)
    worker = work.make(SILENT)
    worker.start(10)
    worker.put(NAN)
    problem = until(lambda: worker.problem, what="the problem")
    assert problem == fact(
        "alerts.undelivered", target="webhook 1 (json)", count=1, why=fact("alert.no_answer")
    )
    assert len(work.given) == 3


def test_a_program_that_hangs_is_killed_and_reaped(
    work: Worker, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hoptui.daemon.alert_worker.LIMIT_S", 0.5)
    monkeypatch.setattr("hoptui.daemon.alert_worker.PAUSES", ())
    configure(work.folder, hook)
    worker = work.make("import os\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(60)")
    worker.start(10)
    worker.put(NAN)
    until(lambda: worker.problem, what="the problem")
    if work.given_file.exists():
        with pytest.raises(ChildProcessError):
            os.waitpid(int(work.given_file.read_text()), os.WNOHANG)


def test_too_many_alerts_are_dropped_and_counted(
    work: Worker, monkeypatch: pytest.MonkeyPatch, hook: Hook
) -> None:
    configure(work.folder, hook)
    worker = work.make(WORKED)
    held, entered = threading.Event(), threading.Event()

    def attempt(*_: object) -> list[object]:
        entered.set()
        held.wait(20)
        return []

    monkeypatch.setattr(worker, "_attempt", attempt)
    worker.start(10)
    worker.put(NAN)
    assert entered.wait(20)
    for _ in range(MOST_WAITING + 3):
        worker.put(NAN)
    assert worker.problem == fact("alerts.dropped", count=3)
    monkeypatch.setattr(worker, "_attempt", lambda *_: [])
    held.set()


def test_what_has_fired_is_stored_before_it_is_delivered(work: Worker, hook: Hook) -> None:
    configure(work.folder, hook)
    worker = work.make(WORKED)
    worker.start(10)
    worker.keep(FiredAlerts(fired=[5.0]))
    worker.put(NAN)
    until(lambda: work.given, what="the delivery")
    assert fired_alerts(work.store) == FiredAlerts(fired=[5.0])
    assert work.store.stat().st_mode & 0o777 == 0o600


def test_a_damaged_file_of_fired_alerts_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "alerts.json").write_bytes(b"{\xff")
    assert fired_alerts(tmp_path / "alerts.json") == FiredAlerts()
