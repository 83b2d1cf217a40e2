"""A tunnel to the daemon of another node through the system's ssh. Time is passed in.

Keys, agents, jump hosts and host keys come from the user's configuration. One connection carries both: a
local socket that leads to one on the other node (`-L`), and `hoptui daemon forward` there. That command
creates the socket, starts the daemon if there is none, and ends when its input ends. So there is one
handshake, and nothing outlives a killed viewer: the kernel closes the pipe to ssh, ssh forwards the end of
input, and both ends exit.

ssh is restarted with longer and longer pauses. Each attempt has its own local socket in the viewer's
directory and its own socket on the other node, both with random names. So another user cannot create one
first, and leftovers of an earlier attempt do not interfere.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import msgspec

from hoptui.client.target import Place
from hoptui.node.addresses import IPC_PATH_MAX, AddressError
from hoptui.presentation.numbers import clean
from hoptui.protocol import VERSION
from hoptui.protocol.messages import PROTOCOL

OPTIONS = (
    "BatchMode=yes",  # no password prompt: the terminal belongs to the dashboard
    "LogLevel=INFO",  # at ERROR it does not report that the server forbids forwarding
    "ConnectTimeout=10",
    "ServerAliveInterval=5",  # a dead link ends ssh, even if the viewer is gone
    "ServerAliveCountMax=3",
    "Compression=yes",  # names and slowly changing numbers shrink to a quarter
    "ControlMaster=no",  # an existing master is used; a new one would leave a process behind
    "ExitOnForwardFailure=no",  # another session may hold the user's own forwards; ours is checked
    "StreamLocalBindUnlink=no",
    "StreamLocalBindMask=0177",
    "RemoteCommand=none",
    "RequestTTY=no",
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
)
FORBIDDEN = ("open failed: administratively prohibited", "open failed: connect failed: open failed")
"""Messages of ssh if the server forbids forwarding. A path without a listener gives a system error
instead."""
USAGE, NOT_RUNNABLE, NOT_FOUND, OF_SSH = 2, 126, 127, 255
"""Exit codes: of the other node's hoptui, two of its shell, and of ssh itself. All others are the other
node's too."""


class Forwarded(msgspec.Struct, frozen=True, kw_only=True):
    """A line that `hoptui daemon forward` prints once the daemon can be reached, and again for each later
    daemon."""

    protocol: int
    version: str
    user: str


class Ended(NamedTuple):
    """Why there is no connection, in one sentence. `lasting` if a retry cannot help."""

    text: str
    lasting: bool = False


def command(place: Place, local: Path, remote: str, hoptui: str = "hoptui") -> list[str]:
    """Return the ssh command to `place`, with a socket at `local` that leads to the one at `remote`.

    `hoptui` is the command on the other node, if it is not on the PATH. A leading `~/` is the home there.
    """
    options = [word for option in OPTIONS for word in ("-o", option)]
    port = ["-p", str(place.port)] if place.port else []
    there = f"~/{shlex.quote(hoptui[2:])}" if hoptui.startswith("~/") else shlex.quote(hoptui)
    remote_command = f"{there} daemon forward {shlex.quote(remote)}"
    return ["ssh", *options, *port, "-L", f"{local}:{remote}", "--", place.destination, remote_command]


def ended(place: Place, code: int, errors: str) -> Ended:
    """Return the meaning of ssh's exit `code` and its standard error."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    last = clean(lines[-1], 200) if lines else f"ssh ended with code {code}"
    name, ours = place.name, code == OF_SSH
    denied = next((line for line in lines if "Permission denied" in line), "") if ours else ""
    if denied:
        port = f"-p {place.port} " if place.port else ""
        return Ended(
            f"{name} refuses the login ({clean(denied, 200)}): a dashboard cannot type a password; set up "
            f"a key (ssh-copy-id {port}{place.destination}) or an agent, until `{_by_hand(place)} true` "
            "asks nothing",
            lasting=True,
        )
    if "Host key verification failed" in errors:
        return Ended(
            f"the host key of {name} is not known here, or has changed: run `{_by_hand(place)}` and answer "
            "it",
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
        return Ended(f"the hoptui of {name} ended without a message")
    return Ended(f"{name}: {last.removeprefix('hoptui: ').removeprefix('ssh: ')}")


def _by_hand(place: Place) -> str:
    """Return the command that a user types to log in there."""
    return f"ssh -p {place.port} {place.destination}" if place.port else f"ssh {place.destination}"


def forbidden(place: Place, errors: str) -> str:
    """Return why an open connection carries no data, if ssh reported that, else ""."""
    if any(said in errors for said in FORBIDDEN):
        return (
            f"the ssh server of {place.name} forbids the forwarding of sockets (AllowStreamLocalForwarding)"
        )
    return ""


def heard(line: str) -> Forwarded | None:
    """Parse a line of the other node. None for output of its shell's start-up files."""
    try:
        return msgspec.json.decode(line, type=Forwarded)
    except msgspec.MsgspecError:
        return None


