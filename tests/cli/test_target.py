"""`hoptui target` against a fake daemon: what is asked for, what is printed, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from hoptui.domain.targets import SetTargets, Target, TargetsSet, TargetState
from hoptui.protocol.messages import Error, FromViewer, ToViewer
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.golden import Golden

BUSY = TargetState(
    target=Target(reading="busy", value=90.0), standing="missed", mean=71.2, gpu="GPU-1", seconds=34.0
)
POWER = TargetState(
    target=Target(reading="power_w", value=600.0), standing="met", mean=642.0, gpu="GPU-0", seconds=34.0
)
COOL = TargetState(target=Target(reading="temperature_c", value=80.0, side="most"))


@pytest.fixture
def aimed(ppo: FakeDaemon) -> FakeDaemon:
    """A run on two GPUs with three targets."""
    gpus = (factories.gpu(0), factories.gpu(1))
    run = structs.replace(ppo.node.runs[0], gpus=tuple(gpu.uuid for gpu in gpus), targets=(BUSY, POWER, COOL))
    ppo.node = structs.replace(ppo.node, runs=(run,), gpus=gpus, gpu_problem=None)
    return ppo


def asked_of(daemon: FakeDaemon) -> list[Any]:
    return daemon.of(SetTargets)


def answering(daemon: FakeDaemon, *targets: TargetState, **fields: Any) -> None:
    def answer(message: FromViewer) -> list[ToViewer] | None:
        if not isinstance(message, SetTargets):
            return None
        given: dict[str, Any] = {"granted": True, "targets": targets} | fields
        return [TargetsSet(id=message.id, run=message.run, **given)]

    daemon.answer = answer


def test_targets_are_listed_with_how_they_stand(hoptui: Hoptui, aimed: FakeDaemon, golden: Golden) -> None:
    assert hoptui("target", "ppo").code == 0
    status = hoptui("status", "ppo")
    assert status.code == 0
    assert "⚠ missed   busy ≥ 90 %" in status.out
    golden("\n".join(hoptui.transcript().split("$ hoptui status")[:1]))
    assert aimed.of(SetTargets) == []


def test_json(hoptui: Hoptui, aimed: FakeDaemon) -> None:
    found = hoptui("target", "ppo", "--json").json
    assert found["run"] == "abcd2345"
    assert found["targets"][0] == {
        "reading": "busy",
        "side": "least",
        "value": 90.0,
        "share": False,
        "standing": "missed",
        "mean": 71.2,
        "gpu": 1,
        "seconds": 34.0,
        "text": "busy ≥ 90 %",
    }
    assert [one["standing"] for one in found["targets"]] == ["missed", "met", "unknown"]
    assert (found["targets"][2]["mean"], found["targets"][2]["gpu"]) == (None, None)
    assert hoptui("status", "ppo", "--json").json["targets"] == found["targets"]


def test_what_is_asked_for(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    answering(ppo, BUSY)
    assert hoptui("target", "ppo", "busy=90", "temp<80", "power=off").code == 0
    [asked] = asked_of(ppo)
    assert asked.targets == (BUSY.target, COOL.target)
    assert (asked.run, asked.remove, asked.clear) == ("abcd2345", ("power_w",), False)
    answering(ppo)
    assert hoptui("target", "ppo", "--clear").code == 0
    assert asked_of(ppo)[-1].clear
    golden(hoptui.transcript())


def test_what_is_refused(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    for word in ("busy=fast", "loss=3", "temp=80", "memory=5"):
        assert hoptui("target", "ppo", word).code == 2
    assert hoptui("target", "ppo", "busy=90", "busy=80").code == 2
    assert hoptui("target", "ppo", "busy=90", "busy=off").code == 2
    assert hoptui("target", "nobody", "busy=90").code == 3
    assert ppo.of(SetTargets) == []
    answering(ppo, granted=False, code="target.none", fields={"run": "ppo", "reading": "busy"})
    assert hoptui("target", "ppo", "busy=off").code == 1
    golden(hoptui.transcript())


def test_a_daemon_that_is_too_old_is_named(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    def old(message: FromViewer) -> list[ToViewer] | None:
        text = "no message of the kind 'target' is understood here"
        return [Error(code="unsupported", text=text)] if isinstance(message, SetTargets) else None

    ppo.answer = old
    ended = hoptui("target", "ppo", "busy=90")
    assert ended.code == 1
    assert "too old" in ended.err


def test_read_only_lists_and_sets_nothing(
    hoptui: Hoptui, aimed: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPTUI_READ_ONLY", "1")
    assert hoptui("target", "ppo").code == 0
    assert hoptui("target", "ppo", "busy=90").code == 1
    assert aimed.of(SetTargets) == []
