"""Who the kernel says is at the other end."""

from __future__ import annotations

import os
import pwd

import pytest

from hoptui.node.processes import Peer, peer_of, user_name

NO_SUCH_UID = 4_000_000_123


def test_the_address_that_libzmq_gives() -> None:
    assert peer_of("localhost:1000:100:4121") == Peer(uid=1000, gid=100, pid=4121)
    assert peer_of("localhost:0:0:1") == Peer(0, 0, 1)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost",
        "localhost:1000",
        "localhost:1000:100",
        "localhost:1000:100:4121:5",
        "localhost:1000:100:4121\n",
        " localhost:1000:100:4121",
        "localhost:-1:100:4121",
        "localhost:root:0:1",
        "localhost:::",
        "127.0.0.1",
        "10.0.0.7:1000:100:4121",
    ],
)
def test_an_address_of_another_form_is_nobody(address: str) -> None:
    assert peer_of(address) is None


def test_a_uid_has_a_name_or_is_a_number() -> None:
    mine = pwd.getpwuid(os.getuid()).pw_name
    assert user_name() == mine
    assert user_name(os.getuid()) == mine
    assert user_name(0) == "root"
    assert user_name(NO_SUCH_UID) == str(NO_SUCH_UID)
    assert Peer(NO_SUCH_UID, 0, 1).user == str(NO_SUCH_UID)
    assert Peer(os.getuid(), 0, 1).user == mine
