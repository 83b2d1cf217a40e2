"""The system's ssh as a way to another node: its command line, and what it means when it ends. Pure.

Keys, agents, jump hosts and host keys are the person's own configuration. One connection carries both: a
local socket that leads to one of the other node (`-L`), and `hoptui daemon forward` there, which puts that
socket in its place, starts the daemon where there is none, and ends when its input does. So there is one
handshake, and nothing outlives a viewer that is killed: the kernel closes the pipe to ssh, ssh passes the end
on, and both ends leave.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

import msgspec

from hoptui.client.transport.target import Place
from hoptui.presentation.numbers import clean
from hoptui.protocol.messages import PROTOCOL
from hoptui.protocol.version import VERSION

OPTIONS = (
    "BatchMode=yes",  # nothing may ask for a password: the terminal is the dashboard's
    "LogLevel=INFO",  # at ERROR it does not say that the server forbids to forward
    "ConnectTimeout=10",
    "ServerAliveInterval=5",  # a line that is dead ends it, also when nobody is left to end it
    "ServerAliveCountMax=3",
    "Compression=yes",  # names and numbers that hardly change: a fourth is left
    "ControlMaster=no",  # one that is there is used; to become one would leave a process behind
    "ExitOnForwardFailure=no",  # the person's own forwards may be taken by another session; ours is looked at
    "StreamLocalBindUnlink=no",
    "StreamLocalBindMask=0177",
    "RemoteCommand=none",
    "RequestTTY=no",
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
)
FORBIDDEN = ("open failed: administratively prohibited", "open failed: connect failed: open failed")
"""What ssh says where the server does not allow it; where nobody answers at the path it gives a reason of the
system's."""
USAGE, NOT_RUNNABLE, NOT_FOUND, OF_SSH = 2, 126, 127, 255
"""Exit codes: of the other node's hoptui, two of its shell, and of ssh itself. All others are the other
node's too."""


class Forwarded(msgspec.Struct, frozen=True, kw_only=True):
    """A line that `hoptui daemon forward` prints once the daemon can be reached, and again for each daemon
    after it."""

    protocol: int
    version: str
    user: str


class Ended(NamedTuple):
    """Why there is no connection, in one sentence, and whether to try again would be of no use."""

    text: str
    lasting: bool = False


def command(place: Place, local: Path, remote: str, hoptui: str = "hoptui") -> list[str]:
    """ssh to `place`, with a socket at `local` that leads to the one at `remote`.

    `hoptui` is the command on the other node, where it is not on the PATH; a leading `~/` is the home there.
    """
    options = [word for option in OPTIONS for word in ("-o", option)]
    port = ["-p", str(place.port)] if place.port else []
    there = f"~/{shlex.quote(hoptui[2:])}" if hoptui.startswith("~/") else shlex.quote(hoptui)
    told = f"{there} daemon forward {shlex.quote(remote)}"
    return ["ssh", *options, *port, "-L", f"{local}:{remote}", "--", place.destination, told]


def ended(place: Place, code: int, errors: str) -> Ended:
    """What it means that ssh ended with `code` and said `errors` on its standard error."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    last = clean(lines[-1], 200) if lines else f"ssh ended with code {code}"
    name, ours = place.name, code == OF_SSH
    denied = next((line for line in lines if "Permission denied" in line), "") if ours else ""
    if denied:
        port = f"-p {place.port} " if place.port else ""
        return Ended(
            f"{name} refuses the login ({clean(denied, 200)}): a dashboard cannot type a password; "
            f"set up a key (ssh-copy-id {port}{place.destination}) or an agent, until `{_by_hand(place)} true` asks nothing",
            lasting=True,
        )
    if "Host key verification failed" in errors:
        return Ended(
            f"the host key of {name} is not known here, or has changed: run `{_by_hand(place)}` and answer it",
            lasting=True,
        )
    if code == NOT_FOUND or ("not found" in last and not ours):
        return Ended(
            f"there is no hoptui on the PATH of {name}: install it there, or say where it is with --hoptui",
            lasting=True,
        )
    if code == NOT_RUNNABLE:
        return Ended(f"the hoptui of {name} cannot be run: {last}", lasting=True)
    if code == USAGE and "hoptui" in last:
        return Ended(
            f"the hoptui of {name} cannot be looked at from here: install version {VERSION} there", True
        )
    if not code and not lines:
        return Ended(f"the hoptui of {name} ended without a word")
    return Ended(f"{name}: {last.removeprefix('hoptui: ').removeprefix('ssh: ')}")


def _by_hand(place: Place) -> str:
    """What a person types to get there."""
    return f"ssh -p {place.port} {place.destination}" if place.port else f"ssh {place.destination}"


def forbidden(place: Place, errors: str) -> str:
    """Why nothing comes through a connection that stands, as far as ssh says so; else nothing."""
    if any(said in errors for said in FORBIDDEN):
        return (
            f"the ssh server of {place.name} forbids the forwarding of sockets (AllowStreamLocalForwarding)"
        )
    return ""


def heard(line: str) -> Forwarded | None:
    """What a line of the other node's says, None for one that start-up files of its shell print."""
    try:
        return msgspec.json.decode(line, type=Forwarded)
    except msgspec.MsgspecError:
        return None


def mismatch(place: Place, theirs: Forwarded) -> str:
    """Why this viewer and the daemon of another node cannot talk, and what to do."""
    return (
        f"the hoptui of {place.name} ({clean(theirs.version, 20)}) speaks protocol {theirs.protocol} "
        f"and this one ({VERSION}) {PROTOCOL}: "
        "install the same version on both"
    )