def mismatch(place: Place, theirs: Forwarded) -> str:
    """Return why this viewer and the daemon of another node are incompatible, and what to do."""
    return (
        f"the hoptui of {place.name} ({clean(theirs.version, 20)}) speaks protocol {theirs.protocol} "
        f"and this one ({VERSION}) {PROTOCOL}: "
        "install the same version on both"
    )


MOST_ERRORS = 4096
MOST_LINE = 65536
LEAVE_S = 0.5
"""How long ssh has to exit after the end of its input. Then it gets SIGTERM, then SIGKILL."""
END_S = 1.0


class SshProcess:
    """A process whose output is read line by line. It ends when its input closes, also when its owner
    dies."""

    def __init__(self, words: Sequence[str]) -> None:
        """Start it in a new session, so that signals of the dashboard's terminal do not reach it.

        Raises:
            OSError: it cannot be started.
        """
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out, self._err = self._process.stdout.fileno(), self._process.stderr.fileno()
        self._open = [self._out, self._err]
        for fd in self._open:
            os.set_blocking(fd, False)
        self._line = b""
        self._errors = b""

    @property
    def waits_on(self) -> list[int]:
        """The file descriptors with possible output."""
        return list(self._open)

    def lines(self) -> list[str]:
        """Return the lines that have come since the last call."""
        self._errors = (self._errors + self._read(self._err))[-MOST_ERRORS:]
        *whole, rest = (self._line + self._read(self._out)).split(b"\n")
        self._line = rest[-MOST_LINE:]
        return [line.decode(errors="replace") for line in whole]

    @property
    def errors(self) -> str:
        """The last part of its standard error."""
        return self._errors.decode(errors="replace")

    def code(self) -> int | None:
        """Return its exit code, minus the signal that ended it, None while it runs.

        It is not reaped before `end`.
        """
        if self._process.returncode is not None:
            return self._process.returncode
        found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def end(self) -> None:
        """End it and all its children, and reap it.

        First its input is closed, so that its last output still arrives. Its group is signalled before it is
        reaped: until then the group's number cannot belong to another process.
        """
        process = self._process
        self._open = []
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        self._wait(LEAVE_S)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.returncode is None:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, number)
                if self._wait(END_S):
                    process.wait()

    def _wait(self, seconds: float) -> bool:
        """Return whether it ends within some seconds."""
        until = time.monotonic() + seconds
        while self.code() is None:
            if time.monotonic() > until:
                return False
            time.sleep(0.005)
        return True

    def _read(self, fd: int) -> bytes:
        found = b""
        while fd in self._open:
            try:
                part = os.read(fd, 65536)
            except BlockingIOError:
                break
            if not part:
                self._open.remove(fd)  # at its end it would always be ready
            found += part
        return found


AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
OPEN_S = 30.0
"""How long the other node may take, from the first packet to its first line."""
LOOK_S = 0.05
"""How soon to check again for the end of an ssh that has closed its outputs."""
PREFIX = "ssh-"


class Process(Protocol):
    """The part of `hoptui.client.tunnel.SshProcess` that a tunnel needs."""

    @property
    def waits_on(self) -> list[int]: ...
    @property
    def errors(self) -> str: ...
    def lines(self) -> list[str]: ...
    def code(self) -> int | None: ...
    def end(self) -> None: ...


