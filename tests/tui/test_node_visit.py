"""The dashboard lends its terminal to another program, and has it back afterwards."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time

APP = """
from textual.app import App
from textual.widgets import Static
from hoptui.tui import node_visit
from hoptui.tui.driver import TerminalDriver

CHILD = ["sh", "-c", "echo CHILD-RAN; read typed; echo GOT-$typed"]

class Lender(App):
    def __init__(self):
        super().__init__(driver_class=TerminalDriver)

    def compose(self):
        yield Static("before")

    def on_ready(self):
        self.call_later(self.lend)

    def lend(self):
        lent = node_visit.lend_terminal(self._driver, CHILD)
        self.query_one(Static).update(f"after-child-{lent}")
        self.refresh(layout=True)

    def on_key(self, event):
        if event.key == "q":
            self.exit()

Lender().run()
print("ENDED")
"""


def test_a_program_has_the_terminal_until_it_ends() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    child = subprocess.Popen(
        [sys.executable, "-c", APP], stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    answers = {b"CHILD-RAN": b"hello\n", b"after-child-True": b"q"}
    seen, ends = b"", time.monotonic() + 60
    try:
        while b"ENDED" not in seen and time.monotonic() < ends:
            if not select.select([ours], [], [], 1.0)[0]:
                continue
            try:
                seen += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            for cue in [cue for cue in answers if cue in seen]:
                os.write(ours, answers.pop(cue))
        assert answers == {}, seen[-2000:]
        assert b"GOT-hello" in seen
        assert b"ENDED" in seen
        assert child.wait(10) == 0
    finally:
        child.kill()
        child.wait()
        os.close(ours)
