"""`runs`: the table of recorded and live runs."""

from __future__ import annotations

import pytest

from hoptui.domain.columns import pack
from hoptui.domain.details import RunDetails
from hoptui.node import processes
from hoptui.protocol.messages import RunState
from hoptui.recording import Recording, stored_json
from hoptui.recording.ingest import Boot
from hoptui.recording.library import KnownRun
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.factories import SECOND
from tests.golden import Golden

NOON = 1_780_000_000
STARTED = {
    r"\d+ d \d+ h  +512 k": "AGE  512 k",
    r"started +duration": "started  duration",
    r"(\d\d:\d\d:\d\d)  +": r"\1  ",
}
"""The age of a run that started in 1970, and the column that is as wide as that."""


def record(
    daemon: FakeDaemon, run: str, name: str, losses: list[float], *, hours: int, **fields: object
) -> RunState:
    """A recording of an ended run that began so many hours after noon. `fields` are of its details."""
    state = factories.run(run, name, exit_reason="finished", exited_wall=NOON + 3600.0 * hours + 600)
    details = RunDetails(**fields)  # type: ignore[arg-type]
    state = RunState(**{**{f: getattr(state, f) for f in state.__struct_fields__}, "tags": details.tags})
    offset = (NOON + 3600 * hours) * SECOND
    with Recording.create(daemon.where.recording(run), boot=Boot("then", offset, 0)) as recording:
        known = KnownRun(state=state, nonce="n", process_started=1, details=details)
        recording.remember("run", stored_json.encode(known))
        recording.append(
            pack(f"run/{run}", [(i * SECOND, i, {"loss": loss}) for i, loss in enumerate(losses, 1)])
        )
    return state


@pytest.fixture
def several(ppo: FakeDaemon) -> FakeDaemon:
    """A live run, and two recordings."""
    record(ppo, "eeee5555", "lm-a", [3.0, 1.0, 2.0], hours=0, config={"lr": 0.001}, tags=("baseline",))
    record(ppo, "ffff6666", "lm-b", [3.0, 2.5], hours=1, config={"lr": 0.0001, "batch": 64})
    return ppo


def test_the_table(hoptui: Hoptui, several: FakeDaemon, golden: Golden) -> None:
    for words in (
        (),
        ("--columns", "lr,batch,best.loss"),
        ("--filter", "lr<0.001"),
        ("--filter", "name~lm", "--filter", "tag=baseline"),
        ("--filter", "name~lm", "--sort", "-lr"),
        ("--filter", "name~lm", "--group", "tag"),
        ("--filter", "name=nothing"),
        ("--filter", "lrr<1", "--sort", "batches"),
        ("--filter", "lr<"),
    ):
        hoptui("runs", *words)
    golden(hoptui.transcript(), normalize=STARTED)


def test_json(hoptui: Hoptui, several: FakeDaemon) -> None:
    live, oldest, newest = hoptui("runs", "--columns", "lr", "--group", "batch", "--json").json
    assert (live["run"], live["state"], live["exited"]) == ("abcd2345", "live", None)
    assert live["metrics"]["loss"] == {"last": 0.183, "best": None, "better": "least"}
    assert (live["throughput"], live["metric"]) == ("env_steps_per_s", "loss")
    assert oldest["metrics"] == {"loss": {"last": 2.0, "best": 1.0, "better": "least"}}
    assert (oldest["columns"], oldest["tags"], oldest["group"]) == ({"lr": 0.001}, ["baseline"], None)
    assert (oldest["started"], oldest["exited"], oldest["duration_s"]) == (NOON + 1, NOON + 600, 599)
    assert (newest["group"], newest["config"]) == (64, {"lr": 0.0001, "batch": 64})
    assert newest["recording"] == str(several.where.recording("ffff6666"))


def test_a_filter_that_cannot_be_read(hoptui: Hoptui, several: FakeDaemon) -> None:
    assert hoptui("runs", "--filter", "=3").code == 2


def test_without_a_daemon_only_recordings_are_listed(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(where: object) -> None:
        raise processes.StartError("no disk")

    monkeypatch.setattr(processes, "start_daemon", fail)
    record(daemon, "eeee5555", "lm-a", [1.0], hours=0)
    ended = hoptui("runs", "--json")
    assert ended.code == 0
    assert [run["run"] for run in ended.json] == ["eeee5555"]
    assert "no disk" in ended.err