class Tunnel:
    """Call `open` once, `poll` whenever output may have come, `close` at the end; all in one thread.

    `socket` is the local socket of the daemon, None while there is no connection. `state` is `refused` if a
    retry cannot help; `again` retries anyway. `reason` is one sentence unless the tunnel is open. `user` is
    the login name on the other node, empty until known. `daemons` counts the daemons that have begun there.
    """

    def __init__(
        self,
        place: Place,
        directory: Path,
        *,
        hoptui: str = "hoptui",
        spawn: Callable[[Sequence[str]], Process] = SshProcess,
    ) -> None:
        self.place = place
        self.state: Literal["opening", "open", "waiting", "refused", "closed"] = "closed"
        self.socket: Path | None = None
        self.reason = f"connecting to {place.name}"
        self.user = ""
        self.daemons = 0
        self._directory = directory
        self._hoptui = hoptui
        self._spawn = spawn
        self._process: Process | None = None
        self._local: Path | None = None
        self._until = 0.0
        self._failures = 0
        self._look_at = float("inf")

    @property
    def waits_on(self) -> list[int]:
        """The file descriptors with possible output."""
        return self._process.waits_on if self._process else []

    @property
    def errors(self) -> str:
        """The standard error of ssh in this attempt."""
        return self._process.errors if self._process else ""

    def open(self, now: float) -> None:
        """Begin to connect. Returns at once.

        Raises:
            AddressError: the path of the local socket would be too long.
        """
        token = os.urandom(8).hex()
        local = self._directory / f"{PREFIX}{os.getpid()}-{token}"
        if len(os.fsencode(local)) > IPC_PATH_MAX:
            raise AddressError(f"{local} is too long for a socket: set HOPTUI_DIR to a shorter directory")
        self._local = local
        words = command(self.place, local, f"/tmp/hoptui-via-{token}/viewers.sock", self._hoptui)
        self.state, self._until = "opening", now + OPEN_S
        try:
            self._process = self._spawn(words)
        except OSError as error:
            self._refuse(f"ssh cannot be started on this machine: {error.strerror}")

    def poll(self, now: float) -> None:
        """Process new output, and retry when it is time."""
        if self.state == "waiting" and now >= self._until:
            self.open(now)
        process = self._process
        if process is None:
            return
        code = process.code()  # read before the last output, which may come between the two
        for line in process.lines():
            self._hear(line, now)
        if self._process is None:
            return
        if code is not None:
            why = ended(self.place, code, process.errors)
            if why.lasting:
                self._refuse(why.text)
            else:
                self.lose(now, why.text)
            return
        self._look_at = float("inf") if process.waits_on else now + LOOK_S
        if self.state == "opening" and now >= self._until:
            self.lose(now, f"{self.place.name} does not answer within {OPEN_S:.0f} s")

    def served(self) -> None:
        """A daemon has answered through the tunnel. After a break it is retried soon."""
        self._failures = 0

    def lose(self, now: float, reason: str) -> None:
        """Give up this attempt. The next one follows after a pause, a longer one each time."""
        self._end()
        wait = AGAIN_S[min(self._failures, len(AGAIN_S) - 1)]
        self._failures += 1
        self.state, self._until, self.reason = "waiting", now + wait, reason

    def again(self, now: float) -> None:
        """Retry at once, at a user's request."""
        if self.state in ("waiting", "refused"):
            self._failures = 0
            self.reason = f"connecting to {self.place.name}"
            self.open(now)

    def wake_at(self) -> float:
        """Return when `poll` has something to do, if no output comes before."""
        return min(self._look_at, self._until if self.state in ("opening", "waiting") else float("inf"))

    def close(self) -> None:
        """End ssh and remove the socket."""
        self._end()
        self.state = "closed"

    def _hear(self, line: str, now: float) -> None:
        """Process a line of the other node. Start-up files of its shell may print lines too."""
        forwarded = heard(line)
        if forwarded is None or self._local is None:
            return
        if forwarded.protocol != PROTOCOL:
            self._refuse(mismatch(self.place, forwarded))
        elif not self._local.is_socket():
            errors = (self.errors.strip().splitlines() or ["ssh made no socket"])[-1]
            self.lose(now, f"no socket at {self._local}: {errors}")
        else:
            self.user = forwarded.user
            self.daemons += 1
            self.state, self.socket, self.reason = "open", self._local, ""

    def _refuse(self, reason: str) -> None:
        self._end()
        self.state, self.reason = "refused", reason

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
        if self._local is not None:
            with contextlib.suppress(OSError):
                self._local.unlink()
        self._process = self.socket = self._local = None
        self._look_at = float("inf")


def sweep(directory: Path) -> None:
    """Remove the sockets of viewers that were killed."""
    for left in directory.glob(f"{PREFIX}*-*"):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not _lives(int(pid)):
            left.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it belongs to another user
    return True
