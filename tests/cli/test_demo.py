"""`hoptui demo` with a real daemon and a stand-in for the trainer that needs no torch."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from hoptui.cli.commands import demo
from hoptui.cli.commands import demo as demo_module
from hoptui.cli.support.invocation import invocation
from hoptui.cli.support.snapshot import look
from hoptui.model.runs import StartingRun
from hoptui.protocol.messages import RunState
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.conftest import TestNode, until
from tests.golden import Golden

STAND_IN = """
import sys, time, hoptui
option = dict(zip(sys.argv[1::2], sys.argv[2::2]))
run = hoptui.connect(option["--name"])
run.knob("grad_accum", 1, min=1, max=64, effect="speed")
run.knob("num_envs", 64, min=1, max=100)
for i in run.iterations(int(option["--iterations"])):
    time.sleep(0.01)
    run.log(env_steps=100, evaluation_return=475.0)
"""
DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); "
    "time.sleep(60)"
)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "TRAINER", ("-c", STAND_IN))
    monkeypatch.setattr(demo, "END_S", 5.0)
    monkeypatch.setattr(demo_module, "SETTLE_S", 0.05)


def trainers(directory: Path) -> list[psutil.Process]:
    """The demo's processes of this node that still run."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        ours = (process.info["environ"] or {}).get("HOPTUI_DIR") == str(directory)
        if ours and "demo" in (process.info["cmdline"] or ()) and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def logs(state: Path) -> list[Path]:
    return list(state.glob("demo-*.log"))


def test_headless_turns_knobs_over_the_wire(hoptui: Hoptui, node: TestNode) -> None:
    ended = hoptui("demo", "--json", "--seconds", "1")
    assert (ended.code, ended.err) == (0, "")
    found = ended.json
    assert list(found) == ["run", "iterations", "env_steps_per_s", "evaluation_return", "commands", "gpus"]
    assert found["iterations"] > 10
    assert 1_000 < found["env_steps_per_s"] < 10_000
    assert found["evaluation_return"] == 475.0
    keys = ("knob", "from", "to", "stage", "effective")
    assert [[command[key] for key in keys] for command in found["commands"]] == [
        ["grad_accum", 1, 2, "applied", 2],
        ["num_envs", 64, 32, "applied", 32],
    ]
    assert all(command["iteration"] > 0 for command in found["commands"])
    assert found["gpus"]["reason"] if isinstance(found["gpus"], dict) else found["gpus"][0]["uuid"]
    assert trainers(node.where.directory) == []
    assert logs(node.where.state) == []


def test_headless_in_words(hoptui: Hoptui, node: TestNode, golden: Golden) -> None:
    assert hoptui("demo", "--headless", "--seconds", "0.3", "--env", "Pendulum-v1").code == 0
    shown, last, _ = hoptui.transcript().partition("evaluation return  475\n")  # then this machine's GPUs
    measured = {
        r"(iteration )\d+": r"\1N",
        r"\(\w+, pid \d+\)": "(RUN, pid PID)",
        r"(?m)^(run|iterations|env steps/s)( +).*": r"\1\2…",
    }
    golden(shown + last, normalize=measured)


