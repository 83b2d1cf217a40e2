"""Keys of one's own: granted where they make sense, refused with a reason where a key would do two things."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hoptui import settings
from hoptui.settings import Config, KeyBinding
from hoptui.tui.actions import ACTIONS, key_text, of, settle
from hoptui.tui.dialogs import Confirm, Help
from hoptui.tui.screens.gpu.screen import GpusScreen
from hoptui.tui.screens.run.screen import RunScreen
from tests.golden import Golden, sheet

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
CLOSED = ("editor", "staged", "story", "finder", "goto", "help")


def settled(**keys: str) -> tuple[dict[str, str], list[str]]:
    """`run__pause="f5"` is the line `run.pause = "f5"`."""
    names = {name.replace("__", "."): KeyBinding(wish, "here") for name, wish in keys.items()}
    return settle(names)


def test_the_usual_keys_need_nothing() -> None:
    assert settled() == ({}, [])
    assert settle({a.id: KeyBinding(a.keys, "") for a in ACTIONS}) == ({a.id: a.keys for a in ACTIONS}, [])


def test_the_help_of_keys_is_in_words_of_users() -> None:
    assert [action.id for action in ACTIONS if "boundar" in action.help] == []


@pytest.mark.parametrize(
    ("wish", "keys"),
    [
        ("f5", "f5"),
        ("f5, P", "f5,P"),
        ("?", "question_mark"),
        ("^t", "ctrl+t"),
        ("alt+x", "alt+x"),
        ("ctrl+i", "tab"),
        ("%", "percent_sign"),
        ("", ""),
    ],
)  # fmt: skip
def test_keys_may_be_called_as_people_write_them(wish: str, keys: str) -> None:
    asked = {"run.pause": wish} | ({"app.help": "f12"} if wish == "?" else {})
    if keys == "tab":
        asked["view.tab"] = "v"
    granted, problems = settle({name: KeyBinding(keys, "here") for name, keys in asked.items()})
    assert (granted["run.pause"], problems) == (keys, [])


def test_names_that_a_terminal_would_obey_are_refused_in_one_line() -> None:
    _, problems = settle(
        {"run\r\n.pause": KeyBinding("p", "here"), "run.pause": KeyBinding("\n\x1b", "here")}
    )
    assert len(problems) == 2
    assert all(problem.isprintable() for problem in problems)


def test_what_makes_no_sense_is_refused_in_one_line(golden: Golden) -> None:
    shown = {}
    for name, key in (
        ("run.puase", "x"),
        ("run.pause", "ctl+x"),
        ("run.pause", "bogus"),
        ("run.pause", "f5,,x"),
        ("editor.send", "8"),
        ("app.leave_now", ""),
        ("confirm.yes", " "),
        ("run.wheel", "w"),
        *((f"{box}.close", "") for box in CLOSED),
        ("run.pause", "c"),
        ("run.pause", "j"),
        ("app.theme", "s"),
        ("run.pause", "ctrl+c"),
        ("confirm.yes", "s"),
        ("confirm.yes", "n"),
    ):
        granted, problems = settled(**{name.replace(".", "__"): key})
        assert granted == {}
        assert problems
        assert all(problem.startswith("here: ") for problem in problems)
        shown[f'{name} = "{key}"'] = problems
    golden(sheet(shown))


def test_keys_may_change_places() -> None:
    assert settled(run__pause="c", run__checkpoint="p") == (
        {"run.pause": "c", "run.checkpoint": "p"},
        [],
    )


def test_a_refusal_that_takes_another_wish_with_it_is_told_for_both(golden: Golden) -> None:
    granted, problems = settled(run__pause="c", run__checkpoint="s", view__freeze="f12")
    assert granted == {"view.freeze": "f12"}
    golden(problems)


def test_the_same_key_may_do_different_things_on_different_screens() -> None:
    assert settled(run__stop="x")[1] == []  # ends a process on the overview


def test_every_key_has_a_text() -> None:
    for action in ACTIONS:
        assert key_text(action.keys, every=True).isprintable()
        assert "_" not in key_text(action.keys)


def test_the_legend_of_a_box_names_the_keys_that_there_are(scene: MakeScene) -> None:
    keys = {"staged.remove": KeyBinding("", "here"), "staged.close": KeyBinding("ctrl+g", "here")}
    app = scene().app(config=replace(Config.of(theme="dark"), keys=keys))
    labels = {action.id: action.label for action in of("staged")}
    send, edit, close = (labels[f"staged.{name}"] for name in ("send", "edit", "close"))
    assert app.legend(of("staged")) == f"enter {send}  e {edit}  ^g {close}"


def configured(home: Path, text: str, **environ: str) -> Config:
    (home / "hoptui").mkdir(exist_ok=True)
    (home / "hoptui/config.toml").write_text(text)
    return settings.read({"theme": "dark"}, {"XDG_CONFIG_HOME": str(home), **environ})


def test_a_key_of_ones_own_works_and_is_shown_everywhere(
    scene: MakeScene, play: Play, read: Read, tmp_path: Path, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()
    there.update(vital={"state": "paused"})
    asked = (
        '[keys]\n"run.pause" = "f5"\n"run.stop" = ""\n"confirm.yes" = "Y"\n'
        '"view.gpus" = "p"\n"knob.undo" = "c"\n'
    )

    async def script(app: Any, pilot: Any) -> None:
        (notice,) = [str(each.message) for each in app._notifications]  # before it is over
        assert "f5 go on" in read(app, "keys")
        shown["progress"] = read(app, "progress")
        assert "p GPUs" in read(app, "keys")
        assert "stop" not in read(app, "keys")
        await pilot.press("s")
        assert isinstance(app.screen, RunScreen), "without a key it is only in the palette"
        assert there.client.sent == []
        await pilot.press("f5")
        assert [c.verb for c in there.client.sent] == ["resume"]
        await pilot.press("p")
        await pilot.pause()
        assert isinstance(app.screen, GpusScreen)
        await pilot.press("escape", "question_mark")
        await pilot.pause()
        await pilot.pause()
        assert isinstance(app.screen, Help)
        pause = next(action.help for action in ACTIONS if action.id == "run.pause")
        assert f"f5              {pause.partition(',')[0]}" in read(app, "help-lines")
        await pilot.press("escape")
        shown["notice"] = notice
        await app.run_action("stop", app.screen)
        await pilot.pause()
        assert isinstance(app.screen, Confirm)
        assert "Y yes" in read(app, "question")
        await pilot.press("y")
        assert isinstance(app.screen, Confirm)
        await pilot.press("Y")
        assert [c.verb for c in there.client.sent] == ["resume", "stop"]

    play(there.app(config=configured(tmp_path, asked)), script)
    golden(sheet(shown), normalize={str(tmp_path): "HOME"})
