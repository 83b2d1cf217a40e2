"""What training scripts pass goes out as messages, whatever library its numbers and texts come from."""

from __future__ import annotations

import enum
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hoptui
from hoptui.protocol import codec, messages
from hoptui.protocol.messages import Command, Outcome
from hoptui.sdk.daemon_link import DaemonLink
from hoptui.sdk.run import Run
from tests.run_state import queued_rows, run_state

numpy = pytest.importorskip("numpy")


class Mode(enum.StrEnum):
    EAGER = "eager"
    COMPILED = "compiled"


class Count(int):
    """A number with a name of its own, as libraries have them."""


class Wire:
    """Takes what is sent and reads it as the daemon does."""

    def __init__(self) -> None:
        self.sent: list[messages.FromRun] = []

    def send(self, frame: bytes, flags: int) -> None:
        self.sent.append(codec.from_run([frame]))


@pytest.fixture(autouse=True)
def off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPTUI", "off")


@pytest.fixture
def say() -> Iterator[Callable[[Run], messages.RunHello]]:
    zmq = pytest.importorskip("zmq")
    links: list[DaemonLink] = []

    def hello(run: Run) -> messages.RunHello:
        link, wire = DaemonLink(run_state(run)), Wire()
        links.append(link)
        link._hello(wire, zmq)
        link._send(wire, zmq, link._pulse(time.monotonic()))
        said = wire.sent[0]
        assert isinstance(said, messages.RunHello)
        return said

    yield hello
    for link in links:
        link.start()  # it finds hoptui's directory or not: either way it ends
        link.close("finished", "")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No link finds a directory that it may use."""
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    monkeypatch.setenv("HOPTUI_DIR", str(open_to_all))


def test_counts_of_any_library_are_sent(say: Callable[[Run], messages.RunHello]) -> None:
    run = hoptui.connect("unit", total=numpy.int64(5))
    assert run.boundary(numpy.int64(3))
    said = say(run)
    assert (said.total, said.step) == (5, 3)
    for step in run.iterations(Count(2)):
        assert say(run).step == step


def test_a_count_that_is_none_is_unknown() -> None:
    run = hoptui.connect("unit", total="many")  # type: ignore[arg-type]
    assert run_state(run).total is None
    assert run.boundary("first")  # type: ignore[arg-type]


def test_knobs_of_any_library_are_sent_and_set(say: Callable[[Run], messages.RunHello]) -> None:
    run = hoptui.connect("unit")
    run.knob("lr", numpy.float64(0.25), min=numpy.float32(0), max=numpy.int64(1))
    run.knob("mode", Mode.EAGER, choices=tuple(Mode))
    run.knob("count", Count(3), min=Count(1), max=9, read=lambda: Count(4))
    sent = {knob.spec.name: knob for knob in say(run).knobs}
    assert {name: knob.value for name, knob in sent.items()} == {"lr": 0.25, "mode": "eager", "count": 4}
    assert (sent["lr"].spec.min, sent["lr"].spec.max) == (0.0, 1)
    assert sent["mode"].spec.choices == ("eager", "compiled")
    run_state(run).declarations.knobs["mode"].set(Mode.COMPILED, "kim")
    assert say(run).knobs[1].value == "compiled"


@pytest.mark.parametrize(
    "senseless", [{"min": "a"}, {"choices": 5}, {"max": object()}, {"choices": (object(),)}]
)
def test_a_senseless_declaration_raises_nothing(senseless: dict[str, Any]) -> None:
    run = hoptui.connect("unit")
    assert run.knob("k", 1, **senseless).value == 1
    assert not run_state(run).declarations.knobs


def test_texts_that_are_no_unicode_are_sent(say: Callable[[Run], messages.RunHello]) -> None:
    run = hoptui.connect("unit")
    run.gpus(["GPU-\udc80"])
    run.flops(1.0, metric="\udc80")
    with run.phase("\udc80"):
        said = say(run)
    assert (said.phase, said.gpus) == ("?", ("GPU-?",))


def _asked(run: Run, **fields: Any) -> Outcome:
    command = Command(id="c", run=run.id, epoch=run_state(run).epoch, **fields)
    run_state(run).inbox.receive(command, time.monotonic(), 1)
    run.boundary()
    (outcome,) = run_state(run).inbox.collect_outcomes()
    return outcome


def test_what_a_setter_says_is_cut_to_what_can_travel() -> None:
    run = hoptui.connect("unit")

    def refuse(value: int) -> None:
        if value != 1:
            raise ValueError("\udc80" * (2 << 20))

    run.knob("k", 1, apply=refuse)
    outcome = _asked(run, verb="set", knob="k", value=2)
    assert outcome.stage == "failed"
    assert len(codec.encode(outcome)) < 2000


def test_a_checkpoints_path_need_not_be_unicode() -> None:
    run = hoptui.connect("unit")
    run.on_checkpoint(lambda: Path("/\udc80"))
    outcome = _asked(run, verb="checkpoint")
    assert outcome.stage == "applied"
    assert codec.encode(outcome)


def test_what_is_done_between_two_iterations_is_a_part_of_neither() -> None:
    run = hoptui.connect("unit")
    run.on_checkpoint(lambda: None)
    with run.phase("setup"):
        pass
    run.boundary(0)
    with run.phase("update"):
        pass
    assert _asked(run, verb="checkpoint").stage == "applied"
    run.boundary()
    phases = [
        [name for name in row if name.startswith("phase/")] for _, _, row in queued_rows(run_state(run))
    ]
    assert phases == [["phase/update"], []]


def test_a_link_that_cannot_begin_says_so_once_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError("too many open files")

    run = hoptui.connect("unit")
    monkeypatch.setattr(DaemonLink, "_serve", full)
    monkeypatch.setattr("hoptui.sdk.daemon_link.addresses", lambda: None)
    link = DaemonLink(run_state(run))
    link.start()
    link._thread.join(10)
    assert not run_state(run).alive
    assert [record.getMessage().count("hoptui is off in this run") for record in caplog.records] == [1]
    assert (link._wake_in.fileno(), link._wake_out.fileno()) == (-1, -1)
    link.wake()


SCARCE = """
import os, resource
import zmq  # what it opens when it is imported is there already
import hoptui
free = max(map(int, os.listdir("/proc/self/fd"))) + 4
resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
run = hoptui.connect("scarce")
if run._core.state.link is not None:
    run._core.state.link._thread.join(10)
