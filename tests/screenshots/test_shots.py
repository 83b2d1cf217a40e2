"""The pictures of the dashboard: which there are, that they come out the same, and that nothing in them is
made up."""

from __future__ import annotations

import asyncio
import importlib
import io
import pkgutil
from collections import Counter

import pytest
from PIL import Image

from hoptui.tui import screens
from hoptui.tui.preferences import LOOKS
from hoptui.tui.screen_base import LiveScreen, RunPage
from hoptui.tui.screens.run.screen import RunScreen
from screenshots import shots
from screenshots.camera import RECORDING, NeverGivenError, Then
from screenshots.cast import Shown, merged
from screenshots.picture import Frame, NoFontError, drawn, png, webp
from screenshots.shots import SHOTS, SMALL, Picture, Shot, WrongScreenError, pictures, shoot


def test_every_full_screen_is_pictured() -> None:
    for module in pkgutil.walk_packages(screens.__path__, f"{screens.__name__}."):
        importlib.import_module(module.name)
    every = [*LiveScreen.__subclasses__(), *RunPage.__subclasses__()]
    there = {screen.__name__ for screen in every if screen.__module__.startswith(screens.__name__)}
    own = {"RunsScreen"}  # it has the recordings of the machine that takes the picture
    assert there - own == {s.screen.__name__ for s in SHOTS if issubclass(s.screen, LiveScreen)}


def test_full_screens_are_pictured_in_every_size_and_theme() -> None:
    made = {(picture.shot.screen, picture.size, picture.theme) for picture in pictures()}
    for screen in {shot.screen for shot in SHOTS if issubclass(shot.screen, LiveScreen)}:
        assert {size for one, size, theme in made if one is screen and theme == "dark"} == set(shots.EVERY)
        assert {theme for one, size, theme in made if one is screen and size == shots.WIDE} == set(LOOKS)


def test_no_picture_overwrites_another() -> None:
    assert max(Counter(picture.file for picture in pictures()).values()) == 1


def test_a_picture_is_the_same_each_time() -> None:
    picture = next(p for p in pictures() if p.file == "run_80x24")
    svg = asyncio.run(shoot(picture))
    assert "memory-unused" in svg
    assert svg == asyncio.run(shoot(picture))
    try:
        image = drawn(svg)
    except NoFontError as error:
        pytest.skip(str(error))
    assert image.width > 8 * SMALL[0]
    assert Image.open(io.BytesIO(png(image))).size == image.size


def test_the_tuner_is_pictured_with_all_its_trials() -> None:
    picture = next(p for p in pictures() if p.file == "tuner_120x40")
    said = asyncio.run(shoot(picture)).replace("&#160;", " ")
    assert "Trials · 5" in said
    results = ("● kept", "↶ reverted", "✕ failed", "» interrupted")
    assert [said.count(result) for result in results] == [2, 2, 0, 2], "the chosen one is told in full too"


def test_the_made_up_job_is_pictured() -> None:
    picture = next(p for p in pictures() if p.file == "job_80x24")
    said = asyncio.run(shoot(picture)).replace("&#160;", " ")
    assert "256 ranks on 32 nodes" in said


def test_steps_that_lead_elsewhere_make_no_picture() -> None:
    shot = Shot("history", RunScreen, ("h",))
    with pytest.raises(WrongScreenError, match="HistoryScreen"):
        asyncio.run(shoot(Picture(shot, SMALL, "dark")))


def test_only_what_was_given_can_be_sent() -> None:
    then = Then(RECORDING, clock=lambda: 0.0)
    try:
        run = then.store.run_id
        given = then.send("set", run, knob="micro_batch", value=16)
        then.seek(then.find(shots.AFTER))
        assert then.store.commands[given].effective == 16
        with pytest.raises(NeverGivenError, match="micro_batch 24"):
            then.send("set", run, knob="micro_batch", value=24)
    finally:
        then.close()


def test_what_stands_still_is_one_frame() -> None:
    shown = [Shown("a", 100), Shown("b", 200), Shown("b", 300), Shown("a", 400)]
    assert list(merged(shown)) == [Shown("a", 100), Shown("b", 500), Shown("a", 400)]


def test_a_cast_keeps_its_frames_and_their_times() -> None:
    colours = ("red", "lime", "blue")
    frames = [Frame(Image.new("RGBA", (8, 8), colour), 100 * (i + 1)) for i, colour in enumerate(colours)]
    with Image.open(io.BytesIO(webp(frames))) as cast:
        assert getattr(cast, "n_frames", 0) == len(frames)
        for i, frame in enumerate(frames):
            cast.seek(i)
            assert cast.convert("RGBA").tobytes() == frame.image.tobytes()
            assert cast.info["duration"] == frame.ms
