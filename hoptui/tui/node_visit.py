"""The dashboard of another node of a job, over ssh, in place of this one until the user leaves it.

First a connection is tried in the background, so that a node that cannot be reached is an answer and not an
empty dashboard. Then this dashboard gives the terminal to `hoptui attach ssh://host/run`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Protocol

from hoptui.client.client import Client, Link
from hoptui.client.routes import There
from hoptui.client.target import SCHEME, BadPlace, Place, parse
from hoptui.node.addresses import AddressError
from hoptui.presentation import numbers
from hoptui.tui.driver import TerminalDriver

PATIENCE_S = 20.0
"""ssh itself gives up on a host that does not answer after ten seconds."""
LOOK_S = 0.1


class Probe(Protocol):
    """A client that has begun to connect."""

    @property
    def link(self) -> Link: ...
    def start(self) -> None: ...
    def close(self) -> None: ...


def ssh_client(place: Place) -> Client:
    """Return a client that only looks, on its way to a node.

    Raises:
        AddressError: there is no directory for its socket.
    """
    way = There(place)
    way.begin(time.monotonic())
    return Client(way=way, read_only=True)


async def unreachable(host: str, connect: Callable[[Place], Probe] = ssh_client) -> str:
    """Try to reach the daemon of a host. Return why that is not possible, "" if it is."""
    try:
        probe = connect(parse(f"{SCHEME}{host}"))
    except (BadPlace, AddressError) as error:
        return str(error)
    try:
        probe.start()
        ends = time.monotonic() + PATIENCE_S
        while probe.link.state == "connecting" and time.monotonic() < ends:
            await asyncio.sleep(LOOK_S)
        link = probe.link
    finally:
        await asyncio.to_thread(probe.close)
    if link.state == "live":
        return ""
    why = numbers.clean(link.reason, 200) or "it does not answer"
    return f"{numbers.clean(host, 60)} cannot be reached from here: {why}"


def command(host: str, run: str, options: list[str]) -> list[str]:
    """Return the command that opens the dashboard of a host on a run."""
    return [sys.executable, "-m", "hoptui", "attach", f"{SCHEME}{host}/{run}", *options]


def lend_terminal(driver: object, argv: list[str]) -> bool:
    """Run a program on the terminal of the dashboard until it ends. Return False without a terminal to lend.

    The event loop stands still meanwhile: nothing may be drawn.
    """
    if not isinstance(driver, TerminalDriver):
        return False
    driver.suspend_application_mode()
    try:
        subprocess.run(argv, check=False)
    finally:
        driver.resume_application_mode()
    return True
