"""The real app on a pseudo-terminal: it always gives the terminal back, and never outlives it."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

import pytest

from hoptui.tui.driver import Terminal

# The app as `hoptui attach` runs it, except that it does not start the daemon that it does not find.
APP = """
import sys
from functools import partial
from hoptui.tui import app
from hoptui.client.client import Client
app.Client = partial(Client, start_daemon=False)
sys.exit(app.run("ppo-cartpole"))
"""
# As soon as it has read that it has 16 lines, it has 50.
CHANGING = f"""
import os, signal, struct, termios
from fcntl import ioctl
from hoptui.tui.driver import TerminalDriver
read = TerminalDriver._get_terminal_size

def changing(driver):
    size = read(driver)
    if size[1] == 16:
        ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    return size

TerminalDriver._get_terminal_size = changing
{APP}"""
# A shell's part: the app as a job of its own, on the terminal while it runs; once stopped, a line brings it
# back.
SHELL = f"""
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = os.fork()
if not job:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-c", {APP!r}])
while True:
    status = os.waitpid(job, os.WUNTRACED)[1]
    os.tcsetpgrp(0, os.getpid())
    if not os.WIFSTOPPED(status):
        sys.exit(os.waitstatus_to_exitcode(status))
    input("stopped> ")
    os.tcsetpgrp(0, job)
    os.kill(job, signal.SIGCONT)
"""
# A box with a text and a key that takes it, as those of the dashboard are.
BOX = """
from textual.app import App
from textual.binding import Binding
from textual.widgets import Input, Static
from hoptui.tui.driver import TerminalDriver

class Box(App):
    BINDINGS = [Binding("enter", "take", priority=True), Binding("e", "edit")]
    typed = ""

    def compose(self):
        yield Static("ready")

    async def action_edit(self):
        await self.mount(Input(placeholder="type here", restrict="[0-9]*"))
        self.query_one(Input).focus()

    def on_input_changed(self, event):
        self.typed = event.value

    def action_take(self):
        self.exit(self.typed)

print("taken:", Box(driver_class=TerminalDriver).run() + ".")
"""
DEADLINE_S = 20.0
MOUSE_OFF, ALTERNATE_OFF, CURSOR_ON = b"\x1b[?1003l", b"\x1b[?1049l", b"\x1b[?25h"


class Screen:
    """A child on a pseudo-terminal of 120 × 40 cells."""

    def __init__(
        self, directory: Path, *, script: str = APP, ignore: tuple[signal.Signals, ...] = ()
    ) -> None:
        self.output = b""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            for number in ignore:
                signal.signal(number, signal.SIG_IGN)
            # Before it looks: a later change may fall between its look and its handler.
            ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
            # Whoever runs the tests may have exported a size, which would win over the terminal's.
            inherited = {name: text for name, text in os.environ.items() if name not in ("LINES", "COLUMNS")}
            environment = {**inherited, "HOPTUI_DIR": str(directory), "TERM": "xterm-256color"}
            os.execve(sys.executable, [sys.executable, "-c", script], environment)

    def read(self, seconds: float = 0.05) -> bool:
        """Take what is there; False once the child has closed its end."""
        if select.select([self.master], [], [], seconds)[0]:
            try:
                self.output += os.read(self.master, 65536)
            except OSError:
                return False
        return True

    def until(self, pattern: bytes) -> None:
        """Read until the output has `pattern`."""
        end = time.monotonic() + DEADLINE_S
        while not re.search(pattern, self.output):
            assert time.monotonic() < end, f"no {pattern!r} in {self.output[-2000:]!r}"
            self.read()

    def press(self, key: bytes, pattern: bytes) -> None:
        """Press a key, again every second, until the output has `pattern`."""
        end = time.monotonic() + DEADLINE_S
        again = 0.0
        while not re.search(pattern, self.output):
            now = time.monotonic()
            assert now < end, f"no {pattern!r} in {self.output[-2000:]!r}"
            if now >= again:
                os.write(self.master, key)
                again = now + 1.0
            self.read()

    def ended(self, *, reading: bool = True) -> int:
        """Wait for the child's end; its exit code, or minus the signal that killed it."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if reading:
                self.read()
            else:
                time.sleep(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                while reading and self.read() and select.select([self.master], [], [], 0)[0]:
                    pass
                return os.waitstatus_to_exitcode(status)
        raise AssertionError("the dashboard did not end")

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):
            os.close(self.master)


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tui") / "d"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def screen(directory: Path) -> Iterator[Screen]:
    shown = Screen(directory)
    yield shown
    shown.close()


def assert_restored(screen: Screen) -> None:
    for sequence in (MOUSE_OFF, ALTERNATE_OFF, CURSOR_ON):
        assert sequence in screen.output, f"{sequence!r} was not written"
    assert screen.output.rfind(b"\x1b[?1049h") < screen.output.rfind(ALTERNATE_OFF)


