"""An alert reaches webhooks and commands. What fails is reported in time, without a secret."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hoptui.alerts import messages
from hoptui.alerts.delivery import deliver
from hoptui.domain.alerts import Alert, AlertTarget, Delivered, Delivery
from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.facts import Fact, fact
from tests.alerts.conftest import Hook
from tests.conftest import over, until

SECRET = "T0K3N-s3cr3t"
ALERT = Alert(
    kind="nan",
    what=fact("number.bad", metric="loss", value="NaN"),
    host="node7",
    wall=1.0,
    run="abcd2345",
    name="ppo <&>",
    restart=2,
    step=1204,
    diagnosis=Diagnosis(
        verdict="launch-bound", confidence=0.95, facts=(fact("gpu.idle", gpus=[0], idle_s=60.0),)
    ),
)


def sent(target: AlertTarget, limit_s: float = 10.0) -> Fact | None:
    (found,) = deliver(ALERT, [target], limit_s)
    return found.problem


def webhook(url: str, **fields: Any) -> AlertTarget:
    return AlertTarget(number=1, type="webhook", url=url, **fields)


def test_json_has_the_event_the_diagnosis_and_the_numbers(hook: Hook) -> None:
    assert sent(webhook(f"{hook.url}/{SECRET}", headers={"X-Team": "a"}, token="t")) is None
    (got,) = hook.received
    assert (got.path, got.headers["X-Team"], got.headers["Authorization"]) == (f"/{SECRET}", "a", "Bearer t")
    body = json.loads(got.body)
    assert body["title"] == "ppo <&>: has a number that is NaN or infinite (node7)"
    assert body["text"].splitlines() == [
        "loss is NaN",
        "run abcd2345, restart 2, iteration 1 204",
        "diagnosis: launch-bound, 95 % sure: GPU 0 has been idle for 1 m 0 s",
    ]
    assert (body["kind"], body["code"], body["fields"]["metric"]) == ("nan", "number.bad", "loss")
    assert body["diagnosis"]["verdict"] == "launch-bound"
    assert body["diagnosis"]["facts"][0]["fields"] == {"gpus": [0], "idle_s": 60.0}


def test_each_format_has_its_shape(hook: Hook) -> None:
    for name in messages.FORMATS:
        assert sent(webhook(hook.url, format=name)) is None
    _, ntfy, slack, discord = hook.received
    assert ntfy.headers["Title"].startswith("ppo <&>: has a number")
    assert ntfy.body.startswith(b"loss is NaN\n")
    assert json.loads(slack.body)["text"].startswith("ppo &lt;&amp;&gt;: has")
    assert json.loads(discord.body)["content"].startswith("ppo <&>: has")
    assert json.loads(discord.body)["allowed_mentions"] == {"parse": []}


def test_a_redirect_is_not_followed(hook: Hook) -> None:
    hook.statuses = [302, 307]
    assert sent(webhook(hook.url)) == fact("alert.redirected")
    assert sent(webhook(hook.url)) == fact("alert.redirected")
    assert [got.path for got in hook.received] == ["/", "/"]


def test_a_refusal_is_reported_with_its_status(hook: Hook) -> None:
    hook.statuses = [404]
    assert sent(webhook(f"{hook.url}/{SECRET}")) == fact("alert.refused", status=404)


def test_a_silent_webhook_ends_at_the_limit(hook: Hook) -> None:
    hook.held.clear()
    begin = time.monotonic()
    assert sent(webhook(hook.url), 0.2) == fact("alert.no_answer")
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    "url",
    [
        f"http://127.0.0.1:1/{SECRET}",  # nothing listens there
        f"http://no-such-host.invalid/{SECRET}",
        f"ftp://host/{SECRET}",
        f"file:///etc/{SECRET}",
        f"http://[{SECRET}",
        f"http://127.0.0.1:port/{SECRET}",
        f"http://127.0.0.1/\x7f{SECRET}",
        f"http://127.0.0.1/with space {SECRET}",
        SECRET,
    ],
)
def test_no_failure_quotes_the_address(url: str) -> None:
    why = sent(webhook(url))
    assert why is not None
    assert SECRET not in repr(why)


def test_the_proxy_of_the_environment_is_used(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", hook.url)
    monkeypatch.delenv("no_proxy", raising=False)
    assert sent(webhook("http://hooks.invalid/x")) is None
    assert [got.path for got in hook.received] == ["http://hooks.invalid/x"]


def test_a_secret_comes_from_a_file_or_a_variable(
    hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "url"
    file.write_text(f"{hook.url}/file\n")
    monkeypatch.setenv("MY_HOOK", f"{hook.url}/variable")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sent(AlertTarget(number=1, type="webhook", url_file="~/url")) is None
    assert sent(AlertTarget(number=1, type="webhook", url_env="MY_HOOK")) is None
    assert [got.path for got in hook.received] == ["/file", "/variable"]
    assert sent(AlertTarget(number=1, type="webhook", url_env="NOT_SET")) == fact(
        "alert.no_variable", key="url_env"
    )
    assert sent(AlertTarget(number=1, type="webhook", url_file="~/none")) == fact(
        "alert.no_file", key="url_file"
    )
    os.mkfifo(tmp_path / "pipe")
    assert sent(AlertTarget(number=1, type="webhook", url_file="~/pipe")) == fact(
        "alert.no_file", key="url_file"
    )


PROGRAM = """
import json, os, sys
found = {k: v for k, v in os.environ.items() if k.startswith("HOPTUI_ALERT_")}
open(sys.argv[1], "w").write(json.dumps([json.load(sys.stdin), found]))
"""


def test_a_command_gets_the_alert_on_stdin_and_in_variables(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert (
        sent(AlertTarget(number=1, type="command", command=(sys.executable, "-c", PROGRAM, str(out)))) is None
    )
    body, variables = json.loads(out.read_text())
    assert body["kind"] == variables["HOPTUI_ALERT_KIND"] == "nan"
    assert body["text"] == variables["HOPTUI_ALERT_TEXT"]


def test_a_command_that_fails_is_reported() -> None:
    assert sent(AlertTarget(number=1, type="command", command=("false",))) == fact(
        "alert.exit_code", exit_code=1
    )
    assert sent(AlertTarget(number=1, type="command", command=("/no/such",))) == fact(
        "alert.not_started", error="No such file or directory"
    )


def test_a_command_that_hangs_is_killed_with_its_group_and_reaped(tmp_path: Path) -> None:
    out = tmp_path / "pids"
    script = f"sleep 60 & echo $$ $! > {out}; wait"
    assert sent(AlertTarget(number=1, type="command", command=("sh", "-c", script)), 1.0) == fact(
        "alert.killed", limit_s=1.0
    )
    shell, sleep = map(int, out.read_text().split())
    until(lambda: over(sleep), what="the end of the group")
    with pytest.raises(ChildProcessError):
        os.waitpid(shell, os.WNOHANG)


def test_a_slow_target_does_not_delay_the_others(hook: Hook) -> None:
    hook.held.clear()
    results = deliver(
        ALERT, [webhook(hook.url), AlertTarget(number=1, type="command", command=("true",))], 5.0
    )
    assert next(results) == Delivered(target=1)
    hook.held.set()
    assert list(results) == [Delivered(target=0)]


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "hoptui.alerts"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    yield child
    if child.poll() is None:
        child.send_signal(signal.SIGKILL)
    child.wait()
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        pipe.close()


def test_the_program_takes_secrets_on_stdin_alone(hook: Hook, program: subprocess.Popen[bytes]) -> None:
    hook.held.clear()
    body = msgspec.json.encode(Delivery(alert=ALERT, targets=(webhook(f"{hook.url}/{SECRET}"),)))
    assert program.stdin is not None
    program.stdin.write(body)
    program.stdin.close()
    until(lambda: hook.received, what="the request")
    proc = Path(f"/proc/{program.pid}")
    assert SECRET.encode() not in (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
    hook.held.set()
    assert program.wait(20) == 0
    assert program.stdout is not None
    assert msgspec.json.decode(program.stdout.read(), type=list[Delivered]) == [Delivered(target=0)]
