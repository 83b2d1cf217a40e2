"""What a recording remembers besides its rows: the run, and the node that it ran on."""

from __future__ import annotations

import msgspec

from hoptui.protocol.messages import NodeState, RunState

RUN, NODE = "run", "node"
"""Keys of the table `meta`; the values are JSON of the structs below (`RUN`) and of a NodeState without runs
(`NODE`)."""


class KnownRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run, and how its process is known again: `nonce`, and its start in clock ticks since boot."""

    state: RunState
    nonce: str
    process_started: int


def encode_node(node: NodeState) -> bytes:
    """The node as a recording keeps it: its GPUs and its host, without its runs."""
    return msgspec.json.encode(msgspec.structs.replace(node, runs=()))


def decode_node(raw: bytes | str) -> NodeState:
    """The inverse of `encode_node`. Raises msgspec.DecodeError where it is damaged."""
    return msgspec.json.decode(raw, type=NodeState)
