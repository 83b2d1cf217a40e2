"""A process on a GPU is ended only after a box that names it, only one's own, and never a recycled pid's new
owner."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psutil
import pytest

from hoptui.domain.devices import GpuProcess
from hoptui.tui import process_handle as module
from hoptui.tui.dialogs import Confirm
from hoptui.tui.process_handle import NotYoursError
from hoptui.tui.screens.overview import Endings, OverviewScreen
from hoptui.tui.screens.run.screen import RunScreen
from tests.golden import Golden, sheet

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
ME = psutil.Process()
RUN = "3f2a9c10"


@pytest.fixture(autouse=True)
def counted_by_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "whose_pids", lambda: "machine")


@pytest.fixture
def deaf() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not listen to SIGTERM."""
    code = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.read(1)
        yield started
        started.kill()


def on_gpu(pid: int, **fields: Any) -> GpuProcess:
    told = psutil.Process(pid)
    return GpuProcess(
        **{
            "gpu": "GPU-0",
            "pid": pid,
            "user": told.username(),
            "command": " ".join(told.cmdline())[:200],
            **fields,
        }
    )


def here(there: Any) -> Any:
    """The scene's node is this machine."""
    there.node = msgspec.structs.replace(
        there.node, host=os.uname().nodename, pid=ME.pid, started_wall=ME.create_time()
    )
    there.tell(node=there.node)
    return there


def test_sigterm_first_and_sigkill_only_for_one_that_stayed(
    scene: MakeScene, deaf: subprocess.Popen[bytes], golden: Golden
) -> None:
    there = here(scene(gpus=1).live())
    endings, shown = Endings(), on_gpu(deaf.pid, run=RUN)
    view = there.app(run=None).view(None)
    with endings.hold(view, shown) as held:
        first = endings.question(view, shown, held)
        assert first.number == signal.SIGTERM
        command, *of_first = first.consequence.splitlines()
        assert "time.sleep(600)" in command
        done = endings.end(held, first.number, view.clock)
    later = view._replace(clock=view.clock + 12)
    with endings.hold(later, shown) as held:
        second = endings.question(later, shown, held)
        assert second.number == signal.SIGKILL
        command, *of_second = second.consequence.splitlines()
        assert "time.sleep(600)" in command
        endings.end(held, second.number, later.clock)
    assert deaf.wait(20) == -signal.SIGKILL
    shown_to_the_user = {
        "SIGTERM": [first.title, first.question, *of_first],
        "sent": done,
        "SIGKILL": [second.title, second.question, *of_second],
    }
    golden(
        sheet(shown_to_the_user),
        normalize={rf"\b{deaf.pid}\b": "PID", rf"\b{re.escape(ME.username())}\b": "USER"},
    )


def test_read_only_ends_nothing(scene: MakeScene, deaf: subprocess.Popen[bytes]) -> None:
    there = here(scene(gpus=1).live())
    there.client.read_only = True
    with pytest.raises(NotYoursError, match="read-only"):
        Endings().hold(there.app(run=None).view(None), on_gpu(deaf.pid))


def test_the_box_names_it_and_only_a_yes_signals(
    scene: MakeScene, play: Play, read: Read, deaf: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = here(scene(gpus=1).live())
    there.tell(processes=(on_gpu(deaf.pid, memory_used_bytes=3 << 30),), processes_version=1)
    signals: list[int] = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda handle, number: signals.append(number))

    async def script(app: Any, pilot: Any) -> None:
        app.tick()
        await pilot.pause()
        await pilot.press("x")
        assert isinstance(app.screen, OverviewScreen), "the keys are in another list"
        assert "end process" not in read(app, "keys")
        await pilot.press("shift+tab")
        await pilot.pause()
        assert read(app, "process-list").startswith(f"› 0   {deaf.pid}")
        assert "x end process" in read(app, "keys")
        assert "enter open" not in read(app, "keys"), "it is of no run"
        for answer, sent in (("n", 0), ("x", 0), ("escape", 0), ("y", 1)):
            if not isinstance(app.screen, Confirm):
                await pilot.press("x")
                await pilot.pause()
            asked = read(app, "question")
            assert f" {deaf.pid} " in asked
            assert ME.username() in asked
            assert "time.sleep(600)" in asked
            await pilot.press(answer)
            await pilot.pause()
            assert len([number for number in signals if number]) == sent
        assert [number for number in signals if number] == [signal.SIGTERM]
        assert [str(n.message) for n in app._notifications] == [f"process {deaf.pid} got SIGTERM"]

    play(there.app(run=None), script)
    assert there.client.sent == []


def test_what_may_not_be_ended_is_told_instead_of_asked(
    scene: MakeScene, play: Play, deaf: subprocess.Popen[bytes], golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()
    there.tell(processes=(on_gpu(deaf.pid),), processes_version=1)

    async def script(app: Any, pilot: Any) -> None:
        app.tick()
        await pilot.pause()
        await pilot.press("shift+tab", "x")
        await pilot.pause()
        assert isinstance(app.screen, OverviewScreen)
        (shown["notice"],) = (str(notice.message) for notice in app._notifications)

    play(there.app(run=None), script)
    golden(sheet(shown))


def test_enter_on_a_process_opens_its_run(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live()
    there.tell(processes=(GpuProcess(gpu="GPU-0", pid=20711, run=RUN),), processes_version=1)

    async def script(app: Any, pilot: Any) -> None:
        app.tick()
        await pilot.pause()
        assert "tab other list" in read(app, "keys")
        await pilot.press("tab", "tab")
        await pilot.pause()
        assert "enter open" in read(app, "keys")
        assert "end process" not in read(app, "keys"), "of another container: it would always be refused"
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)

    play(there.app(run=None), script)


def test_keys_leave_a_list_of_processes_that_has_become_empty(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()
    there.tell(processes=(GpuProcess(gpu="GPU-0", pid=20711),), processes_version=1)

    async def script(app: Any, pilot: Any) -> None:
        app.tick()
        await pilot.pause()
        await pilot.press("shift+tab")
        assert app.focused.id == "process-list"
        there.tell(processes=(), processes_version=2)
        app.client.on_change("node")
        await pilot.pause()
        await pilot.pause()
        assert app.focused.id == "run-list"
        await pilot.press("shift+tab")
        assert app.focused.id == "gpu-list"

    play(there.app(run=None), script)
