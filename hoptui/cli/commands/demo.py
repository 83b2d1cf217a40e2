"""`hoptui demo`: start a real PPO run on this machine, watch it and change its knobs.

The training process is detached. The command finds its run, and stops it or leaves it running.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from array import array
from pathlib import Path
from types import FrameType, TracebackType
from typing import Annotated, Any, Literal, NoReturn

from cyclopts import Parameter

from hoptui.cli.commands import gpus
from hoptui.cli.commands.train import INSTALL, missing
from hoptui.cli.support.invocation import invocation
from hoptui.cli.support.options import Json
from hoptui.cli.support.outcomes import Given, follow, knob_outcome
from hoptui.cli.support.recordings import example
from hoptui.cli.support.snapshot import NodeSnapshot, look
from hoptui.cli.support.terminal import OK, REJECTED, Fail, agreed, dump, interactive, say, table, usage
from hoptui.domain.knobs import KnobState, KnobValue
from hoptui.model.runs import StartingRun
from hoptui.node.addresses import AddressError, addresses, secure
from hoptui.presentation import numbers
from hoptui.protocol.messages import RunState

SLOW = {
    "num-envs": "16",
    "rollout-len": "16",
    "minibatch-size": "256",
    "epochs": "4",
    "grad-accum": "32",
    "lr": "1e-4",
    "evaluate-every": "50",
}
"""Settings as of a slow start: few environments, and minibatches in pieces of eight samples. The low learning
rate keeps the return rising for minutes after the speed has."""
EAGER = {"compile": "off"}
"""On a GPU it is launches that take the time."""
GPU_DEVICE = Path("/dev/nvidiactl")
NAME = "demo"
"""The name of its run."""
RECORDED, RECORDED_ON = "ppo-h200", "an H200"
"""The recording of a run that starts as the demo does on a GPU."""
REPORTED = ("knob", "from", "to", "stage", "effective", "iteration")
TURNED = ("grad_accum", "num_envs")
OUTCOME_S = 60.0
SETTLE_S = 2.0  # between changes, so that rows show each of them

Env = Literal["CartPole-v1", "Pendulum-v1"]


def demo(
    *,
    env: Annotated[Env, Parameter(help="The environment to learn.")] = "Pendulum-v1",
    headless: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="No dashboard: change two knobs and print a summary."
        ),
    ] = False,
    seconds: Annotated[float, Parameter(help="How long the headless run lasts.")] = 20.0,
    json: Json = False,
) -> int:
    """Start a real PPO run on this machine and open its dashboard. On leaving, it asks whether to go on."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise usage(f"--seconds takes a number above 0, not {seconds:g}")
    headless = headless or json or not interactive()
    if lacking := missing():
        return _without_trainer(lacking, headless=headless)
    if headless:
        return _headless(env, seconds, json=json)
    from hoptui.cli.launcher import open_dashboard, refuse_dumb

    refuse_dumb()
    with Training(env) as training:
        say("starting a PPO run and its dashboard")
        starting = StartingRun(training.pid, lambda: training.ended is not None)
        code = open_dashboard(NAME, starting=starting)
        training.guard()  # the dashboard's own handlers of signals are gone
        run = starting.state
        if run is None:
            training.check()
        elif training.ended is not None:
            say(f"{NAME} ({run.run}) has ended; {invocation()} status {run.run} still shows it")
            return code
        if code == OK and interactive() and agreed(f"let {NAME} (pid {training.pid}) continue to train?"):
            training.leave()
        else:
            say(f"ending {NAME} (pid {training.pid})")
    if training.ended is None:
        _continues(training.pid, run.run if run else NAME)
    return code


def _continues(pid: int, run: str) -> None:
    """Print how to open and how to stop a run that continues."""
    hoptui = invocation()
    say(f"{NAME} (pid {pid}) continues to train")
    say(f"  {hoptui} attach {run}   to open it again")
    say(f"  {hoptui} stop {run}     to stop it")


