"""What is pictured: every screen of the dashboard, in what sizes and themes, and how to get there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from textual.screen import Screen

from hoptui.tui.app import PaletteBox
from hoptui.tui.dialogs import Confirm, FilterBox, Finder, Help
from hoptui.tui.replay_app import GoTo
from hoptui.tui.screens.charts.screen import ChartScreen
from hoptui.tui.screens.gpu.screen import GpusScreen
from hoptui.tui.screens.history.screen import HistoryScreen, Story
from hoptui.tui.screens.hosts.screen import HostsScreen
from hoptui.tui.screens.job.screen import JobScreen
from hoptui.tui.screens.knob_editor.screen import KnobEditor, StagedBox
from hoptui.tui.screens.output.screen import OutputScreen
from hoptui.tui.screens.overview import OverviewScreen
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.screens.settings.screen import SettingsScreen
from hoptui.tui.screens.tuner.screen import LimitsBox, TunerScreen
from hoptui.tui.screens.where.screen import WhereScreen
from screenshots.camera import Do, Seat, Step, To, sitting

Size = tuple[int, int]
SMALL, WIDE, LARGE = (80, 24), (120, 40), (200, 50)
EVERY = (WIDE, SMALL, LARGE)
LATE = "+110s"
"""A moment at which the tuner has kept two trials and the run goes on."""
END = "100%"
"""Before, a recording does not tell how a tuner stood."""
BEFORE, AFTER = "+26s", "+60s"
"""Around the moment at which micro_batch was set from 8 to 16."""


class WrongScreenError(Exception):
    """The steps of a shot lead to another screen than it says."""


class Shot(NamedTuple):
    """A screen, and the steps that lead to it from the run screen at a moment of the recording."""

    name: str
    screen: type[Screen[Any]]
    steps: tuple[Step, ...] = ()
    sizes: tuple[Size, ...] = (WIDE,)
    themes: tuple[str, ...] = ("dark",)
    seat: Seat = "replay"
    moment: str = LATE


class Picture(NamedTuple):
    """One picture of a shot; `file` is its name without the ending."""

    shot: Shot
    size: Size
    theme: str

    @property
    def file(self) -> str:
        columns, rows = self.size
        theme = "" if self.theme == "dark" else f"_{self.theme}"
        return f"{self.shot.name}_{columns}x{rows}{theme}"


CHARTS: tuple[Step, ...] = ("slash", "escape", "a")
KNOB: tuple[Step, ...] = ("down",)  # micro_batch
EDITED: tuple[Step, ...] = (*KNOB, "e", *"16")

FULL = (
    Shot("run", RunScreen),
    Shot("overview", OverviewScreen, (Do("screen.overview"),)),
    Shot("gpus", GpusScreen, ("d",)),
    Shot("chart", ChartScreen, (*CHARTS, *"hhhhhhhhhhhh")),
    Shot("history", HistoryScreen, ("h",)),
    Shot("where", WhereScreen, ("w",)),
    Shot("output", OutputScreen, ("l",), seat="live"),
    Shot("job", JobScreen, ("J",), seat="job"),
    Shot("settings", SettingsScreen, ("f4",)),
    Shot("tuner", TunerScreen, ("t",), seat="tuned", moment=END),
    Shot("hosts", HostsScreen, ("down",), seat="hosts"),
)
"""Full screens: each is pictured in every size, and in every theme at the usual one."""

SHOTS = (
    *(shot._replace(sizes=EVERY) for shot in FULL),
    *(shot._replace(themes=("light", "ansi", "none")) for shot in FULL),
    Shot("filter", FilterBox, ("h", "slash", *"micro_batch")),
    Shot("throughput", RunScreen, ("1",)),
    Shot("finder", Finder, ("slash", *"power")),
    Shot("story", Story, ("h", "enter")),
    Shot("help", Help, ("question_mark",)),
    Shot("palette", PaletteBox, ("ctrl+p",)),
    Shot("go_to", GoTo, ("g", *"#60")),
    Shot("live", RunScreen, seat="live", sizes=(WIDE, SMALL)),
    Shot("editor", KnobEditor, EDITED, seat="live", moment=BEFORE),
    Shot("question", Confirm, ("e", *"262144", "enter"), seat="live", moment=BEFORE),
    Shot("applied", KnobEditor, (*EDITED, "enter", To(AFTER)), seat="live", moment=BEFORE),
    Shot("conflict", KnobEditor, (*KNOB, "e", *"32", To(AFTER), "enter"), seat="live", moment=BEFORE),
    Shot("staged", StagedBox, (*EDITED, "a", *("down",) * 3, "e", *"3e-4", "a", "a"), seat="live",
         moment=BEFORE),
    Shot("limits", LimitsBox, ("t", "s"), seat="live", moment=BEFORE),  # the tuner starts later
)  # fmt: skip


def pictures() -> Iterator[Picture]:
    """Every picture of every shot."""
    for shot in SHOTS:
        for size in shot.sizes:
            for theme in shot.themes:
                yield Picture(shot, size, theme)


async def shoot(picture: Picture) -> str:
    """The SVG of a picture.

    Raises:
        WrongScreenError: the steps do not lead to the screen.
    """
    shot = picture.shot
    async with sitting(shot.seat, theme=picture.theme, size=picture.size, moment=shot.moment) as camera:
        await camera.take(*shot.steps)
        if not isinstance(camera.app.screen, shot.screen):
            raise WrongScreenError(f"{picture.file}: this is {type(camera.app.screen).__name__}")
        return camera.svg()
