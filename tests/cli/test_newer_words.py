"""The command line shows nodes and recordings of a newer hoptui, with the words that it does not know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo
from hoptui.domain.targets import Target, TargetState
from hoptui.protocol.messages import CommandRecord, Event, NodeState, RunState, Vital
from hoptui.recording import Recording, stored_json
from hoptui.recording.library import RUN, KnownRun
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.newer_words import NEW, enumerated, newer
from tests.tui.tuned_run import DIAGNOSIS, STATE

NAMES = sorted({name for kind in (NodeState, Vital, CommandRecord, Event) for name in enumerated(kind)})
SHOWN = {"state", "stage", "verb", "stand", "standing", "result", "effect", "cost", "level"}
"""Those that a user must be able to read somewhere, as text or as JSON."""
COMMANDS = (
    "ls",
    "status ppo",
    "history ppo",
    "get ppo",
    "tune ppo --status",
    "target ppo",
    "gpus",
    "daemon status",
)


def state(*names: str) -> RunState:
    """A tuned run with targets, in which these enumerations have a new value."""
    target = TargetState(target=Target(reading="busy", value=90.0), standing="missed", mean=50.0)
    return newer(factories.run(tuner=STATE, diagnosis=DIAGNOSIS, targets=(target,)), *names)


def happened(*names: str) -> tuple[list[CommandRecord], list[Event]]:
    """A command and an event of the run."""
    command = factories.change(measured=factories.measured(0.06, 0.01), purpose=STATE.facts, t=5)
    event = factories.event(7, "note", "noted", run=factories.RUN, level="warning")
    return [newer(command, *names)], [newer(event, *names)]


@pytest.mark.guarantee("newer-words")
@pytest.mark.parametrize(
    "names", [NAMES, *([name] for name in NAMES)], ids=lambda names: "-".join(names)[:40]
)
def test_a_node_with_words_of_a_newer_hoptui(hoptui: Hoptui, daemon: FakeDaemon, names: list[str]) -> None:
    vital = newer(Vital(state="live", step=1204, iteration_s=1.82, last_t=daemon.now), *names)
    daemon.add(state(*names), vital, {"env_steps_per_s": 512_345.0, "loss": 0.1})
    gpu: GpuInfo = newer(factories.gpu(), *names)
    daemon.node = structs.replace(daemon.node, gpus=(gpu,), gpu_problem=None)
    daemon.columns.append(pack("gpu/GPU-0", [(daemon.now, -1, {"busy": 50.0, "power_w": 300.0})]))
    daemon.commands, daemon.events = happened(*names)
    daemon.start()
    seen = []
    for command in COMMANDS:
        for form in ((), ("--json",)):
            ended = hoptui(*command.split(), *form)
            assert (ended.code, ended.err) == (0, ""), command
            seen.append(ended.out)
    assert (NEW in "".join(seen)) >= bool(SHOWN & set(names))


@pytest.mark.guarantee("newer-words")
@pytest.mark.parametrize(
    "names", [NAMES, *([name] for name in NAMES)], ids=lambda names: "-".join(names)[:40]
)
def test_a_recording_with_words_of_a_newer_hoptui(
    hoptui: Hoptui, daemon: FakeDaemon, tmp_path: Path, names: list[str]
) -> None:
    path = tmp_path / f"{factories.RUN}.hoptui"
    commands, events = happened(*names)
    with Recording.create(path) as recording:
        ended = structs.replace(state(*names), exit_reason="finished")
        recording.remember(RUN, stored_json.encode(KnownRun(state=ended, nonce="n", process_started=1)))
        recording.append(pack(f"run/{factories.RUN}", [(i + 1, i, {"loss": 1.0}) for i in range(5)]))
        for command in commands:
            recording.command(command)
        for event in events:
            recording.event(event)
    for words in (("report", "--format", "md"), ("report", "-o", str(tmp_path / "r.html"))):
        done = hoptui(words[0], str(path), *words[1:])
        assert (done.code, "damaged" in done.err) == (0, False), done.err
    exported = hoptui("export", str(path), "--format", "jsonl")
    found = [json.loads(line) for line in exported.out.splitlines()]
    assert {line["type"] for line in found} == {"row", "event", "command"}
    assert (NEW in exported.out) >= bool({"stage", "verb", "level"} & set(names))