def test_q_leaves_and_restores_the_terminal(screen: Screen) -> None:
    screen.until(rb"connecting to the daemon")
    os.write(screen.master, b"q")
    assert screen.ended() == 0
    assert_restored(screen)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_leave_and_restore_the_terminal(screen: Screen, number: signal.Signals) -> None:
    screen.until(rb"connecting to the daemon")
    os.kill(screen.pid, number)
    assert screen.ended() == 128 + number
    assert_restored(screen)


def test_a_vanished_terminal_ends_it_even_when_hangups_are_ignored(directory: Path) -> None:
    shown = Screen(directory, ignore=(signal.SIGHUP,))
    try:
        shown.until(rb"connecting to the daemon")
        os.close(shown.master)
        assert shown.ended(reading=False) == 129
    finally:
        shown.close()


@pytest.mark.parametrize("keys", [b"", b"q", b"?q", b"\x10"])
def test_a_terminal_that_vanishes_with_the_session_leader_ends_it(directory: Path, keys: bytes) -> None:
    """The kernel then sends SIGHUP and SIGCONT, at any moment of the app's life, leaving included."""
    shown = Screen(directory)
    try:
        shown.until(rb"connecting to the daemon")
        os.write(shown.master, keys)
        os.close(shown.master)
        assert shown.ended(reading=False) in (0, 129)
    finally:
        shown.close()


def test_a_lone_sigcont_starts_nothing(screen: Screen) -> None:
    screen.until(rb"connecting to the daemon")
    threads = len(list(Path(f"/proc/{screen.pid}/task").iterdir()))
    os.kill(screen.pid, signal.SIGCONT)
    screen.output = b""
    screen.press(b"?", rb"Help")
    assert len(list(Path(f"/proc/{screen.pid}/task").iterdir())) == threads
    os.kill(screen.pid, signal.SIGTERM)
    assert screen.ended() == 128 + signal.SIGTERM


def test_it_stops_for_a_shell_and_is_whole_when_it_is_brought_back(directory: Path) -> None:
    shown = Screen(directory, script=SHELL)
    try:
        for key in (b"", b"?"):  # the second time with a box open
            shown.until(rb"connecting to the daemon")
            shown.press(key, rb"Help" if key else rb"")
            os.write(shown.master, b"\x1a")
            shown.until(rb"stopped> ")
            assert_restored(shown)
            assert termios.tcgetattr(shown.master)[3] & termios.ECHO
            shown.output = b""
            os.write(shown.master, b"\n")
        shown.until(rb"connecting to the daemon(.|\n)*Help")
        os.write(shown.master, b"\x03")
        assert shown.ended() == 0
        assert_restored(shown)
    finally:
        shown.close()


def test_a_size_that_changes_while_the_one_before_is_read_is_the_last_word(directory: Path) -> None:
    shown = Screen(directory, script=CHANGING)
    try:
        shown.until(rb"connecting to the daemon")
        ioctl(shown.master, termios.TIOCSWINSZ, struct.pack("HHHH", 16, 60, 0, 0))
        shown.until(rb"\x1b\[50;1H")
    finally:
        shown.close()


def test_a_storm_of_sizes_that_nobody_reads_leaves_it_working(screen: Screen) -> None:
    screen.until(rb"connecting to the daemon")
    for rows, columns in [(1, 1), (24, 80), (60, 240), (2, 300), (200, 3), (16, 60)] * 10:
        ioctl(screen.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.kill(screen.pid, signal.SIGWINCH)
    ioctl(screen.master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    screen.output = b""
    screen.press(b"?", rb"Help")
    os.write(screen.master, b"\x03")
    assert screen.ended() == 0
    assert_restored(screen)


def test_where_no_shell_could_bring_it_back_it_does_not_stop(screen: Screen) -> None:
    screen.until(rb"connecting to the daemon")
    os.kill(screen.pid, signal.SIGTSTP)
    os.write(screen.master, b"\x1a")
    screen.press(b"?", rb"Help")
    os.write(screen.master, b"\x03")
    assert screen.ended() == 0


def test_the_file_of_the_terminal_survives_its_end() -> None:
    master, slave = pty.openpty()
    file = os.fdopen(slave, "w")
    terminal = Terminal(file)
    terminal.write("hello")
    terminal.flush()
    assert os.read(master, 100) == b"hello"
    os.close(master)
    for _ in range(3):
        terminal.write("x" * 10_000)
        terminal.flush()
    assert terminal.gone
    with contextlib.suppress(OSError):
        file.close()


def test_a_refused_directory_is_told_on_screen(directory: Path) -> None:
    directory.chmod(0o755)
    shown = Screen(directory)
    try:
        shown.until(rb"is open to others")
        os.write(shown.master, b"q")
        assert shown.ended() == 0
    finally:
        shown.close()


def test_keys_that_come_together_take_effect_in_the_order_in_which_they_were_typed(tmp_path: Path) -> None:
    screen = Screen(tmp_path, script=BOX)
    try:
        screen.until(rb"ready")  # before, the terminal takes lines, in which Enter is another character
        os.write(screen.master, b"e56\x1b[D2\x7f3\x1b[H1\r")
        assert screen.ended() == 0
        assert b"taken: 1536." in screen.output
    finally:
        screen.close()
