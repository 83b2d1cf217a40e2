"""`hoptui history`."""

from __future__ import annotations

import msgspec
import pytest

from hoptui.domain.tuning import Measured
from hoptui.protocol.messages import Origin
from hoptui.recording import Recording
from hoptui.recording.library import KnownRun
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.golden import Golden


def test_history(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    gain = Measured(gain=0.061, interval=0.012, detectable=True)
    ppo.commands = [
        factories.change("c1", measured=gain, why="more\x07 work", seq=1),
        factories.change(
            "c2", verb="stop", knob="", origin=Origin(kind="tuner"), stage="rejected", reason="no", seq=2
        ),
        factories.change("c3", "another", seq=3),
    ]
    ended = hoptui("history", "ppo")
    assert ended.code == 0
    assert "\x07" not in ended.out
    golden(hoptui.transcript())
    told = hoptui("history", "ppo", "--json").json
    assert [command["id"] for command in told] == ["c1", "c2"]
    assert told[0]["by"] == {"kind": "person", "user": "ana", "pid": 4121}
    assert told[0]["measured"]["gain"] == 0.061


def test_history_says_both_sides_of_an_effect_and_is_filtered(
    hoptui: Hoptui, ppo: FakeDaemon, golden: Golden
) -> None:
    known = Measured(
        metric="env_steps_per_s", before=512e3, after=543e3, gain=0.061, interval=0.012, detectable=True
    )
    ppo.commands = [
        factories.change("c1", measured=known, seq=1),
        factories.change(
            "c2", knob="lr", before=1e-3, wanted=3e-4, effective=3e-4, origin=Origin(user="bo", pid=5), seq=2
        ),
        factories.change("c3", verb="pause", knob="", seq=3),
    ]
    assert hoptui("history", "ppo").code == 0
    told = hoptui("history", "ppo", "--filter", "by:bo stage:applied", "--json").json
    assert [command["id"] for command in told] == ["c2"]
    assert hoptui("history", "ppo", "--filter", "by:eve").code == 0
    typo = hoptui("history", "ppo", "--filter", "stage:foo")
    assert (typo.code, typo.out) == (2, "")
    again = hoptui("history", "ppo", "--as-commands").out.splitlines()
    assert [line.split()[1] for line in again] == ["set", "set", "pause"]
    both = hoptui("history", "ppo", "--as-commands", "--json")
    assert (both.code, both.json["code"]) == (2, 2)
    assert {"--as-commands", "--json"} <= set(both.err.split())
    golden(hoptui.transcript() + both.err)


def test_history_since_a_time_or_a_command(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    ppo.commands = [factories.change(f"c{i}", wall=1000.0 * i, seq=i) for i in (1, 2, 3)]

    def since(typed: str) -> list[str]:
        return [command["id"] for command in hoptui("history", "ppo", "--since", typed, "--json").json]

    assert since("2000") == ["c2", "c3"]
    assert since("1970-01-01T00:50:00+00:00") == ["c3"]
    assert since("c1") == ["c2", "c3"]
    assert since("c3") == since("10m") == []
    for wrong in ("yesterday", "nan", "c9"):
        assert hoptui("history", "ppo", "--since", wrong).code == 2
    assert hoptui("history", "ppo", "--since", "c3").code == 0
    golden(hoptui.transcript())


def test_the_program_of_an_agent_is_the_author(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    agent = Origin(kind="agent", user="ana", pid=9, client="coder")
    ppo.commands = [factories.change("c1", origin=agent, seq=1), factories.change("c2", seq=2)]
    assert "agent coder (pid 9)" in hoptui("history", "ppo").out
    [told] = hoptui("history", "ppo", "--filter", "by:agent_coder", "--json").json
    assert (told["by"], told["client"]) == ({"kind": "agent", "user": "ana", "pid": 9}, "coder")
    assert (told["measured"], told["contended"]) == (None, None)


def test_history_has_also_what_the_daemon_knows_no_more(
    hoptui: Hoptui, ppo: FakeDaemon, golden: Golden
) -> None:
    ppo.where.state.mkdir(mode=0o700, exist_ok=True)
    path = ppo.where.recording("abcd2345")
    with Recording.create(path) as recording:
        recording.command(factories.change("c1", wall=1.0, seq=1))
        recording.command(factories.change("c2", wall=2.0, seq=2, stage="scheduled"))
    ppo.commands = [factories.change("c2", wall=2.0, seq=3), factories.change("c3", wall=3.0, seq=4)]
    told = hoptui("history", "ppo", "--json").json
    assert [(c["id"], c["stage"]) for c in told] == [("c1", "applied"), ("c2", "applied"), ("c3", "applied")]
    path.write_bytes(b"not a database at all" * 100)
    ended = hoptui("history", "ppo", "--json")
    assert [c["id"] for c in ended.json] == ["c2", "c3"]
    assert str(path) in ended.err
    assert hoptui("history", "ppo").code == 0
    golden(hoptui.transcript())


@pytest.mark.parametrize("reason", ["", "finished"], ids=["live", "finished"])
def test_what_was_being_measured_when_the_run_ended_was_not_measured(
    hoptui: Hoptui, daemon: FakeDaemon, reason: str, golden: Golden
) -> None:
    daemon.add(factories.run(exit_reason=reason))
    daemon.commands = [factories.change("c1", measured=Measured(iterations=7), seq=1)]
    daemon.start()
    assert hoptui("history", "ppo").code == 0
    golden(hoptui.transcript())
    [told] = hoptui("history", "ppo", "--json").json
    assert told["measured"]["settled"] == bool(reason)


def test_no_history_yet(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    assert hoptui("history", "ppo").code == 0
    golden(hoptui.transcript())


@pytest.mark.parametrize("with_daemon", [False, True], ids=["no daemon", "daemon"])
def test_a_run_that_only_a_recording_knows(
    hoptui: Hoptui, daemon: FakeDaemon, with_daemon: bool, golden: Golden
) -> None:
    over = factories.run("eeee5555", "old", exit_reason="finished")
    with Recording.create(daemon.where.recording("eeee5555")) as recording:
        recording.remember("run", msgspec.json.encode(KnownRun(state=over, nonce="n", process_started=1)))
        recording.command(factories.change("c1", "eeee5555"))
    (daemon.where.state / "junk.hoptui").write_bytes(b"not a database at all")
    if with_daemon:
        daemon.start()
    for name in ("old", "eeee5555", "eee", str(daemon.where.recording("eeee5555"))):
        assert [command["id"] for command in hoptui("history", name, "--json").json] == ["c1"]
    ended = hoptui("history", "nope")
    assert (ended.code, ended.out) == (3, "")
    golden(hoptui.transcript())
    assert hoptui("history", str(daemon.where.state / "none.hoptui")).code == 3
    assert hoptui("history", str(daemon.where.state / "junk.hoptui")).code == 1


def test_no_recordings_at_all(hoptui: Hoptui, daemon: FakeDaemon) -> None:
    assert hoptui("history", "nope").code == 3
