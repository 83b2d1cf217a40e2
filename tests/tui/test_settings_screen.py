"""The settings: what is set, by whom, what is remembered, and that nothing of the person's own file is
touched."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hoptui import settings
from hoptui.settings import Config, Remembered
from hoptui.tui.preferences import HIDEABLE, Preferences
from hoptui.tui.render_loop import configuration_problems
from hoptui.tui.screens.overview import OverviewScreen
from hoptui.tui.screens.settings import content
from hoptui.tui.screens.settings.screen import SettingsScreen
from hoptui.tui.styled_text import Line, fitted
from tests.golden import Golden, sheet

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]


def read_config(home: Path, written: str = "", options: Any = None, **environ: str) -> Config:
    if written:
        (home / "hoptui").mkdir(exist_ok=True)
        (home / "hoptui/config.toml").write_text(written)
    there = {"XDG_CONFIG_HOME": str(home), "XDG_STATE_HOME": str(home), "TERM": "xterm-256color"}
    return settings.read(options, {**there, **environ})


def said(line: Line) -> str:
    return "".join(span.text for span in line)


def kept(home: Path) -> Remembered:
    return settings.remembered_choices(home / "hoptui/dashboard.json")[0]


def origins(preferences: Preferences) -> dict[str, str]:
    asked = ("metric", "run.events", "run.phases")
    return {item.name: item.origin for item in content.items(preferences) if item.name in asked}


def test_a_theme_is_remembered_unless_something_stronger_sets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    free = Preferences(read_config(tmp_path))
    assert free.choose_theme("light") == ""
    assert kept(tmp_path).theme == "light"
    assert Preferences(read_config(tmp_path)).look.theme.name == "hoptui-light"
    shown = {"none": free.choose_theme("none")}
    assert not free.at_once
    assert free.choose_theme("dark") == "", "the terminal is still set up for it"
    assert free.at_once
    free.choose_theme("none")
    fixed = Preferences(read_config(tmp_path, HOPTUI_THEME="dark"))
    shown["light, with HOPTUI_THEME"] = fixed.choose_theme("light")
    assert kept(tmp_path).theme == "none"
    golden(sheet(shown))


def test_what_cannot_be_remembered_is_told(tmp_path: Path) -> None:
    (tmp_path / "hoptui").write_text("a file where the directory should be")
    found = Preferences(read_config(tmp_path))
    assert found.choose_metric("loss").startswith("not remembered: ")
    assert found.metric == "loss"
    assert found.choose_metric("loss") == ""
    assert found.hide_or_show("run.events").startswith("not remembered: ")
    assert origins(found) == {"metric": "chosen here", "run.events": "chosen here", "run.phases": "default"}
    (tmp_path / "hoptui").unlink()
    assert found.hide_or_show("run.phases") == "", "and with it what was hidden before"
    assert origins(found) == {"metric": "chosen here", "run.events": "remembered", "run.phases": "remembered"}
    assert found.hide_or_show("run.events") == ""
    assert origins(found)["run.events"] == "default"


def test_without_a_home_nothing_is_called_remembered() -> None:
    found = Preferences(Config())
    found.choose_metric("loss")
    assert origins(found)["metric"] == "chosen here"


def test_a_panel_of_another_version_is_forgotten() -> None:
    old = Config(remembered=Remembered(hidden=("run.events", "run.ghost")))
    assert Preferences(old).hidden == ("run.events",)


def test_everything_that_is_set_has_a_line_with_its_origin(tmp_path: Path, golden: Golden) -> None:
    written = 'ascii = true\n[keys]\nrun.pause = "f5"\nrun.stop = "c"\n'
    prefs = Preferences(read_config(tmp_path, written, {"mouse": False}, HOPTUI_READ_ONLY="1"))
    items = {item.name: item for item in content.items(prefs)}
    place = f"{tmp_path}/hoptui/config.toml"
    assert [
        (items[n].value, items[n].origin) for n in ("theme", "ascii", "mouse", "read_only", "run.pause")
    ] == [
        ("auto", "default"),
        ("yes", f"{place} line 1"),
        ("no", "--no-mouse"),
        ("yes", "HOPTUI_READ_ONLY"),
        ("f5", f"{place} line 3"),
    ]
    assert set(items) >= {panel.id for panel in HIDEABLE}
    assert (items["knob.undo"].value, items["knob.undo"].origin) == ("u", "default"), "all ids are here"
    files = [said(line) for line in content.files(prefs, 120)]
    assert files[0] == f"yours       {place}"
    assert len(files) == 2
    wrong = content.items(prefs)[0]
    assert wrong.kind == "problem", "what is wrong comes first"
    first = said(content.rows(content.items(prefs), 0, 70)[0])
    shown = {"a key": items["run.pause"].help, "a problem": wrong.help, "its line": first}
    golden(sheet(shown), normalize={re.escape(str(tmp_path)): "HOME"})
    for item in (item for item in items.values() if item.kind != "problem"):  # a path has no place to fold
        assert all(sum(len(s.text) for s in line) <= 60 for line in content.detail(item, 60))


def test_many_problems_are_one_sentence_and_all_of_them_in_the_list(golden: Golden) -> None:
    problems = tuple(f"line {number}: there is no action run.ghost{number}" for number in range(12))
    prefs = Preferences(Config(problems=problems))
    golden([configuration_problems(prefs)])
    assert configuration_problems(Preferences(Config(problems=problems[:1]))) == problems[0]
    assert configuration_problems(Preferences(Config())) == ""
    items = content.items(prefs)
    assert [item.help for item in items[:12]] == list(problems)
    assert f"⚠ {problems[0]}" in said(content.rows(items, 1, 70)[0])


@pytest.mark.parametrize("width", [34, 54, 96])
def test_the_value_is_whole_in_any_terminal_and_who_says_so_in_most(width: int) -> None:
    items = content.items(Preferences(Config()))
    for item, line in zip(items, content.rows(items, 0, width), strict=True):
        assert item.value in said(fitted(line, width))
        assert item.origin in said(fitted(line, width)) or width < 54
    assert "now" in said(fitted(content.head(width), width))


def test_themes_and_panels_change_at_once_and_nothing_is_written_to_the_persons_file(
    scene: MakeScene, play: Play, read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    there = scene(gpus=1).live().history()
    mine = "# my own words\nmouse = true\n"
    configured = read_config(tmp_path, mine)

    async def script(app: Any, pilot: Any) -> None:
        assert app.screen.query_one("#events").display
        await pilot.press("f4")
        await pilot.pause()
        assert isinstance(app.screen, SettingsScreen)
        await pilot.press("enter", "enter")
        assert app.theme == "hoptui-light"
        row = [line.split()[0] for line in read(app, "setting-list").splitlines()].index("run:") + 3
        await pilot.press(*["down"] * row, "enter")
        await pilot.pause()
        assert "hidden" in read(app, "setting-list").splitlines()[row]
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen.query_one("#events").size.height == 0
        await pilot.press("m", "f2")
        assert app.theme == "hoptui-dark"
        app.open_overview()
        await pilot.pause()
        assert isinstance(app.screen, OverviewScreen)
        assert app.screen.query_one("#events").size.height > 0, "each screen has its own"

    play(there.app(config=configured), script)
    assert kept(tmp_path).theme == "dark"
    assert kept(tmp_path).hidden == ("run.events",)
    assert kept(tmp_path).metric
    assert (tmp_path / "hoptui/config.toml").read_text() == mine


@pytest.mark.parametrize("size", [(120, 40), (100, 32)])
def test_hidden_panels_leave_no_hole_and_small_terminals_show_all(
    scene: MakeScene, play: Play, read: Read, size: tuple[int, int]
) -> None:
    hidden = tuple(panel.id for panel in HIDEABLE)
    there = scene(gpus=1).live().history()

    async def script(app: Any, pilot: Any) -> None:
        regions = [panel.region for panel in app.screen.query(".panel") if panel.size.height]
        wide = sum(region.area for region in regions)
        assert wide == size[0] * (size[1] - 4), "the panels that are left fill the screen"
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        await pilot.press("v")
        await pilot.pause()
        assert read(app, "event-lines")

    play(there.app(config=Config(remembered=Remembered(hidden=hidden))), script, size)


def test_the_metric_of_before_is_shown_again(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        assert "approx kl" in read(app, "score").splitlines()[0]

    play(there.app(config=Config(remembered=Remembered(metric="approx_kl"))), script)


def test_all_of_what_a_setting_takes_is_read_in_the_smallest_terminal(
    scene: MakeScene, play: Play, read: Read
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("f4")
        for _ in range(3):
            await pilot.pause()
        assert read(app, "setting-detail").endswith("dark, light, ansi, none.")
        assert "› theme" in read(app, "setting-list")

    play(scene(gpus=1).live().app(), script, size=(60, 16))
