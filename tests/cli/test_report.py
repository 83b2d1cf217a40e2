"""`hoptui report`: where the page goes, what it says, and that no text of a run becomes markup."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from msgspec import structs

from hoptui.cli.report import html, live_charts, markdown
from hoptui.cli.report import page as telling
from hoptui.cli.report.document import MOST_ROWS, Document
from hoptui.cli.support import recordings
from hoptui.daemon import tuning as daemon_tuning
from hoptui.domain.columns import pack
from hoptui.domain.details import RunDetails
from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.domain.facts import fact
from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.domain.stacks import Stack, StackFrame
from hoptui.domain.stacks import pack as pack_stacks
from hoptui.domain.tuning import Change, Measured, Trial, TunerState
from hoptui.model.report import read
from hoptui.protocol.messages import Origin
from hoptui.recording import Recording, stack_minutes
from tests.cli.conftest import Hoptui
from tests.cli.test_recordings import over, record
from tests.cli.test_report_document import Page, chart_data, scripts
from tests.client.fake_daemon import FakeDaemon
from tests.golden import Golden
from tests.model.recorded_run import (
    BOOT,
    COMMANDS,
    EVENTS,
    GPU,
    ID,
    NODE_STATE,
    STATE,
    at,
    command,
    event,
    gpu_rows,
    run_rows,
    write,
)

EXAMPLE = Path(__file__).parents[1] / "recordings" / "ppo-h100.hoptui"
MADE = 1_780_001_000.0
MADE_BY = {r"hoptui \d+\.\d+\.\d+\S*": "hoptui VERSION"}
EVIL = (
    "<script>alert(1)</script> **b** | `c` [x](http://x.example) <img src=x onerror=y> & \\| _d_ ~~e~~ "
    "\u202e\x1b[31m"
)


@pytest.fixture
def recorded(daemon: FakeDaemon) -> Path:
    """Ten rows, one a second, of the run `old`."""
    return record(daemon, over("eeee5555", "old"))


def other(page: str, plain: str) -> str:
    """The lines of a page that the page of the plain run has not."""
    return "".join(f"{line}\n" for line in page.splitlines() if line not in plain.splitlines())


@pytest.fixture
def plain(tmp_path: Path) -> Document:
    """What is reported of the plain run."""
    return document(tmp_path / "plain.hoptui")


def document(path: Path, **fields: Any) -> Document:
    with Recording.open(write(path, **fields)) as recording:
        return telling.page(read(recording), MADE)


# where it goes ----------------------------------------------------------------------------------------------


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
    assert hoptui("report", "old", "--format", "markdown").out.startswith("# old\n")


def test_into_a_file_whose_name_says_the_format(
    hoptui: Hoptui, recorded: Path, tmp_path: Path, golden: Golden
) -> None:
    target = tmp_path / "old.html"
    ended = hoptui("report", "old", "-o", str(target))
    assert (ended.code, ended.out.startswith(f"{target}: ")) == (0, True)
    assert target.read_text().startswith("<!doctype html>")
    ended = hoptui("report", "old", "-o", str(target))
    assert (ended.code, "--force" in ended.err) == (1, True)
    golden(ended.err, normalize={re.escape(str(tmp_path)): "TMP"})
    assert hoptui("report", "old", "-o", str(target), "--format", "md", "--force").code == 0
    assert target.read_text().startswith("# old\n")
    assert list(tmp_path.iterdir()) == [target]


def test_the_recording_itself_is_never_the_output(hoptui: Hoptui, recorded: Path, golden: Golden) -> None:
    before = recorded.read_bytes()
    ended = hoptui("report", "old", "-o", str(recorded), "--force")
    assert (ended.code, str(recorded) in ended.err) == (1, True)
    golden(hoptui.transcript())
    assert recorded.read_bytes() == before


def test_wrong_words(hoptui: Hoptui, recorded: Path, golden: Golden) -> None:
    for words, code in (
        ("nope", 3),
        ("old --format pdf", 2),
        ("old -o x.pdf", 2),
        ("old -o /nowhere-at-all/x.html", 1),
    ):
        ended = hoptui("report", *words.split())
        assert (ended.code, ended.out, ended.err.count("\n")) == (code, "", 1)
    golden(hoptui.transcript())


def test_a_name_of_several_runs_lists_their_ids(hoptui: Hoptui, daemon: FakeDaemon) -> None:
    paths = [record(daemon, over(run, "demo")) for run in ("aaaa1111", "cccc3333", "bbbb2222")]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (1e9 - age, 1e9 - age))
    ended = hoptui("report", "demo")
    assert (ended.code, ended.out, ended.err.count("\n")) == (3, "", 1)
    assert re.findall(r"\b(\w{8}) \(", ended.err) == ["bbbb2222", "cccc3333", "aaaa1111"], "the newest first"
    assert ended.err.endswith("; give an id instead, such as bbbb2222\n")


def test_what_is_no_recording(hoptui: Hoptui, tmp_path: Path) -> None:
    junk = tmp_path / "junk.hoptui"
    junk.write_bytes(b"not a database at all" * 100)
    ended = hoptui("report", str(junk))
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)


def test_a_run_of_one_iteration_that_crashed(tmp_path: Path) -> None:
    state = structs.replace(STATE, exit_reason="crashed", exit_detail="RuntimeError: " + "far too long " * 20)
    rows = pack(f"run/{ID}", [(at(1), 0, {"iteration_s": 1.0})])
    lead = markdown.write(document(tmp_path / "r.hoptui", state=state, rows=(rows,))).partition("## ")[0]
    assert "(1 iteration)" in lead
    assert lead.rstrip().endswith("…"), "no full stop after what is cut"


def test_times_of_day_have_their_distance_from_utc(
    tmp_path: Path, plain: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "XXX-5:30")
    time.tzset()
    try:
        page = markdown.write(document(tmp_path / "r.hoptui"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert page.count("+05:30") == len(re.findall(r"\d{4}-\d\d-\d\d \d", page)) > 3


# what it says -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example() -> Document:
    with Recording.open(EXAMPLE, still=True) as recording:
        return telling.page(read(recording), MADE)


def test_the_example_in_markdown(example: Document, golden: Golden) -> None:
    page = markdown.write(example)
    golden(page, normalize=MADE_BY)
    assert all(len(line) < 400 for line in page.splitlines() if not line.startswith(("The ", "Of ")))


def test_a_run_with_too_short_an_end_has_the_speed_after_its_last_change_with_an_effect() -> None:
    with Recording.open(recordings.example("ppo-h200"), still=True) as recording:
        said = telling.summary(read(recording)).partition(". ")[0]
    assert [number in said for number in ("472 steps/s", "41.8 k steps/s", "× 88.6")] == [True] * 3


def test_no_text_of_a_run_becomes_markup(tmp_path: Path) -> None:
    tuner = TunerState(
        stand="holding",
        user=EVIL,
        tried=(Trial(changes=(Change(knob=EVIL, before=EVIL, value=EVIL),), result="kept", text=EVIL),),
    )
    evil_fact = fact("phase.share", phase=EVIL, share=0.6)
    state = structs.replace(
        STATE,
        name=EVIL,
        argv=EVIL,
        exit_reason=EVIL,
        exit_detail=EVIL,
        units={"env_steps_per_s": EVIL},
        knobs=(KnobState(spec=KnobSpec(name=EVIL, kind="str", default=""), value=EVIL),),
        tuner=tuner,
        diagnosis=Diagnosis(
            verdict="data-bound", facts=(evil_fact,), advice=(Advice(knob=EVIL, fact=evil_fact),)
        ),
    )
    who = Origin(kind="person", user=EVIL)
    measured = Measured(metric="env_steps_per_s", before=1.0, after=2.0, gain=1.0, interval=0.1, note=EVIL)
    commands = (
        command("a", 200, 202, knob=EVIL, before=EVIL, wanted=EVIL, effective="x", step=202, origin=who,
                why=EVIL, measured=measured),
        command("b", 210, 210, knob=EVIL, wanted=EVIL, stage="rejected", reason=EVIL, origin=who),
    )  # fmt: skip
    events = (
        *EVENTS,
        event(20, "note", EVIL),
        event(30, "diagnosis", f"data-bound: {EVIL}"),
        event(40, "tuner", EVIL),
        event(50, "shift", EVIL, step=50),
    )
    rows = pack(f"run/{ID}", [(at(i + 0.5), i, {"iteration_s": 1.0, EVIL: float(i)}) for i in range(600)])
    details = RunDetails(config={EVIL: EVIL}, summary={EVIL: EVIL}, packages={EVIL: EVIL}, notes=EVIL)
    evil = document(
        tmp_path / "evil.hoptui",
        state=state,
        commands=commands,
        events=events,
        rows=(run_rows(), gpu_rows(), rows),
        details=details,
    )
    tame = document(tmp_path / "tame.hoptui")
    page = html.write(evil)
    assert Page(page).tags <= Page(html.write(tame)).tags | {"span", "polygon"}
    assert scripts(page) == scripts(html.write(tame)), "the same scripts, whatever the run is called"
    assert "<script>alert(1)</script>" in str(chart_data(page))
    assert not {name for name in Page(page).attributes if name.startswith("on")}
    assert any("<script>alert(1)</script>" in text for text in Page(page).texts)
    for written in (page, markdown.write(evil)):
        assert not set(written) & set("\x1b\u202e")
    rendered = (
        MarkdownIt("commonmark", {"html": True})
        .enable(["table", "strikethrough"])
        .render(markdown.write(evil))
    )
    assert Page(rendered).tags <= {
        "h1", "h2", "p", "ul", "li", "strong", "pre", "code", "table", "thead", "tbody", "tr", "th", "td",
        "hr",
    }  # fmt: skip
    assert (
        re.search(r"<strong>[^<]*b[^<]*</strong>", rendered.partition("<h2>")[0]) is None
        or "**b**" in rendered
    )
    for body in re.findall(r"<tr>(.*?)</tr>", rendered, re.DOTALL):
        assert "<strong>" not in body


def test_a_verdict_the_tuner_and_what_came_to_nothing(tmp_path: Path, golden: Golden) -> None:
    gain = Measured(
        metric="env_steps_per_s", before=1e3, after=1.3e3, gain=0.3, interval=0.012, detectable=True,
        iterations=15, settled=True
    )  # fmt: skip
    trial = Trial(
        changes=(Change(knob="grad_accum", before=4, value=8),), result="kept", t=EVENTS[1].t, measured=gain,
        iterations=31, seconds=40.0, text="memory was free",
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
    assert page.count(slower.text.partition(": ")[2]) == 1
    assert re.search(r"\| data-bound +\| +95 % \|", page)
    assert re.search(r"\| tuner +\| 1.00 k → 1.30 k", page)
    golden(page, normalize=MADE_BY)


def test_a_change_stays_on_one_line_in_html_and_a_second_start_is_told(
    tmp_path: Path, plain: Document, golden: Golden
) -> None:
    tuned = tuple(structs.replace(one, origin=Origin(kind="tuner", user="ana")) for one in COMMANDS[:2])
    starts = (event(20, "tuner", "started by ana (pid 7)"), event(40, "tuner", "started by ben (pid 8)"))
    state = structs.replace(STATE, tuner=TunerState(stand="holding", user="ben"))
    told = document(tmp_path / "r.hoptui", state=state, commands=tuned, events=(*EVENTS, *starts))
    page = html.write(told)
    assert "4&nbsp;→&nbsp;8</td>" in page
    golden(other("\n".join(Page(page).texts), "\n".join(Page(html.write(plain)).texts)))


def test_each_trial_of_an_older_recording_is_told_once(tmp_path: Path) -> None:
    changes = (Change(knob="minibatch_size", before=1024, value=2048),)
    gain = Measured(gain=0.3, interval=0.012, detectable=True, settled=True)
    tried = (
        Trial(changes=changes, result="kept", t=EVENTS[1].t, measured=gain, text="memory was free"),
        Trial(changes=changes, result="failed", t=EVENTS[1].t + 1),
    )
    said = (
        "started by ana (pid 7)",
        "kept minibatch_size 1 024 → 2 048, +30.0 % ± 1.2: memory was free",
        "failed minibatch_size 1 024 → 2 048",
        "reverted minibatch_size 1 024 → 2 048: a trial that the tuner tells no more",
        "kept minibatch_size 1 024 → 2 048 of another tuner",
    )
    events = (*EVENTS, *(event(20 + i, "tuner", text) for i, text in enumerate(said)))
    state = structs.replace(STATE, tuner=TunerState(stand="holding", tried=tried))
    page = markdown.write(document(tmp_path / "r.hoptui", state=state, events=events))
    [section] = [part for part in page.split("\n## ") if said[0] in part]
    assert section.count("memory was free") == 1
    assert "failed minibatch_size" not in section
    assert all(text in section for text in (said[0], *said[3:]))


def test_each_trial_is_in_the_report_once_by_its_time(tmp_path: Path) -> None:
    changes = (Change(knob="minibatch_size", before=1024, value=2048),)
    why = (fact("memory.taken_by_others", size_bytes=17 << 30),)
    tried = tuple(Trial(changes=changes, result="reverted", t=EVENTS[1].t + i, why=why) for i in range(3))
    told = [fact("tuner.started", by="ana (pid 7)", dry=True), *map(daemon_tuning.trial_ended, tried)]
    events = [
        structs.replace(event(20 + i, "tuner", ""), code=what.code, fields=what.fields)
        for i, what in enumerate(told)
    ]
    state = structs.replace(STATE, tuner=TunerState(stand="holding", tried=tried[:2]))
    page = markdown.write(document(tmp_path / "r.hoptui", state=state, events=(*EVENTS, *events)))
    section = page.partition("## What the tuner tried")[2].partition("\n## ")[0]
    assert section.count("17.0 GiB") == 3, "two trials of the state, and the event of the third"
    assert section.count("reverted minibatch_size") == 1
    assert "started by ana (pid 7), dry" in section


def test_a_knob_that_followed_another_is_told(tmp_path: Path, plain: Document, golden: Golden) -> None:
    moved = (Change(knob="epochs", before=20, value=10),)
    change = structs.replace(COMMANDS[1], followed=moved, why="a smaller batch")
    page = markdown.write(document(tmp_path / "r.hoptui", commands=(COMMANDS[0], change)))
    assert page.count("epochs 20 → 10") == 2, "in the list of changes, and as a knob that differs"
    golden(other(page, markdown.write(plain)))


def test_a_run_that_goes_on_is_told_as_far_as_it_came(tmp_path: Path, golden: Golden) -> None:
    state = structs.replace(STATE, exit_reason="", exited_wall=0.0)
    page = markdown.write(
        document(tmp_path / "r.hoptui", state=state, events=EVENTS[:-1], rows=(run_rows(300),), commands=())
    )
    assert re.search(r"\| SM active +\| +– \| +– \| +– \|", page)  # unknown, and said to be
    golden(page, normalize=MADE_BY)


def test_it_says_why_a_gpu_does_not_tell(tmp_path: Path, plain: Document, golden: Golden) -> None:
    why = "it is no Hopper GPU"
    gpus = tuple(
        structs.replace(
            GPU,
            uuid=f"GPU-{i}",
            index=i,
            missing_because={"gpm": fact("recorded", text=why)} if i < 2 else {},
        )
        for i in range(3)
    )
    state = structs.replace(STATE, gpus=("GPU-0", "GPU-1", "GPU-2"))
    node = structs.replace(NODE_STATE, gpus=gpus)
    page = markdown.write(document(tmp_path / "r.hoptui", state=state, node=node))
    [line] = [line for line in page.splitlines() if why in line]
    assert " 0, 1: " in line
    golden(other(page, markdown.write(plain)))


def test_it_says_how_much_the_recording_lacks(tmp_path: Path) -> None:
    with Recording.create(write(tmp_path / "r.hoptui")) as recording:
        recording.lose(3)
    with Recording.open(tmp_path / "r.hoptui") as recording:
        page = markdown.write(telling.page(read(recording), MADE))
    assert "3 rows, events, commands or stack samples are missing" in page


def test_long_lists_are_cut_and_repeated_events_told_once(tmp_path: Path, golden: Golden) -> None:
    commands = tuple(
        command(f"c{i}", i + 1, i + 2, knob="lr", wanted=1e-3, before=1e-4, effective=1e-3, step=i)
        for i in range(130)
    )
    why = "held down by power"
    events = (*EVENTS, *(event(i + 0.5, "throttle", why, level="warning") for i in range(40)))
    page = markdown.write(document(tmp_path / "r.hoptui", commands=commands, events=events))
    assert len([line for line in page.splitlines() if line[0:1] == "|" and "lr 1.0e-4" in line]) == MOST_ROWS
    [repeated] = [line for line in page.splitlines() if why in line]
    assert "40 times" in repeated
    cut = [line for line in page.splitlines() if "30 more" in line]
    notes = (
        *EVENTS,
        *(event(i + 0.5, "note", f"note {i}") for i in range(80)),
        event(99, "xid", "Xid 79", level="alarm"),
    )
    page = markdown.write(document(tmp_path / "s.hoptui", events=notes))
    assert "Xid 79" in page
    assert "note 7" not in page
    cut += [line for line in page.splitlines() if " 81 " in line]
    golden("".join(f"{line}\n" for line in (repeated, *cut)))


def with_stacks(
    path: Path, file: str, function: str, call: str, *, ranks: tuple[int, ...] = (0,)
) -> Document:
    """The page of the plain run with samples of two lines, of the first rank and others."""
    write(path)
    first = (StackFrame(file, function, 7, call=call),)
    found: dict[Stack, int] = {first: 61, (StackFrame("/home/me/data.py", "load", 3),): 30}
    with Recording.create(path, boot=BOOT) as recording:
        t = recording.span()[1]
        parts = {rank: [pack_stacks(found, t - 60 * 10**9, t, left_out=9)] for rank in ranks}
        recording.stacks(t, stack_minutes.encode(parts, t), 100)
    with Recording.open(path) as recording:
        return telling.page(read(recording), MADE)


def test_the_lines_that_take_the_time(tmp_path: Path, plain: Document) -> None:
    before, page = (
        markdown.write(each)
        for each in (plain, with_stacks(tmp_path / "r.hoptui", "/x/train.py", "step", "item", ranks=(3, 5)))
    )
    assert "Not known: no stack samples are recorded." in before
    shown = other(page, before)
    assert re.search(r"\| +61 % \| waits for the GPU +\| train\.py:7 step +\| item +\|", shown)
    assert re.search(r"\| +30 % \| loads data +\| data\.py:3 load +\|", shown)
    assert "100 samples in 1 m" in shown
    assert "of rank 3" in shown
    assert "2 of them with samples" in shown
    assert "the stacks of 9 samples are not recorded" in shown


def test_names_in_samples_become_no_markup(tmp_path: Path) -> None:
    document = with_stacks(tmp_path / "r.hoptui", f"/x/{EVIL}.py", EVIL, EVIL)
    page = html.write(document)
    assert tuple(scripts(page)) == live_charts.scripts()
    assert "<img" not in page
    assert not {"\u202e", "\x1b"} & set(page)
    rendered = MarkdownIt().enable("table").render(markdown.write(document))
    assert "<script>" not in rendered
    assert "<img" not in rendered
    assert "<a " not in rendered


def test_json_has_the_facts_of_the_page(hoptui: Hoptui, tmp_path: Path) -> None:
    found = hoptui("report", str(EXAMPLE), "--json").json
    [run] = found["runs"]
    page = hoptui("report", str(EXAMPLE)).out
    report = read(Recording.open(EXAMPLE))
    assert (run["run"], run["name"], run["iterations"]) == (report.state.run, "ppo-h100", report.steps)
    assert run["first"]["medians"]["env_steps_per_s"] == pytest.approx(1590758.995)
    assert run["energy"]["joules"] == report.energy.joules
    assert [one["knob"] for one in run["changes"]] == [one.knob for one in report.changes] != []
    assert [(one["verdict"] or "", one["seconds"]) for one in run["verdicts"]] == [
        (one.verdict, one.seconds) for one in report.verdicts
    ]
    assert {one["name"] for one in run["phases"]} == {one.name for one in report.phases}
    assert run["job"] is None
    assert all(one["name"] in page for one in run["phases"])
    written = tmp_path / "run.txt"
    assert hoptui("report", str(EXAMPLE), "--json", "-o", str(written)).code == 0
    assert written.read_text().startswith('{"made":')
    assert hoptui("report", str(EXAMPLE), "--json", "--format", "html").code == 2


def test_json_of_several_runs_has_each(hoptui: Hoptui, recorded: Path) -> None:
    found = hoptui("report", str(recorded), str(EXAMPLE), "--json").json
    assert [run["name"] for run in found["runs"]] == ["old", "ppo-h100"]