def test_training_that_dies_at_once(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(demo, "TRAINER", ("-c", "import sys; print('first'); sys.exit('CUDA is on fire')"))
    daemon.start()
    ended = hoptui("demo", "--json")
    [log] = logs(daemon.where.state)
    assert (ended.code, ended.json["code"]) == (1, 1)
    assert "CUDA is on fire" in ended.json["error"]
    assert str(log) in ended.err
    assert hoptui("demo", "--headless").code == 1
    golden(hoptui.transcript(), normalize={r"demo-\d+": "demo-PID"})


def test_training_that_never_comes_up_is_ended(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(demo, "TRAINER", ("-c", DEAF))
    monkeypatch.setattr(demo, "LIVE_S", 0.5)
    monkeypatch.setattr(demo, "END_S", 0.1)
    daemon.start()
    ended = hoptui("demo", "--json")
    assert ended.code == 1
    assert ended.json["error"] in ended.err
    golden(ended.err, normalize={re.escape(str(daemon.where.state)): "STATE", r"demo-\d+": "demo-PID"})
    assert trainers(daemon.where.directory) == []


def test_ctrl_c_ends_the_training(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: demo.Training, seen: object) -> NoReturn:
        assert [process.pid for process in trainers(daemon.where.directory)] == [self.pid]
        raise KeyboardInterrupt

    monkeypatch.setattr(demo.Training, "live", interrupt)
    daemon.start()
    assert hoptui("demo", "--json").code == 130
    assert trainers(daemon.where.directory) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_training(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    monkeypatch.setattr(demo.Training, "live", lambda self, seen: os.kill(os.getpid(), number))
    daemon.start()
    with pytest.raises(SystemExit) as ended:
        hoptui("demo", "--json")
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) == before
    assert trainers(daemon.where.directory) == []


def connected(starting: StartingRun) -> str:
    """Wait until the run has connected, as a dashboard does. Return its id."""

    def found() -> RunState | None:
        seen.refresh()
        return starting.find(seen.node)

    with look() as seen:
        return until(found).run


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose dashboards were opened and left at once."""
    shown: list[str] = []

    def leave(name: str, *, starting: StartingRun) -> int:
        assert name == "demo"
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)  # as asyncio does when it removes its handlers
        shown.append(connected(starting))
        return 0

    monkeypatch.setattr(demo_module, "interactive", lambda: True)
    monkeypatch.setattr("hoptui.cli.launcher.open_dashboard", leave)
    return shown


def answering(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))


def test_a_run_that_is_to_continue_does_and_the_printed_commands_work(
    hoptui: Hoptui,
    node: TestNode,
    monkeypatch: pytest.MonkeyPatch,
    dashboard: list[str],
    golden: Golden,
) -> None:
    answering(monkeypatch, "y\n")
    ended = hoptui("demo")
    [process] = trainers(node.where.directory)
    [run] = dashboard
    assert ended.code == 0
    [stop] = [line.split("   ")[0].strip() for line in ended.out.splitlines() if " stop " in line]
    golden(
        hoptui.transcript(),
        normalize={str(process.pid): "PID", run: "RUN", re.escape(f"{sys.executable} -m hoptui"): "HOPTUI"},
    )
    done = subprocess.run(
        f"{stop} --yes", shell=True, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    until(lambda: not trainers(node.where.directory))
    process.wait(10)


@pytest.mark.parametrize("typed", ["\n", "n\n", ""], ids=["enter", "no", "end of input"])
def test_a_run_that_is_not_to_continue_ends(
    hoptui: Hoptui, node: TestNode, monkeypatch: pytest.MonkeyPatch, dashboard: list[str], typed: str
) -> None:
    answering(monkeypatch, typed)
    ended = hoptui("demo")
    assert (ended.code, ended.err, len(dashboard)) == (0, "", 1)
    assert ended.out.splitlines()[-1].startswith("ending demo (pid ")
    assert trainers(node.where.directory) == []
    assert logs(node.where.state) == []


def test_ctrl_c_at_the_question_ends_the_run(
    hoptui: Hoptui, node: TestNode, monkeypatch: pytest.MonkeyPatch, dashboard: list[str]
) -> None:
    def interrupt(question: str) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_module, "agreed", interrupt)
    assert hoptui("demo").code == 130
    assert trainers(node.where.directory) == []


def test_a_terminal_that_closes_at_the_question_ends_the_run(
    hoptui: Hoptui, node: TestNode, monkeypatch: pytest.MonkeyPatch, dashboard: list[str]
) -> None:
    def close(question: str) -> bool:
        assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGHUP)
        return True

    monkeypatch.setattr(demo_module, "agreed", close)
    with pytest.raises(SystemExit) as ended:
        hoptui("demo")
    assert ended.value.code == 128 + signal.SIGHUP
    assert trainers(node.where.directory) == []


def test_a_terminal_that_closes_under_the_dashboard_ends_the_run_without_a_question(
    hoptui: Hoptui, node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_module, "interactive", lambda: True)
    monkeypatch.setattr("hoptui.cli.launcher.open_dashboard", lambda name, starting: 128 + signal.SIGHUP)
    answering(monkeypatch, "y\n")
    assert hoptui("demo").code == 128 + signal.SIGHUP
    assert trainers(node.where.directory) == []


def test_the_command_that_is_printed_is_the_one_that_was_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "my env" / "hoptui"
    script.parent.mkdir()
    script.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["my env/hoptui", "demo"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert shlex.split(invocation()) == [str(script)]
    monkeypatch.setenv("PATH", str(script.parent))
    assert invocation() == "hoptui"
    monkeypatch.setattr("sys.argv", ["/somewhere/hoptui/__main__.py", "demo"])
    assert shlex.split(invocation()) == [sys.executable, "-m", "hoptui"]


def test_a_run_that_ended_meanwhile(
    hoptui: Hoptui, node: TestNode, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def dashboard(name: str, *, starting: StartingRun) -> int:
        run = connected(starting)
        [trainer] = trainers(node.where.directory)
        assert hoptui("stop", run, "--yes").code == 0
        until(lambda: trainer.status() == psutil.STATUS_ZOMBIE)  # it is gone, and nobody has asked yet
        return 0

    monkeypatch.setattr(demo_module, "interactive", lambda: True)
    monkeypatch.setattr("hoptui.cli.launcher.open_dashboard", dashboard)
    ended = hoptui("demo")
    assert (ended.code, ended.err) == (0, "")
    assert f"{invocation()} status " in ended.out
    golden(ended.out, normalize={r"\S+ -m hoptui": "HOPTUI", r"(demo \(|HOPTUI status )\w{8}": r"\1RUN"})


def test_a_run_that_ends_before_it_connects_is_reported(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dashboard(name: str, *, starting: StartingRun) -> int:
        until(starting.ended)
        return 1

    monkeypatch.setattr(demo, "TRAINER", ("-c", "import sys; sys.exit('CUDA is on fire')"))
    monkeypatch.setattr(demo_module, "interactive", lambda: True)
    monkeypatch.setattr("hoptui.cli.launcher.open_dashboard", dashboard)
    ended = hoptui("demo")
    [log] = logs(daemon.where.state)
    assert ended.code == 1
    assert "CUDA is on fire" in ended.err
    assert str(log) in ended.err


def test_a_run_that_has_not_connected_can_continue(
    hoptui: Hoptui, node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_module, "interactive", lambda: True)
    monkeypatch.setattr("hoptui.cli.launcher.open_dashboard", lambda name, starting: 0)
    answering(monkeypatch, "y\n")
    ended = hoptui("demo")
    [process] = trainers(node.where.directory)
    assert ended.code == 0
    assert f"{invocation()} attach demo " in ended.out
    process.terminate()
    process.wait(10)


def lacking(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in packages else found(name))


def test_headless_without_torch(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    lacking(monkeypatch, "torch", "hoptui_trainer")
    ended = hoptui("demo", "--json")
    assert (ended.code, ended.err) == (1, f"hoptui: {ended.json['error']}\n")
    golden(ended.err)


def test_without_the_trainer_an_example_is_played(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    played = []

    def replay(recording: str, *, guided: str) -> int:
        played.append((Path(recording), guided))
        return 0

    lacking(monkeypatch, "hoptui_trainer")
    monkeypatch.setattr(demo_module, "interactive", lambda: True)
    monkeypatch.setattr("hoptui.cli.launcher.replay", replay)
    ended = hoptui("demo")
    assert (ended.code, ended.err) == (0, "")
    golden(hoptui.transcript())
    [(path, what)] = played
    assert (path.name, path.is_file(), what) == ("ppo-h200.hoptui", True, "a run on an H200")
    assert trainers(daemon.where.directory) == []


def test_it_starts_slow_and_on_a_gpu_eager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "GPU_DEVICE", tmp_path / "none")
    on_cpu = demo.slow_settings()
    assert (on_cpu["num-envs"], on_cpu["grad-accum"], "compile" in on_cpu) == ("16", "32", False)
    monkeypatch.setattr(demo, "GPU_DEVICE", tmp_path)
    assert demo.slow_settings() == {**on_cpu, "compile": "off"}


def test_the_trainer_takes_the_settings() -> None:
    from hoptui_trainer.ppo.config import PPOConfig
    from hoptui_trainer.ppo.job import PPOOptions

    known = {field.name for kind in (PPOConfig, PPOOptions) for field in dataclasses.fields(kind)}
    assert {name.replace("-", "_") for name in {**demo.SLOW, **demo.EAGER}} <= known


def test_headless_computes_in_fewer_pieces() -> None:
    assert demo._another(factories.knob("grad_accum", 32, min=1, max=64)) == 16
    assert demo._another(factories.knob("grad_accum", 1, min=1, max=64)) == 2
    assert demo._another(factories.knob("num_envs", 16, min=1, max=64)) == 32


def test_bad_usage(hoptui: Hoptui) -> None:
    for words in (("--seconds", "nan"), ("--seconds", "0"), ("--env", "Doom-v1")):
        assert hoptui("demo", *words).code == 2
