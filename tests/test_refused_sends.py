"""Every send that a full socket may refuse is handled: it waits, is reported, or its receiver asks again."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
AT_THE_SOCKET = {
    "DaemonConnection.send",  # what is refused waits, see `stuck`
    "Session.__exit__",  # a goodbye: the daemon notices silence as well
    "Session._send",  # tries for as long as an answer may take, then raises
    "Doorway.send",  # returns False
    "DaemonLink._send",  # returns False
}
"""Where a socket is asked to take a message without waiting."""
REFUSABLE = {"_send", "_send_until", "_send_outcomes", "_to_run", "_to_viewer", "hold", "retire"}
"""Functions of daemon and SDK that return False if the message was refused."""
IGNORED = {
    "RunDesk.receive": "a run that is not greeted says hello each second",
    "RunDesk._hello": "the same",
    "RunDesk._join": "the same",
    "RunDesk.written": "a run waits for the answer to its goodbye for a limited time",
    "ViewerDesk._hello": "a viewer repeats its hello until it is welcome",
    "ViewerDesk.receive": "the answer to a message before any hello",
    "ViewerDesk._push": "viewers repeat commands, and fetch their records",
    "Server._from_run": "an error: the sender repeats what it needs an answer to",
    "Server._from_viewer": "the same",
    "DaemonLink._serve": "the last words of a link that failed",
    "DaemonLink._send_due": "what was refused is sent first the next time",
    "DaemonLink._receive": "the same; a hello is repeated each second",
    "DaemonLink._welcome": "the same",
    "DaemonLink._send_stacks": "the window of the samples has a gap, and its times tell of it",
    "DaemonLink._tell_all": "it is tried again until all is acknowledged, else the goodbye says so",
    "DaemonLink._farewell": "the end: it has waited as long as a script may wait",
}
"""Where the result is not looked at, and why nothing is lost by that."""


def functions(*packages: str) -> Iterator[tuple[str, ast.AST]]:
    """Every function of these packages, as `Class.function`; names of classes are unique."""
    for package in packages:
        for path in sorted((ROOT / "hoptui" / package).rglob("*.py")):
            for outer in ast.parse(path.read_bytes()).body:
                for node in outer.body if isinstance(outer, ast.ClassDef) else [outer]:
                    if isinstance(node, ast.FunctionDef):
                        name = f"{outer.name}.{node.name}" if isinstance(outer, ast.ClassDef) else node.name
                        yield name, node


def called(node: ast.AST) -> str:
    """The last part of the name of what a call calls."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def test_sockets_are_asked_in_five_places() -> None:
    found = {
        place
        for place, function in functions("")
        for node in ast.walk(function)
        if called(node) in ("send", "send_multipart") and "NOBLOCK" in ast.unparse(node)
    }
    assert found == AT_THE_SOCKET


def test_each_of_them_expects_a_refusal() -> None:
    for place, function in functions(""):
        if place in AT_THE_SOCKET:
            assert "zmq.Again" in ast.unparse(function) or "zmq.EAGAIN" in ast.unparse(function), place


def test_a_result_that_is_not_looked_at_has_a_reason() -> None:
    found = {
        place
        for place, function in functions("daemon", "sdk")
        for node in ast.walk(function)
        if isinstance(node, ast.Expr) and called(node.value) in REFUSABLE
    }
    assert found == IGNORED.keys()