def _without_trainer(lacking: str, *, headless: bool) -> int:
    """Play a recording instead of starting a run.

    Raises:
        Fail: there is no terminal for the dashboard.
    """
    if headless:
        raise Fail(f"the demo needs {lacking}, which is not installed: {INSTALL}", REJECTED)
    say(f"{lacking} is not installed ({INSTALL}): playing the recording of a run on {RECORDED_ON} instead")
    from hoptui.cli.launcher import replay

    return replay(str(example(RECORDED)), guided=f"a run on {RECORDED_ON}")


def _headless(env: Env, seconds: float, *, json: bool) -> int:
    with Training(env) as training:
        if not json:
            say(f"starting a PPO run on {env} for {seconds:g} s")
        with look() as seen:
            run = training.live(seen)
            end = time.monotonic() + seconds
            if not json:
                say(f"{run.name} ({run.run}, pid {run.pid}) is live; changing its knobs")
            applied, commands = _turn(seen, run, end, quiet=json)
            while (left := end - time.monotonic()) > 0:
                training.check()
                time.sleep(min(left, 0.5))
            summary = {**_summary(seen, run), "commands": commands, "gpus": _gpus(seen)}
            stop = Given(seen.session.submit(run, "stop", why="hoptui demo"), f"stop {run.name}")
            stopped, _ = follow(seen.session, [stop], timeout_s=OUTCOME_S, quiet=json)
        ended = training.wait()
    if json:
        dump(summary)
    else:
        _print(summary)
    return OK if applied and stopped == OK and ended == 0 else REJECTED


def _turn(seen: NodeSnapshot, run: RunState, end: float, *, quiet: bool) -> tuple[bool, list[dict[str, Any]]]:
    """Change each knob once. Return whether all changes were applied, and the outcomes."""
    reports = []
    for knob in (knob for name in TURNED for knob in run.knobs if knob.spec.name == name):
        time.sleep(max(0.0, min(SETTLE_S, (end - time.monotonic()) / 4)))
        value = _another(knob)
        command = seen.session.submit(run, "set", knob=knob.spec.name, value=value, why="hoptui demo")
        given = Given(command, "set", knob.spec, knob.value, value)
        _, [outcome] = follow(seen.session, [given], timeout_s=OUTCOME_S, quiet=quiet)
        reports.append({key: knob_outcome(given, outcome)[key] for key in REPORTED})
    return len(reports) == len(TURNED) and all(r["stage"] == "applied" for r in reports), reports


def slow_settings() -> dict[str, str]:
    """Return the options of the trainer that the demo starts with, by their names."""
    return {**SLOW, **(EAGER if GPU_DEVICE.exists() else {})}