assert run.boundary() and not run._core.state.alive
print("trained")
"""


def test_a_process_without_file_descriptors_is_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libzmq aborts the process where it finds none."""
    monkeypatch.setenv("HOPTUI", "on")
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "d"))
    done = subprocess.run(
        [sys.executable, "-c", SCARCE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "hoptui is off in this run" in done.stderr


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (None, ("finished", "")),
        (KeyboardInterrupt(), ("stopped", "interrupted from the keyboard")),
        (ValueError("no"), ("exception", "ValueError: no")),
    ],
)
@pytest.mark.parametrize("inside", [False, True], ids=["at exit", "in a with"])
def test_the_end_is_reported(
    error: BaseException | None, sent: tuple[str, str], inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, ends = hoptui.connect("unit"), list[tuple[str, str]]()
    run_state(run).link = SimpleNamespace(close=lambda *end, **_: ends.append(end))
    if inside:
        run.__exit__(type(error) if error else None, error, None)
    else:
        monkeypatch.setattr(sys, "last_value", error, raising=False)  # as Python leaves it
        run.close()
    assert ends == [sent]


def test_a_resume_state_that_is_damaged_starts_a_run() -> None:
    run = hoptui.connect("unit", resume={"run": "abcdefgh", "epoch": "one", "commands": None})
    assert (run.id, run_state(run).epoch, run.state_dict()["commands"]) == ("abcdefgh", 1, 0)
