"""A real sshd on loopback as this user, with separate keys, and a link to it that can be slow or cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.measure import until
from hoptui.node.addresses import Addresses

PLACES = ("/usr/sbin/sshd", "/usr/local/sbin/sshd", "/sbin/sshd")
HOST, STRANGER = "far", "stranger"
"""As its ssh configuration calls the host, and the same host for somebody with another key."""


class NoSshdError(Exception):
    """There is no OpenSSH server here, or it does not run."""


class Line:
    """A TCP proxy on loopback: at most `rate` bytes a second each way, None for no limit; `cut` ends what is
    connected."""

    def __init__(self, port: int) -> None:
        self.rate: float | None = None
        self.carried = 0
        self._to = port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """End every connection, as a router that is switched off does to those who ask it."""
        ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self.cut()
        for thread in self._threads:
            thread.join(5.0)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._to))
            self._ends += [near, far]
            for source, sink in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                thread = threading.Thread(target=self._carry, args=(source, sink), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1024):
                if self.rate is not None:
                    time.sleep(len(data) / self.rate)
                sink.sendall(data)
                self.carried += len(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Sshd:
    """sshd, and an `ssh` in `bin` that knows it by those names. What is run through it finds the daemon of
    `there`, and no start-up files of the person's shell, which may take any time and hold locks.

    Raises:
        NoSshdError: see above.
    """

    def __init__(self, base: Path, there: Addresses) -> None:
        base.mkdir(mode=0o700, exist_ok=True)
        self.base = base
        self.bin = base / "bin"
        self.hoptui = self._script("hoptui-there", f'exec {sys.executable} -m hoptui "$@"')
        for name in ("host", "user", STRANGER):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(base / name)],
                check=True,
                timeout=20,
            )
        shutil.copy(base / "user.pub", base / "authorized")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.line = Line(port)
        self._process = self._serve(port, there)
        until(lambda: self._answers(port), what="sshd")

    def close(self) -> None:
        self.line.close()
        self._process.terminate()
        self._process.communicate(timeout=10)

    @property
    def log(self) -> str:
        """What sshd has said."""
        return (self.base / "sshd.log").read_text()

    def _serve(self, port: int, where: Addresses) -> subprocess.Popen[bytes]:
        root = Path(__file__).parents[1]
        there = f"HOPTUI_DIR={where.directory} HOPTUI_STATE_DIR={where.state} HOPTUI_IDLE_S=20"
        (self.base / "sshd_config").write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {self.base}/host\nAuthorizedKeysFile "
            f"{self.base}/authorized\nPidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n"
            f"KbdInteractiveAuthentication no\nPermitRootLogin yes\nSetEnv {there} PYTHONPATH={root} "
            f"HOME={self.base}\n"
        )
        options = "IdentitiesOnly yes\n  StrictHostKeyChecking accept-new\n  ControlPath none\n"
        common = f"HostName 127.0.0.1\n  UserKnownHostsFile {self.base}/known\n  {options}"
        (self.base / "ssh_config").write_text(
            f"Host {HOST}\n  Port {self.line.port}\n  IdentityFile {self.base}/user\n  {common}"
            f"Host {STRANGER}\n  Port {port}\n  IdentityFile {self.base}/{STRANGER}\n  {common}"
        )
        real = shutil.which("ssh")
        self._script("bin/ssh", f'exec {real} -F {self.base}/ssh_config "$@"')
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(
                mode=0o755, exist_ok=True
            )  # which sshd wants of root, and a service makes at boot
        with (self.base / "sshd.log").open("wb") as log:
            command = [found_sshd(), "-D", "-e", "-f", str(self.base / "sshd_config")]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _answers(self, port: int) -> bool:
        if self._process.poll() is not None:
            raise NoSshdError(f"sshd does not run here: {self.log.strip()[-200:]}")
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", port)) == 0

    def _script(self, name: str, body: str) -> Path:
        path = self.base / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path


def found_sshd() -> str:
    """Where sshd is.

    Raises:
        NoSshdError: it, ssh or ssh-keygen is nowhere.
    """
    for path in (*PLACES, shutil.which("sshd") or ""):
        if path and Path(path).exists() and shutil.which("ssh") and shutil.which("ssh-keygen"):
            return path
    raise NoSshdError("no OpenSSH server here")
