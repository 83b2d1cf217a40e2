"""What a run is, in every command that shows it: status, ls, report, export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from hoptui.cli.report import html, markdown
from hoptui.cli.report import page as pages
from hoptui.domain.details import RunDetails
from hoptui.model.report import read
from hoptui.protocol.messages import Describe, Error, FromViewer, ToViewer, Vital
from hoptui.recording import Recording
from tests import factories
from tests.cli.conftest import Hoptui
from tests.cli.test_report import EVIL, MADE, MADE_BY
from tests.client.fake_daemon import FakeDaemon
from tests.golden import Golden
from tests.model.recorded_run import ID, STATE, write

LONG = {f"option.{i}": i for i in range(20)}


@pytest.fixture
def described(ppo: FakeDaemon) -> FakeDaemon:
    """`ppo` says what it is. There is another run, with another tag."""
    found = factories.details()
    ppo.details["abcd2345"] = found
    tagged = [structs.replace(run, tags=found.tags) for run in ppo.node.runs]
    ppo.node = structs.replace(ppo.node, runs=tuple(tagged))
    ppo.add(factories.run("eeee5555", "lm", tags=("baseline",)), Vital(state="live", step=3))
    return ppo


def test_status(hoptui: Hoptui, described: FakeDaemon, golden: Golden) -> None:
    assert hoptui("status", "ppo").code == 0
    found = factories.details(config=LONG, config_left_out=3, summary={}, repository=None, tags=(), notes="")
    described.details["abcd2345"] = found
    assert hoptui("status", "ppo").code == 0
    golden(hoptui.transcript())


def test_status_json_has_everything(hoptui: Hoptui, described: FakeDaemon) -> None:
    found = hoptui("status", "ppo", "--json").json
    assert found["tags"] == ["baseline", "a100"]
    details = found["details"]
    assert set(details) == set(RunDetails.__struct_fields__)
    assert details["config"]["optimizer.betas"] == [0.9, 0.95]
    assert details["summary"] == {"best_return": 487.5, "diverged": "nan"}
    assert details["repository"] == {"commit": "3f9c2a1b7d", "branch": "main", "dirty": True}
    assert hoptui("status", "lm", "--json").json["details"] is None


def test_an_older_daemon_does_not_know_it(hoptui: Hoptui, described: FakeDaemon) -> None:
    def older(message: FromViewer) -> list[ToViewer] | None:
        return [Error(code="unsupported", text="unknown")] if isinstance(message, Describe) else None

    described.answer = older
    assert hoptui("status", "ppo", "--json").json["details"] is None
    assert hoptui("status", "ppo").code == 0


def test_ls_by_tag(hoptui: Hoptui, described: FakeDaemon, golden: Golden) -> None:
    hoptui("ls")
    hoptui("ls", "--tag", "a100")
    hoptui("ls", "--tag", "baseline", "--tag", "a100")
    hoptui("ls", "--tag", "nothing")
    hoptui("ls", "--tag", "nothing", "--all")
    golden(hoptui.transcript(), normalize={r"\d+ d(?: \d+ h)?": "AGE"})
    assert [run["name"] for run in hoptui("ls", "--tag", "baseline", "--json").json] == ["ppo", "lm"]
    assert [run["name"] for run in hoptui("ls", "--tag", "a100", "--json", "--all").json] == ["ppo"]


def test_ls_all_by_tag_of_a_recording(hoptui: Hoptui, described: FakeDaemon) -> None:
    described.where.state.mkdir(mode=0o700, exist_ok=True)
    details = factories.details(tags=("kept",))
    write(described.where.recording(ID), state=structs.replace(STATE, tags=details.tags), details=details)
    assert [run["run"] for run in hoptui("ls", "--all", "--tag", "kept", "--json").json] == [ID]


def test_report(tmp_path: Path, golden: Golden) -> None:
    path = write(tmp_path / "a.hoptui", details=factories.details(config_left_out=2))
    with Recording.open(path) as recording:
        document = pages.page(read(recording), MADE)
    page = markdown.write(document)
    golden(page[page.index("## Configuration") :], normalize=MADE_BY)


@pytest.mark.guarantee("clean-text")
def test_no_text_of_a_script_becomes_markup(tmp_path: Path) -> None:
    details = factories.details(
        config={EVIL: EVIL}, summary={EVIL: [EVIL]}, tags=(EVIL,), notes=EVIL, packages={EVIL: EVIL}
    )
    path = write(tmp_path / "a.hoptui", details=details)
    with Recording.open(path) as recording:
        page = html.write(pages.page(read(recording), MADE))
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_export(hoptui: Hoptui, tmp_path: Path) -> None:
    path = write(tmp_path / "a.hoptui", details=factories.details())
    first, *rest = (
        json.loads(line) for line in hoptui("export", str(path), "--format", "jsonl").out.splitlines()
    )
    assert (first["type"], first["run"], first["name"], first["t_s"]) == ("run", ID, "ppo-recorded", 0.0)
    assert first["config"]["env"] == "CartPole-v1"
    assert first["summary"]["diverged"] is None
    assert "run" not in {line["type"] for line in rest}
    older = write(tmp_path / "b.hoptui")
    assert json.loads(hoptui("export", str(older), "--format", "jsonl").out.split("\n")[0])["type"] != "run"
