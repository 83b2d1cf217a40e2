"""`note`: notes on live and recorded runs, and where they are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from hoptui.domain.columns import pack
from hoptui.domain.run_notes import LONGEST_NOTE, AddNote, NoteAdded, RunNote
from hoptui.protocol.messages import Error, FromViewer, ToViewer
from hoptui.recording import Recording
from hoptui.recording.library import KnownRun, known_run
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.factories import SECOND
from tests.golden import Golden

NOTE = RunNote(wall=1_780_000_000.0, by="ana", text="a bad shard")


@pytest.fixture
def old(daemon: FakeDaemon) -> Path:
    """The recording of a run that no daemon knows, with something of a newer version."""
    path = daemon.where.recording("eeee5555")
    state = factories.run("eeee5555", "old", exit_reason="finished")
    known = msgspec.to_builtins(KnownRun(state=state, nonce="n", process_started=1))
    known["state"]["newer"] = 7
    with Recording.create(path) as recording:
        recording.remember("run", msgspec.json.encode(known))
        recording.append(pack("run/eeee5555", [(i * SECOND, i, {"loss": 1.0}) for i in range(1, 9)]))
    daemon.start()
    return path


def grant(daemon: FakeDaemon) -> None:
    def answer(message: FromViewer) -> list[ToViewer] | None:
        if not isinstance(message, AddNote):
            return None
        note = RunNote(wall=NOTE.wall + 1, by="ana", text=message.text)
        return [NoteAdded(id=message.id, run=message.run, granted=True, notes=(NOTE, note))]

    daemon.answer = answer


def test_a_live_run_is_noted_by_the_daemon(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    assert hoptui("note", "ppo").code == 0
    grant(ppo)
    assert hoptui("note", "ppo", "more warmup").code == 0
    asked: Any = ppo.of(AddNote)[0]
    assert (asked.run, asked.text) == ("abcd2345", "more warmup")
    run = structs.replace(ppo.node.runs[0], notes=(NOTE,))
    ppo.node = structs.replace(ppo.node, runs=(run,))
    hoptui("note", "ppo")
    hoptui("history", "ppo")
    hoptui("history", "ppo", "--filter", "by:bob")
    golden(hoptui.transcript())
    noted = [{"wall": NOTE.wall, "by": "ana", "text": "a bad shard"}]
    assert hoptui("note", "ppo", "--json").json == {"run": "abcd2345", "notes": noted}
    assert hoptui("status", "ppo", "--json").json["notes"] == noted
    (row,) = hoptui("history", "ppo", "--json").json
    assert (row["verb"], row["time"], row["by"]["user"]) == ("note", NOTE.wall, "ana")
    assert (row["run"], row["text"]) == ("abcd2345", "a bad shard")
    assert hoptui("history", "ppo", "--json", "--filter", "by:bob").json == []
    assert hoptui("runs", "--json").json[0]["notes"] == noted


def test_a_recorded_run_keeps_its_notes_in_its_file(hoptui: Hoptui, old: Path) -> None:
    for text in ("good", "better"):
        assert hoptui("note", "old", text).code == 0
    assert {path.suffix for path in old.parent.iterdir()} == {".hoptui"}
    with Recording.open(old) as recording:
        known = known_run(recording)
        raw = msgspec.json.decode(recording.recall("run") or b"")
        assert recording.sources()["run/eeee5555"][2] == 8
    assert known is not None
    assert [note.text for note in known.state.notes] == ["good", "better"]
    assert raw["state"]["newer"] == 7
    assert "better" in hoptui("history", "old").out
    report = hoptui("report", "old").out
    assert "## Notes" in report
    assert "better" in report


def test_what_is_no_note(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    for text in ("", " ", "x" * (LONGEST_NOTE + 1)):
        assert hoptui("note", "ppo", text).code == 2
    assert hoptui("note", "nobody", "good").code == 3
    assert ppo.of(AddNote) == []


def test_read_only_adds_nothing(
    hoptui: Hoptui, old: Path, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = old.read_bytes()
    monkeypatch.setenv("HOPTUI_READ_ONLY", "1")
    assert hoptui("note", "old", "good").code == 1
    assert hoptui("note", "old").code == 0
    assert old.read_bytes() == before
    assert daemon.of(AddNote) == []


def test_a_daemon_that_is_too_old_is_named(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    def older(message: FromViewer) -> list[ToViewer] | None:
        text = "no message of the kind 'note.add' is understood here"
        return [Error(code="unsupported", text=text)] if isinstance(message, AddNote) else None

    ppo.answer = older
    ended = hoptui("note", "ppo", "good")
    assert ended.code == 1
    assert "too old" in ended.err
