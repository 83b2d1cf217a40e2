"""Parsing of a target: `ssh://[user@]host[:port][/run]`, `local`, `local/run`, or a run's name."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

LOCAL = "local"
SCHEME = "ssh://"
SLURM = "slurm:"
"""The beginning of a target that `hoptui.client.slurm_jobs` parses and resolves."""
RECORDED = ".hoptui"

_HOST = re.compile(r"[A-Za-z0-9_%:][A-Za-z0-9_.%:-]*")
_USER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@\\+$-]*")


class BadPlace(ValueError):  # noqa: N818 - says what is the case
    """The text is not a valid target. The message is one sentence."""


class Place(NamedTuple):
    """A node and perhaps a run on it.

    `host` is an alias of ssh's configuration or a host name, empty for this node.
    """

    host: str = ""
    user: str = ""
    port: int | None = None
    run: str = ""

    @property
    def remote(self) -> bool:
        """Whether it is reached through ssh."""
        return bool(self.host)

    @property
    def name(self) -> str:
        """The node's name on screen: `gpu07`, `ana@gpu07`, `gpu07:2222`, `local`."""
        if not self.host:
            return LOCAL
        host = f"[{self.host}]" if ":" in self.host and self.port else self.host
        return f"{self.destination.removesuffix(self.host)}{host}{f':{self.port}' if self.port else ''}"

    @property
    def destination(self) -> str:
        """The node as an argument of ssh: `[user@]host`."""
        return f"{self.user}@{self.host}" if self.user else self.host

    @property
    def node(self) -> Place:
        """The same without the run."""
        return self._replace(run="")


def parse(typed: str) -> Place:
    """Parse a target. A word without `ssh://` is `local`, or a run of this node.

    Raises:
        BadPlace: an address without a host, with a password, or with an invalid host, user or port.
    """
    if not typed.lower().startswith(SCHEME):
        node, slash, run = typed.partition("/")
        if node != LOCAL or run.endswith(RECORDED):
            return Place(run=typed)
        if slash and not run:
            raise BadPlace(f"{typed!r} names no run: local/RUN, or local alone")
        return Place(run=run)
    authority, _, run = typed[len(SCHEME) :].partition("/")
    user, at, rest = authority.rpartition("@")
    if ":" in user:
        raise BadPlace(_with_password(typed))
    if at and not _USER.fullmatch(user):
        raise BadPlace(f"{_shown(typed)}: {user!r} is no user's name")
    try:
        host, port = _host_and_port(typed, rest)
    except BadPlace:
        if "@" in run:  # a slash in a password looks like the end of the host
            raise BadPlace(_with_password(typed)) from None
        raise
    if not host:
        raise BadPlace(f"{_shown(typed)} names no host: ssh://[user@]host[:port][/run]")
    if not is_host(host):
        raise BadPlace(f"{_shown(typed)}: {host!r} is no host's name")
    return Place(host, user, port, unquote(run.rstrip("/")))


def is_slurm(typed: str) -> bool:
    """Return whether a target names a Slurm job."""
    return typed.lower().startswith(SLURM)


def is_host(name: str) -> bool:
    """Return whether a text may be a host's name. It is safe as an argument of ssh."""
    return _HOST.fullmatch(name) is not None


def is_path(name: str) -> bool:
    """Return whether a name is the path of a recording, not a run."""
    return name.endswith(RECORDED) or ("/" in name and "://" not in name and not is_slurm(name))


def _host_and_port(typed: str, rest: str) -> tuple[str, int | None]:
    if rest.startswith("["):
        host, _, rest = rest[1:].partition("]")
        port = rest.removeprefix(":") if rest else None
        if rest and not rest.startswith(":"):
            raise BadPlace(f"{_shown(typed)}: nothing but a port may follow the address in brackets")
    else:
        host, colon, behind = rest.partition(":")
        port = behind if colon else None
        if port is not None and ":" in port:
            raise BadPlace(f"{_shown(typed)}: an IPv6 address stands in brackets, ssh://[{rest}]")
    if port is None:
        return host, None
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise BadPlace(f"{_shown(typed)}: {port!r} is no port")
    return host, int(port)


def _with_password(typed: str) -> str:
    return f"{_shown(typed)} has a password in it: ssh takes none from an address, set up a key"


def _shown(typed: str) -> str:
    """Return the text without a password, which may hold any character."""
    return re.sub(r"(//[^:]*):.*@", r"\1:…@", typed, flags=re.DOTALL)
