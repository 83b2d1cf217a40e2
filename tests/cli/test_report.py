"""`hoptui report`: where the page goes, what it says, and that no text of a run becomes markup."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from msgspec import structs

from hoptui.cli.report import html, markdown
from hoptui.cli.report import page as telling
from hoptui.cli.report.document import MOST_ROWS, Document
from hoptui.daemon import tuning as daemon_tuning
from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.domain.tuning import Advice, Change, Diagnosis, Measured, Trial, TunerState
from hoptui.model.report import read
from hoptui.protocol.messages import Origin
from hoptui.recording import Recording
from tests.cli.conftest import Hoptui
from tests.cli.test_recordings import over, record
from tests.cli.test_report_document import Page
from tests.client.fake_daemon import FakeDaemon
from tests.model.recorded_run import (
    COMMANDS,
    EVENTS,
    GPU,
    NODE_STATE,
    STATE,
    command,
    event,
    run_rows,
    write,
)

EXAMPLE = Path(__file__).parents[2] / "hoptui" / "examples" / "ppo-h100.hoptui"
MADE = 1_780_001_000.0
EVIL = "<script>alert(1)</script> **b** | `c` [x](http://x.example) <img src=x onerror=y> & \\| _d_ ~~e~~ \u202e\x1b[31m"


@pytest.fixture
def recorded(daemon: FakeDaemon) -> Path:
    """Ten rows, one a second, of the run `old`."""
    return record(daemon, over("eeee5555", "old"))


def document(path: Path, **fields: Any) -> Document:
    with Recording.open(write(path, **fields)) as recording:
        return telling.page(read(recording), MADE)


# where it goes -------------------------------------------------------------------------------------------------------------


def test_markdown_on_standard_output(hoptui: Hoptui, recorded: Path) -> None:
    ended = hoptui("report", "old")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("# old\n")
    assert "recording of run eeee5555" in ended.out
    assert (
        hoptui("report", str(recorded), "-o", "-").out.partition("\n\n---")[0]
        == ended.out.partition("\n\n---")[0]
    )
    assert hoptui("report", "old", "--format", "html").out.startswith("<!doctype html>")


def test_into_a_file_whose_name_says_the_format(hoptui: Hoptui, recorded: Path, tmp_path: Path) -> None:
    target = tmp_path / "old.html"
    ended = hoptui("report", "old", "-o", str(target))
    assert (ended.code, ended.out.startswith(f"{target}: ")) == (0, True)
    assert target.read_text().startswith("<!doctype html>")
    ended = hoptui("report", "old", "-o", str(target))
    assert ended.err == f"hoptui: {target} already exists: give another name, or --force to overwrite it\n"
    assert hoptui("report", "old", "-o", str(target), "--format", "md", "--force").code == 0
    assert target.read_text().startswith("# old\n")
    assert list(tmp_path.iterdir()) == [target]


def test_the_recording_itself_is_never_the_output(hoptui: Hoptui, recorded: Path) -> None:
    before = recorded.read_bytes()
    ended = hoptui("report", "old", "-o", str(recorded), "--force")
    assert (ended.code, ended.err) == (1, f"hoptui: {recorded} is the recording itself: give another name\n")
    assert recorded.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("nope",), 3, "no recording of a run 'nope'"),
        (("old", "--format", "pdf"), 2, "invalid value"),
        (("old", "-o", "x.pdf"), 2, "a report is Markdown or HTML, not .pdf: name it .md or .html"),
        (("old", "-o", "/nowhere-at-all/x.html"), 1, "no such directory: /nowhere-at-all"),
    ],
)
def test_wrong_words(
    hoptui: Hoptui, recorded: Path, words: tuple[str, ...], code: int, sentence: str
) -> None:
    ended = hoptui("report", *words)
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.startswith(f"hoptui: {sentence}")
    assert ended.err.count("\n") == 1


def test_what_is_no_recording(hoptui: Hoptui, tmp_path: Path) -> None:
    junk = tmp_path / "junk.hoptui"
    junk.write_bytes(b"not a database at all" * 100)
    ended = hoptui("report", str(junk))
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)


# what it says --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example() -> Document:
    with Recording.open(EXAMPLE, still=True) as recording:
        return telling.page(read(recording), MADE)


def test_the_example_in_markdown(example: Document) -> None:
    page = markdown.write(example)
    assert "Throughput went from 1.59 M to 31.7 M steps/s (× 19.9) between the beginning and the end." in page
    assert "6 changes of knobs took effect; 4 changed throughput measurably." in page
    row = next(line for line in page.splitlines() if "precision tf32 → bf16" in line and "|" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "6",
        "+2:47",
        "14 917",
        "precision tf32 → bf16",
        "root",
        "26.1 M → 31.6 M",
        "+22.7 % ± 5.3",
        "13.1 s",
    ]
    assert "no detectable change (± 0.1 %)" in page
    assert "Not diagnosed: no verdict is recorded of this run." in page
    assert "Nothing: it was not on." in page
    assert all(len(line) < 400 for line in page.splitlines() if not line.startswith(("The ", "Of ")))


def test_no_text_of_a_run_becomes_markup(tmp_path: Path) -> None:
    tuner = TunerState(
        stand="holding",
        user=EVIL,
        tried=(Trial(changes=(Change(knob=EVIL, before=EVIL, value=EVIL),), result="kept", text=EVIL),),
    )
    state = structs.replace(
        STATE,
        name=EVIL,
        argv=EVIL,
        exit_reason=EVIL,
        exit_detail=EVIL,
        units={"env_steps_per_s": EVIL},
        knobs=(KnobState(spec=KnobSpec(name=EVIL, kind="str", default=""), value=EVIL),),
        tuner=tuner,
        diagnosis=Diagnosis(verdict="data-bound", evidence=(EVIL,), advice=(Advice(knob=EVIL, text=EVIL),)),
    )
    who = Origin(kind="person", user=EVIL)
    measured = Measured(metric="env_steps_per_s", before=1.0, after=2.0, gain=1.0, interval=0.1, note=EVIL)
    commands = (
        command("a", 200, 202, knob=EVIL, before=EVIL, wanted=EVIL, effective="x", step=202, origin=who, why=EVIL, measured=measured),
        command("b", 210, 210, knob=EVIL, wanted=EVIL, stage="rejected", reason=EVIL, origin=who),
    )  # fmt: skip
    events = (
        *EVENTS,
        event(20, "note", EVIL),
        event(30, "diagnosis", f"data-bound: {EVIL}"),
        event(40, "tuner", EVIL),
        event(50, "shift", EVIL, step=50),
    )
    evil = document(tmp_path / "evil.hoptui", state=state, commands=commands, events=events)
    tame = document(tmp_path / "tame.hoptui")
    page = html.write(evil)
    assert Page(page).tags <= Page(html.write(tame)).tags | {"span", "polygon"}
    assert not {name for name in Page(page).attributes if name.startswith("on")}
    assert any("<script>alert(1)</script>" in text for text in Page(page).texts)
    assert page.count("<svg") == 1
    for written in (page, markdown.write(evil)):
        assert not set(written) & set("\x1b\u202e")
    rendered = (
        MarkdownIt("commonmark", {"html": True})
        .enable(["table", "strikethrough"])
        .render(markdown.write(evil))
    )
    assert Page(rendered).tags <= {
        "h1", "h2", "p", "ul", "li", "strong", "pre", "code", "table", "thead", "tbody", "tr", "th", "td", "hr",
    }  # fmt: skip
    assert (
        re.search(r"<strong>[^<]*b[^<]*</strong>", rendered.partition("<h2>")[0]) is None
        or "**b**" in rendered
    )
    for body in re.findall(r"<tr>(.*?)</tr>", rendered, re.DOTALL):
        assert "<strong>" not in body


def test_a_verdict_the_tuner_and_what_came_to_nothing(tmp_path: Path) -> None:
    gain = Measured(
        metric="env_steps_per_s", before=1e3, after=1.3e3, gain=0.3, interval=0.012, detectable=True, iterations=15, settled=True
    )  # fmt: skip
    trial = Trial(
        changes=(Change(knob="grad_accum", before=4, value=8),), result="kept", t=EVENTS[1].t, measured=gain, iterations=31,
        seconds=40.0, text="memory was free",
    )  # fmt: skip
    state = structs.replace(
        STATE, tuner=TunerState(stand="holding", user="ana", tried=(trial,), spent=0.013, lived_s=1200.0)
    )
    slower = event(60, "shift", "throughput -20%: the clocks are held down", step=60, level="warning")
    events = (*EVENTS, event(30, "diagnosis", "data-bound: data 60 %"), slower)
    tuned = structs.replace(COMMANDS[1], origin=Origin(kind="tuner", user="ana"), measured=gain)
    back = command(
        "z", 500, 510, knob="epochs", before=10, wanted=20, stage="reverted", step=500, reason="out of memory"
    )
    page = markdown.write(
        document(tmp_path / "r.hoptui", state=state, events=events, commands=(*COMMANDS, tuned, back))
    )
    assert (
        "| +1:40 | grad_accum 4 → 8 | ● kept | +30.0 % ± 1.2 | 31 iterations, 40 s | memory was free |"
        in page
    )
    assert "Started by ana" in page
    assert "Trials took 22 % of the budget: 16 s of 1 m 12 s (2 % of the first hour)." in page
    assert "It changed once though no knob was turned. 2 changes of knobs" in page
    assert "The last verdict: data-bound." in page, "how sure it was is not recorded"
    assert re.search(r"\| data-bound +\| +95 % \|", page)
    assert "reverted: out of memory" in page
    assert page.count("the clocks are held down") == 1
    assert (
        "2 changes of knobs took effect, 1 of them by the tuner; 2 changed throughput measurably." in page
    )  # and not the one that was taken back
    assert "rejected: out of bounds" in page
    assert re.search(r"\| tuner +\| 1.00 k → 1.30 k", page)


def test_a_change_stays_on_one_line_in_html_and_a_second_start_is_told(tmp_path: Path) -> None:
    tuned = tuple(structs.replace(one, origin=Origin(kind="tuner", user="ana")) for one in COMMANDS[:2])
    starts = (event(20, "tuner", "started by ana (pid 7)"), event(40, "tuner", "started by ben (pid 8)"))
    state = structs.replace(STATE, tuner=TunerState(stand="holding", user="ben"))
    told = document(tmp_path / "r.hoptui", state=state, commands=tuned, events=(*EVENTS, *starts))
    page = html.write(told)
    assert "<td>grad_accum 4&nbsp;→&nbsp;8</td>" in page
    assert "2 changes of knobs took effect, all of them by the tuner" in page
    assert "Started last by ben: " in page
    assert "Since then trials took 0 % of the budget: 0 s of 1 m 12 s (2 % of the first hour)." in page


def test_each_trial_of_the_tuner_is_told_once(tmp_path: Path) -> None:
    changes = (Change(knob="minibatch_size", before=1024, value=2048),)
    gain = Measured(gain=0.3, interval=0.012, detectable=True, settled=True)
    tried = (
        Trial(changes=changes, result="kept", t=EVENTS[1].t, measured=gain, text="memory was free"),
        Trial(changes=changes, result="failed", t=EVENTS[1].t + 1),
    )
    forgotten = Trial(changes=changes, result="reverted", text="a trial that the tuner tells no more")
    said = (
        "started by ana (pid 7)",
        *map(daemon_tuning.trial_text, (*tried, forgotten)),
        "kept minibatch_size 1 024 → 2 048 of another tuner",
    )
    events = (*EVENTS, *(event(20 + i, "tuner", text) for i, text in enumerate(said)))
    state = structs.replace(STATE, tuner=TunerState(stand="holding", tried=tried))
    page = markdown.write(document(tmp_path / "r.hoptui", state=state, events=events))
    section = page.partition("## What the tuner tried")[2].partition("\n## ")[0]
    assert section.count("memory was free") == 1
    assert "failed minibatch_size" not in section
    assert all(text in section for text in (said[0], *said[3:]))


def test_a_knob_that_followed_another_is_told(tmp_path: Path) -> None:
    moved = (Change(knob="epochs", before=20, value=10),)
    change = structs.replace(COMMANDS[1], followed=moved, why="a smaller batch")
    page = markdown.write(document(tmp_path / "r.hoptui", commands=(COMMANDS[0], change)))
    assert "| grad_accum 4 → 8, epochs 20 → 10 followed, “a smaller batch” |" in page
    assert "epochs 20 → 10." in page.partition("Knobs that differ: ")[2].partition("\n")[0]


def test_a_run_that_goes_on_is_told_as_far_as_it_came(tmp_path: Path) -> None:
    state = structs.replace(STATE, exit_reason="", exited_wall=0.0)
    page = markdown.write(
        document(tmp_path / "r.hoptui", state=state, events=EVENTS[:-1], rows=(run_rows(300),), commands=())
    )
    assert "had not ended by " in page
    assert "No change of a knob took effect." in page
    assert "- **GPUs** 1 × NVIDIA H100" in page
    assert re.search(r"\| SM active +\| +– \| +– \| +– \|", page)  # unknown, and said to be
    assert "Not known: no energy reading" in page


def test_it_says_why_a_gpu_does_not_tell(tmp_path: Path) -> None:
    gpus = tuple(
        structs.replace(
            GPU, uuid=f"GPU-{i}", index=i, missing={"gpm": "it is no Hopper GPU"} if i < 2 else {}
        )
        for i in range(3)
    )
    state = structs.replace(STATE, gpus=("GPU-0", "GPU-1", "GPU-2"))
    node = structs.replace(NODE_STATE, gpus=gpus)
    page = markdown.write(document(tmp_path / "r.hoptui", state=state, node=node))
    assert (
        "Not known of GPUs 0, 1: how active SMs, tensor cores and memory are (it is no Hopper GPU)." in page
    )
    assert "- **GPUs** 3 × NVIDIA H100 80GB HBM3" in page


def test_long_lists_are_cut_and_repeated_events_told_once(tmp_path: Path) -> None:
    commands = tuple(
        command(f"c{i}", i + 1, i + 2, knob="lr", wanted=1e-3, before=1e-4, effective=1e-3, step=i)
        for i in range(130)
    )
    events = (
        *EVENTS,
        *(event(i + 0.5, "throttle", "held down by power", level="warning") for i in range(40)),
    )
    page = markdown.write(document(tmp_path / "r.hoptui", commands=commands, events=events))
    assert f"The first {MOST_ROWS}; 30 more are in the recording." in page
    assert page.count("held down by power") == 1
    assert "40 times, the last after +0:40" in page
    notes = (
        *EVENTS,
        *(event(i + 0.5, "note", f"note {i}") for i in range(80)),
        event(99, "xid", "Xid 79", level="alarm"),
    )
    page = markdown.write(document(tmp_path / "s.hoptui", events=notes))
    assert "Xid 79" in page
    assert "note 7" not in page
    assert "Left out here: 81 others." in page