def _another(knob: KnobState) -> KnobValue:
    """Half as many pieces of a batch, and twice anything else; the other way if that is out of bounds."""
    now = int(knob.value)
    if knob.spec.name == "grad_accum" and now > 1:
        return now // 2
    most = knob.spec.max
    return now * 2 if most is None or now * 2 <= most else max(1, now // 2)


def _summary(seen: NodeSnapshot, run: RunState) -> dict[str, Any]:
    seen.refresh()
    vital = seen.store.vital(run.run)
    rate = seen.session.query(f"run/{run.run}", ("env_steps_per_s",), run=run.run)
    known = [v for raw in rate.mean for v in array("d", raw) if math.isfinite(v)]
    return {
        "run": run.run,
        "iterations": vital.step if vital else None,
        "env_steps_per_s": statistics.median(known) if known else None,
        "evaluation_return": seen.store.latest(f"run/{run.run}").get("evaluation_return"),
    }


def _gpus(seen: NodeSnapshot) -> list[dict[str, Any]] | dict[str, str]:
    node = seen.node
    if not node.gpus:
        return {"reason": gpus.none_found(node)}
    return [gpus.report(seen, gpu) for gpu in node.gpus]


def _print(summary: dict[str, Any]) -> None:
    say()
    table(
        [
            ("run", summary["run"]),
            ("iterations", numbers.grouped(summary["iterations"])),
            ("env steps/s", numbers.si(summary["env_steps_per_s"])),
            ("evaluation return", numbers.si(summary["evaluation_return"])),
        ]
    )
    found = summary["gpus"]
    if isinstance(found, dict):
        say(f"no GPU readings: {found['reason']}")
        return
    for gpu in found:
        busy, watts = gpu.get("busy"), gpu.get("power_w")
        say(f"GPU {gpu['index']} {gpu['name']}: busy {numbers.si(busy)} %, {numbers.si(watts)} W")


LIVE_S = 120.0  # importing torch from a cold disk takes a while
END_S = 15.0
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
TRAINER = ("-P", "-m", "hoptui_trainer", "ppo")  # -P: nothing in the working directory hides a module


class Training:
    """`with Training(env) as training:` leaves no process behind, unless `leave` was called."""

    def __init__(self, env: str, iterations: int = 1_000_000) -> None:
        self._command = [
            *(sys.executable, *TRAINER),
            *("--env", env, "--name", NAME, "--iterations", str(iterations)),
            *(word for name, value in slow_settings().items() for word in (f"--{name}", value)),
        ]
        self._left = False
        self.log = Path(os.devnull)

    def __enter__(self) -> Training:
        try:
            where = addresses()
            secure(where.state)
        except AddressError as error:
            raise Fail(str(error), REJECTED) from None
        self.log = where.state / f"demo-{os.getpid()}.log"
        package = Path(__file__).resolve().parents[3]
        path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH", ""))))
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C in the dashboard is not meant for it
            )
        self._before = [(number, signal.getsignal(number)) for number in SIGNALS]
        self.guard()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._left:
                self._end(failed=kind is not None)
        finally:
            for number, handler in self._before:
                signal.signal(number, handler)

    def guard(self) -> None:
        """Let SIGTERM and SIGHUP, as of a closed terminal, end the training too."""
        for number in SIGNALS:
            signal.signal(number, _exit)

    def _end(self, *, failed: bool) -> None:
        """End the training. Another signal or Ctrl-C meanwhile kills it."""
        if not failed:
            self.log.unlink(missing_ok=True)
        if self.ended is not None:
            return
        self._process.terminate()  # the trainer finishes its iteration, then ends
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        finally:
            if self.ended is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """Its exit code, None while it runs."""
        return None if self._left else self._process.poll()

    def leave(self) -> None:
        """Let the training continue after this process ends."""
        self._left = True
        self._process.returncode = 0  # we no longer wait for it

    def live(self, seen: NodeSnapshot) -> RunState:
        """Wait until the daemon reports that it has done an iteration.

        Raises:
            Fail: it ended, or did not start in time.
        """
        until = time.monotonic() + LIVE_S
        while time.monotonic() < until:
            self.check()
            seen.refresh()
            for run in seen.node.runs:
                vital = seen.store.vital(run.run)
                if run.pid == self.pid and seen.lives(run) and vital is not None and vital.step >= 1:
                    return run
            time.sleep(0.1)
        raise Fail(
            f"the demo's training did not start within {LIVE_S:g} s; its output is in {self.log}", REJECTED
        )

    def check(self) -> None:
        """Check that it still runs.

        Raises:
            Fail: it has ended. The sentence has its last line of output.
        """
        code = self.ended
        if code is None:
            return
        lines = self.log.read_text(errors="replace").strip().splitlines()
        said = numbers.clean(lines[-1]) if lines else "it printed nothing"
        raise Fail(
            f"the demo's training ended (exit code {code}): {said}; its output is in {self.log}", REJECTED
        )

    def wait(self) -> int | None:
        """Wait for its end after a stop. Return its exit code, or None if it still runs."""
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return None


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    """Exit through the `with` blocks, so that the training stops too."""
    raise SystemExit(128 + number)
