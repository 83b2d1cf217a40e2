"""The preferences of the user: keys, theme, panels, the metric of the chart; and which of them are
remembered.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import structs

from hoptui import settings
from hoptui.settings import Config, Value
from hoptui.tui import actions, themes
from hoptui.tui.actions import DEFAULT_KEYS

HERE = "chosen here"
"""The origin of a choice that ends with this sitting."""


class Hideable(NamedTuple):
    """A panel that can be hidden on a screen with room for all; `id` is `<scope of the screen>.<panel>`."""

    id: str
    label: str

    @property
    def css_class(self) -> str:
        """The class of a screen that hides it: see `styles/hidden.tcss`."""
        return f"-hide-{self.id.replace('.', '-')}"


HIDEABLE = (
    Hideable("run.learning", "learning"),
    Hideable("run.hardware", "hardware"),
    Hideable("run.phases", "where an iteration goes"),
    Hideable("run.events", "events"),
    Hideable("run.tuner", "the tuner"),
    Hideable("overview.power", "power"),
    Hideable("overview.processes", "processes on the GPUs"),
    Hideable("overview.events", "events"),
)


ALONE = ("throughput", "learning", "hardware", "phases", "knobs", "events", "tuner")
"""The panels of a run of which one may be shown alone, by their names on its screen."""


class Preferences:
    """The configuration applied to the existing actions, and the choices of this session.

    `problems` has one line for each problem.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.granted, refused = actions.settle(config.keys)
        self.keymap = {**DEFAULT_KEYS, **self.granted}
        self.problems = (*config.problems, *refused)
        self.metric = config.remembered.metric
        known = {panel.id for panel in HIDEABLE}
        self.hidden = tuple(name for name in config.remembered.hidden if name in known)
        self.alone = config.remembered.alone if config.remembered.alone in ALONE else ""
        self.theme: Value = config.values["theme"]
        self._kept = config.remembered
        self._kind = self.look.kind

    @property
    def look(self) -> themes.Look:
        """How the dashboard is to look on this terminal."""
        return themes.choose(str(self.theme.value), sure=self.theme.origin != "remembered")

    @property
    def at_once(self) -> bool:
        """Whether this sitting can have the chosen look: the terminal was set up for colours of one kind."""
        return self.look.kind == self._kind

    def choose_theme(self, word: str) -> str:
        """Have this theme from now on; one sentence if it is not remembered, or not at once."""
        fixed = self.config.values["theme"].origin
        self.theme = Value(word, HERE)
        if fixed in ("default", "remembered"):
            later = self._remember(theme=word)
        else:
            later = f"{fixed} sets the theme: {word} is only until you leave"
        return later if later or self.at_once else f"{word} from the next start on"

    def choose_metric(self, name: str) -> str:
        """Show this metric in the learning chart, also for later runs that have it. Returns a sentence if it
        is not remembered.
        """
        if name == self.metric:
            return ""
        self.metric = name
        return self._remember(metric=name)

    def hide_or_show(self, panel: str) -> str:
        """Hide a panel, or show it again; one sentence if that is not remembered."""
        hide = panel not in self.hidden
        self.hidden = (*self.hidden, panel) if hide else tuple(one for one in self.hidden if one != panel)
        return self._remember(hidden=self.hidden)

    def choose_alone(self, panel: str) -> str:
        """Show only this panel of a run, also for later runs; "" shows all. Returns a sentence if it is not
        remembered.
        """
        if panel == self.alone:
            return ""
        self.alone = panel
        return self._remember(alone=panel)

    def origin(self, choice: str) -> str:
        """Where a choice comes from: `remembered`, `chosen here` or `default`.

        `choice` is `metric`, `alone` (the panel that is shown alone) or the id of a panel.
        """
        if choice == "metric":
            made, kept = bool(self.metric), self.metric == self._kept.metric
        elif choice == "alone":
            made, kept = bool(self.alone), self.alone == self._kept.alone
        else:
            made = choice in self.hidden
            kept = made == (choice in self._kept.hidden)
        return ("remembered" if made else "default") if kept else HERE

    def _remember(self, **fields: str | tuple[str, ...]) -> str:
        if self.config.choices is None:
            return ""
        problem = settings.remember(self.config.choices, **fields)
        if problem:
            return f"not remembered: {problem}"
        self._kept = structs.replace(self._kept, **fields)
        return ""
