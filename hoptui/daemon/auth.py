"""ZAP: who may connect. The kernel says who a peer is; only this user is let in (RFC 27,
https://rfc.zeromq.org/spec/27)."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import zmq

from hoptui.node.credentials import peer_of

log = logging.getLogger("hoptui.daemon")

ENDPOINT = "inproc://zeromq.zap.01"


class Authenticator:
    """Answers every request, whatever is in it; one that is never answered would leave the peer hanging."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ENDPOINT)
        self.refused = 0
        self._uid = os.getuid()

    def answer(self) -> None:
        """Take one request off the socket and answer it."""
        frames = self.socket.recv_multipart()
        self.socket.send_multipart(self.judge(frames))

    def judge(self, frames: Sequence[bytes]) -> list[bytes]:
        """The reply to a request: 200 for this user's processes, 400 for everybody else."""
        if len(frames) < 6:
            return [b"1.0", frames[1] if len(frames) > 1 else b"", b"500", b"malformed request", b"", b""]
        version, request, _, address = frames[:4]
        peer = peer_of(address.decode("ascii", "replace"))
        if peer is not None and peer.uid == self._uid:
            return [version, request, b"200", b"OK", str(peer.uid).encode(), b""]
        self.refused += 1
        who = (
            f"{peer.user} (uid {peer.uid}, pid {peer.pid})"
            if peer
            else address.decode("ascii", "replace")[:80]
        )
        log.warning("refused a connection of %s", who)
        return [version, request, b"400", b"only the owner may connect", b"", b""]
