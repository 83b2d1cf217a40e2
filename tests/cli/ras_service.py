"""A stand-in for the RAS service of NCCL: it speaks its protocol and replays an answer in its format.

As in `src/ras/client_support.cc` of NCCL 2.28.7 to 2.30.7: a command is a line, a setting is answered by a
line, and the connection is closed after the status. A client that ends its side before is dropped.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

Serve = Callable[[socket.socket], None]
ANSWER = Path(__file__).with_name("ras_answer.json")
"""Two ranks, of which the second has left out an all-reduce. PID_0 and PID_1 stand for their pids."""


@contextmanager
def service(serve: Serve) -> Iterator[int]:
    """A service on a free port that answers clients, one after another."""
    with socket.create_server(("localhost", 0)) as server:

        def run() -> None:
            with suppress(OSError):  # the end of the service
                while True:
                    connection, _ = server.accept()
                    with connection:
                        serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(40)
        assert not thread.is_alive()


def answer(pids: Sequence[int]) -> str:
    """The answer for processes with these pids."""
    text = ANSWER.read_text()
    for number, pid in enumerate(pids):
        text = text.replace(f'"PID_{number}"', str(pid))
    return text


def replaying(
    text: str, *, formats: Sequence[str] = ("text", "json"), asked: list[str] | None = None
) -> Serve:
    """A service with these formats whose status in JSON is `text`. Its commands are added to `asked`."""

    def serve(connection: socket.socket) -> None:
        connection.settimeout(30)
        with connection.makefile("rw", encoding="utf-8", newline="\n") as lines:
            for line in lines:
                command = line.strip().lower()
                if asked is not None:
                    asked.append(command)
                if command in ("status", "verbose status"):
                    lines.write(text)
                    return
                words = command.split()
                known = words[:2] == ["set", "format"] and words[2] in formats and len(formats) > 1
                lines.write(
                    "OK\n" if known or words[0] == "timeout" else f"ERROR: Unknown command {command}\n"
                )
                lines.flush()

    return serve
