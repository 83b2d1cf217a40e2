"""Every action of the dashboard: keys, footer, help page and command palette are made from this list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from textual.binding import Binding, BindingsMap, BindingType
from textual.keys import KEY_ALIASES, REPLACED_KEYS, Keys, key_to_character

from hoptui.settings import KeyBinding, near

Scope = Literal[
    "everywhere",
    "overview",
    "run",
    "gpus",
    "settings",
    "history",
    "tuner",
    "limits",
    "chart",
    "finder",
    "list",
    "editor",
    "staged",
    "filter",
    "story",
    "confirm",
    "help",
    "text",
    "hosts",
    "replay",
    "goto",
]


class Action(NamedTuple):
    """`keys` as Textual names them, `label` for the footer (empty: not there), `help` one sentence.

    `id` is what a keymap in the configuration refers to.
    """

    id: str
    scope: Scope
    keys: str
    action: str
    label: str
    help: str


ACTIONS = (
    Action("view.all", "run", "escape", "alone('')", "all panels", "All panels again"),
    Action("knob.edit", "run", "e", "edit_knob", "edit knob", "Change the chosen knob at the next boundary"),
    Action("knob.advice", "run", "o", "advice", "take the advice",
           "Make the first change that the diagnosis advises"),
    Action("knob.undo", "run", "u", "undo", "undo",
           "Set the knob that was changed last back to its value before"),
    Action("knob.staged", "run", "a", "staged", "staged",
           "Look over the staged changes and send them together"),
    Action("view.tuner", "run", "t", "app.tuner", "tuner",
           "What the tuner does to the run; it is started and stopped there"),
    Action("run.pause", "run", "p", "pause", "pause", "Pause the run at its next boundary, or let it go on"),
    Action("run.checkpoint", "run", "c", "checkpoint", "checkpoint",
           "Ask the run to write a checkpoint at its next boundary"),
    Action("run.stop", "run", "s", "stop", "stop", "Stop the run at its next boundary, after a question"),
    Action("view.gpus", "run", "d", "gpus", "GPUs", "Every reading of the run's GPUs, with its meaning"),
    Action("view.history", "run", "h", "app.history", "history",
           "Every command given to the run, and what it did"),
    Action("view.freeze", "run", "space", "freeze", "freeze",
           "Keep the numbers and charts still; the run goes on"),
    Action("view.overview", "run", "g", "overview", "overview", "All GPUs and runs of this node"),
    Action("run.next", "run", "n", "next_run(1)", "next run", "The next run that goes on"),
    Action("run.previous", "run", "N", "next_run(-1)", "", "The run before"),
    Action("view.metric", "run", "m", "next_metric", "metric", "Show the next metric in the learning chart"),
    Action("view.shorter", "run", "plus,equals_sign", "shorter", "",
           "A shorter stretch of time in the charts"),
    Action("view.longer", "run", "minus", "longer", "", "A longer stretch of time in the charts"),
    Action("view.alone_throughput", "run", "1", "alone('throughput')", "",
           "Only throughput; again or esc: all panels"),
    Action("view.alone_learning", "run", "2", "alone('learning')", "", "Only learning"),
    Action("view.alone_hardware", "run", "3", "alone('hardware')", "", "Only the hardware"),
    Action("view.alone_phases", "run", "4", "alone('phases')", "", "Only where an iteration goes"),
    Action("view.alone_knobs", "run", "5", "alone('knobs')", "", "Only the knobs"),
    Action("view.alone_events", "run", "6", "alone('events')", "", "Only the events"),
    Action("view.alone_tuner", "run", "7", "alone('tuner')", "", "Only the tuner"),
    Action("view.tab", "run", "tab,v", "next_panel", "knobs/events",
           "Knobs or events, where there is no room for both"),
    Action("node.history", "overview", "h", "app.history", "history",
           "Every command given to the runs of this node"),
    Action("view.charts", "run", "slash", "app.charts", "charts",
           "Find any series by a few letters and chart it"),
    Action("node.gpus", "overview", "d", "gpus", "GPUs", "Every reading of the chosen GPU, with its meaning"),
    Action("list.other", "overview", "tab", "next_list(1)", "other list",
           "From runs to GPUs to the processes on them, as far as there are any"),
    Action("list.other_back", "overview", "shift+tab", "next_list(-1)", "",
           "From the processes to the GPUs to the runs"),
    Action("process.end", "overview", "x", "end_process", "end process",
           "End the chosen process on a GPU, after a question"),
    Action("node.charts", "overview", "slash", "app.charts", "charts",
           "Find any reading by a few letters and chart it"),
    Action("gpu.next", "gpus", "right,l", "step(1)", "next GPU",
           "The next GPU; a digit goes to the GPU of that number"),
    Action("gpu.previous", "gpus", "left,h", "step(-1)", "", "The GPU before"),
    Action("gpu.panel", "gpus", "tab,v", "next_panel", "more",
           "Meaning, chart or processes, where there is no room for all"),
    Action("gpu.shorter", "gpus", "plus,equals_sign", "shorter", "",
           "A shorter stretch of time in the chart"),
    Action("gpu.longer", "gpus", "minus", "longer", "", "A longer stretch of time in the chart"),
    Action("gpu.charts", "gpus", "slash", "app.charts", "charts",
           "Find any reading by a few letters and chart it"),
    Action("gpu.back", "gpus", "escape,d", "back", "back", "Back to where you came from"),
    Action("settings.back", "settings", "escape,f4", "back", "back", "Back to where you came from"),
    Action("history.filter", "history", "slash", "filter", "filter",
           "Only commands of which these words are said"),
    Action("history.stage", "history", "s", "next_stage", "stage",
           "Only commands that came as far as this, stage by stage"),
    Action("history.person", "history", "b", "next_person", "person",
           "Only commands of one person or the tuner, one after the other"),
    Action("history.copy", "history", "y", "copy", "copy",
           "Copy the line that gives the chosen command again"),
    Action("history.back", "history", "escape,h", "back", "back", "Back to where you came from"),
    Action("tuner.start", "tuner", "s", "start", "start",
           "Let the tuner turn knobs of the run, within limits that are asked for first"),
    Action("tuner.stop", "tuner", "x", "stop", "stop tuner",
           "Stop the tuner; what it is trying now goes back to the values before"),
    Action("tuner.freeze", "tuner", "space", "freeze", "freeze knob",
           "Have the tuner leave the chosen knob alone, or not any more"),
    Action("tuner.advice", "tuner", "o", "advice", "take the advice",
           "Make the first change that the diagnosis advises"),
    Action("tuner.other", "tuner", "tab", "other", "other list", "From the trials to the knobs and back"),
    Action("tuner.back", "tuner", "escape,t", "back", "back", "Back to where you came from"),
    Action("limits.less", "limits", "left,h,minus", "turn(-1)", "", "The value before"),
    Action("limits.more", "limits", "right,l,plus", "turn(1)", "change", "The next value"),
    Action("limits.start", "limits", "enter", "start", "start", "Start the tuner within these limits"),
    Action("limits.close", "limits", "escape", "close", "close", "Close; nothing is started"),
    Action("chart.find", "chart", "slash", "find", "find", "Find any series by a few letters and chart it"),
    Action("chart.left", "chart", "left,h", "cross(-1)", "", "The crosshair of all charts to the left"),
    Action("chart.right", "chart", "right,l", "cross(1)", "", "The crosshair of all charts to the right"),
    Action("chart.far_left", "chart", "H,shift+left", "pan(-1)", "",
           "An earlier part, by a quarter of what is seen"),
    Action("chart.far_right", "chart", "L,shift+right", "pan(1)", "",
           "A later part, by a quarter of what is seen"),
    Action("chart.closer", "chart", "plus,equals_sign", "zoom(1)", "zoom",
           "Half as much of the x axis, around the crosshair"),
    Action("chart.wider", "chart", "minus", "zoom(-1)", "", "Twice as much of the x axis"),
    Action("chart.all", "chart", "a", "all", "all", "All history, and what comes"),
    Action("chart.freeze", "chart", "z,space", "freeze", "freeze",
           "Keep the part that is shown, or follow the newest again"),
    Action("chart.live", "chart", "G,end", "live", "", "Follow the newest"),
    Action("chart.axis", "chart", "x", "by_step", "by iteration", "Iterations on the x axis, or time"),
    Action("chart.log", "chart", "y", "log", "log", "A logarithmic value axis in the chosen chart"),
    Action("chart.compare", "chart", "c", "compare", "compare",
           "Another run or recording beside this one, from the start of both or by iteration"),
    Action("chart.before", "chart", "up,k", "choose(-1)", "", "The chart before"),
    Action("chart.next", "chart", "down,j,tab", "choose(1)", "", "The next chart"),
    Action("chart.alone", "chart", "enter", "alone", "alone", "The chosen chart alone, or all again"),
    Action("chart.merge", "chart", "m", "merge", "", "The series of the chosen chart into the one before"),
    Action("chart.split", "chart", "s", "split", "", "A chart of its own for each series of the chosen one"),
    Action("chart.remove", "chart", "d,delete", "remove", "", "Take the chosen chart away"),
    Action("chart.back", "chart", "escape", "back", "back",
           "Take the crosshair away, or go back to where you came from"),
    Action("finder.up", "finder", "up", "move(-1)", "", "The row above"),
    Action("finder.down", "finder", "down", "move(1)", "", "The row below"),
    Action("finder.page_up", "finder", "pageup", "page(-1)", "", "As many rows up as are shown"),
    Action("finder.page_down", "finder", "pagedown", "page(1)", "", "As many rows down as are shown"),
    Action("finder.take", "finder", "enter", "take", "choose", "Choose it"),
    Action("finder.together", "finder", "tab", "together", "into the chosen chart",
           "Put it into the chosen chart"),
    Action("finder.close", "finder", "escape", "close", "close", "Close"),
    Action("list.up", "list", "up,k", "up", "", "The row above"),
    Action("list.down", "list", "down,j", "down", "", "The row below"),
    Action("list.page_up", "list", "pageup,ctrl+u", "page(-1)", "", "As many rows up as are shown"),
    Action("list.page_down", "list", "pagedown,ctrl+d", "page(1)", "", "As many rows down as are shown"),
    Action("list.first", "list", "home", "first", "", "The first row"),
    Action("list.last", "list", "end,G", "last", "", "The last row"),
    Action("list.pick", "list", "enter", "pick", "open", "Open, edit or change the chosen one"),
    Action("editor.more", "editor", "up", "step(1)", "more", "The next greater value of the knob's scale"),
    Action("editor.less", "editor", "down", "step(-1)", "less", "The next smaller value of the knob's scale"),
    Action("editor.much_more", "editor", "pageup", "leap(1)", "", "About ten times as far up"),
    Action("editor.much_less", "editor", "pagedown", "leap(-1)", "", "About ten times as far down"),
    Action("editor.send", "editor", "enter", "send", "send", "Send the value to the run"),
    Action("editor.stage", "editor", "insert", "stage", "stage",
           "Keep the value, to be sent together with others"),
    Action("editor.stage_number", "editor", "a", "stage_number", "stage",
           "Keep it so where a number is typed"),
    Action("editor.close", "editor", "escape", "close", "close", "Close; what was sent stays sent"),
    Action("staged.send", "staged", "enter", "send", "send all", "Send all of them"),
    Action("staged.edit", "staged", "e", "edit", "edit", "Change the value of the chosen one"),
    Action("staged.remove", "staged", "x,delete", "remove", "remove", "Take the chosen one out"),
    Action("staged.close", "staged", "escape,a", "close", "close", "Close; what is not sent stays staged"),
    Action("filter.keep", "filter", "enter", "keep", "keep", "Keep the filter"),
    Action("filter.drop", "filter", "escape", "drop", "drop", "Go back to the filter of before"),
    Action("story.copy", "story", "y", "copy", "copy", "Copy the line that gives the command again"),
    Action("story.close", "story", "escape,q,enter", "close", "close", "Back to the list"),
    Action("confirm.yes", "confirm", "y", "yes", "yes", "Do it"),
    Action("confirm.no", "confirm", "n,escape,q", "no", "no", "Leave it"),
    Action("text.up", "text", "up,k", "scroll(-1)", "", "A line up"),
    Action("text.down", "text", "down,j", "scroll(1)", "", "A line down"),
    Action("text.page_up", "text", "pageup,ctrl+u", "page(-1)", "", "A page up"),
    Action("text.page_down", "text", "pagedown,ctrl+d,space", "page(1)", "more", "A page down"),
    Action("text.first", "text", "home", "scroll_to(0)", "", "The beginning"),
    Action("text.last", "text", "end,G", "scroll_to(1)", "", "The end"),
    Action("help.close", "help", "escape,question_mark,q,enter", "close", "close", "Close this page"),
    Action("gpus.fast", "everywhere", "f", "app.sample_fast", "",
           "Sample GPUs ten times a second, or at the usual rate again"),
    Action("replay.play", "replay", "space", "app.play_or_pause", "pause",
           "Play the recording, or stand still"),
    Action("replay.back", "replay", "left", "app.jump(-10)", "", "Ten seconds back"),
    Action("replay.ahead", "replay", "right", "app.jump(10)", "10 s", "Ten seconds ahead"),
    Action("replay.minute_back", "replay", "shift+left", "app.jump(-60)", "", "A minute back"),
    Action("replay.minute_ahead", "replay", "shift+right", "app.jump(60)", "", "A minute ahead"),
    Action("replay.slower", "replay", "left_square_bracket", "app.change_speed(-1)", "", "Play slower"),
    Action("replay.faster", "replay", "right_square_bracket", "app.change_speed(1)", "faster", "Play faster"),
    Action("replay.go_to", "replay", "g", "app.go_to", "go to", "Go to a time, a share or an iteration"),
    Action("replay.before", "replay", "comma", "app.step_event(-1)", "", "The event or command before"),
    Action("replay.next", "replay", "full_stop", "app.step_event(1)", "next event",
           "The next event or command"),
    Action("replay.start", "replay", "home", "app.to_edge(0)", "", "The beginning of the recording"),
    Action("replay.end", "replay", "end", "app.to_edge(1)", "", "The end of the recording"),
    Action("goto.go", "goto", "enter", "go", "go", "Go there"),
    Action("goto.close", "goto", "escape", "close", "close", "Stay"),
    Action("hosts.list", "hosts", "H", "app.hosts", "hosts", "All hosts and their runs"),
    Action("hosts.again", "hosts", "r", "app.again", "try again",
           "Try now to reach a host that cannot be reached"),
    Action("app.theme", "everywhere", "f2", "app.next_theme", "", "The next colour theme"),
    Action("app.settings", "everywhere", "f4", "app.settings", "",
           "What is set, and where; themes and panels"),
    Action("app.help", "everywhere", "question_mark", "app.help", "help",
           "The keys that work here, and what is shown"),
    Action("app.help_now", "everywhere", "f1", "app.help", "", "This help while a box is open, too"),
    Action("app.commands", "everywhere", "ctrl+p", "app.command_palette", "commands",
           "Find any action by its name"),
    Action("app.suspend", "everywhere", "ctrl+z", "app.suspend_process", "",
           "Back to the shell for now; fg brings the dashboard back, runs go on"),
    Action("app.leave", "everywhere", "q", "app.leave", "leave", "Leave; runs go on"),
    Action("app.leave_now", "everywhere", "ctrl+c,ctrl+q", "app.leave", "", "Leave while a box is open, too"),
)  # fmt: skip


def of(*scopes: Scope) -> list[Action]:
    """The actions of some scopes, in the order of the list."""
    return [action for action in ACTIONS if action.scope in scopes]


DEFAULT_KEYS: Mapping[str, str] = {action.id: action.keys for action in ACTIONS}
"""The keys of every action where the configuration gives it no others."""

_BEFORE_WIDGETS = (
    "editor",
    "filter",
    "replay",
    "goto",
    "finder",
)  # an input or a list has the same keys and would take them first
BEFORE_ALL = (
    "app.suspend",
    "app.leave_now",
    "app.help_now",
)  # a box hides the keys of the app, but for those that come first


def bindings(*scopes: Scope) -> list[BindingType]:
    """Textual bindings for a class attribute `BINDINGS`."""
    return [
        Binding(
            a.keys,
            a.action,
            a.label or a.help,
            show=bool(a.label),
            id=a.id,
            tooltip=a.help,
            priority=a.scope in _BEFORE_WIDGETS or a.id in BEFORE_ALL,
        )
        for a in of(*scopes)
    ]


_KEYS = {
    "escape": "esc",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "shift+left": "⇧←",
    "shift+right": "⇧→",
    "pageup": "PgUp",
    "pagedown": "PgDn",
}


def key_text(keys: str, *, every: bool = False) -> str:
    """How people read keys: `?`, `^p`, `space`; only the first one, or every one; empty for none."""
    found = [_name(key) for key in keys.split(",")]
    return " ".join(found) if every else found[0]


def _name(key: str) -> str:
    return _KEYS.get(key) or character(key) or key.replace("ctrl+", "^")


def character(key: str) -> str:
    """The character that a key types, by Textual's name of the key; empty if it types none or a blank."""
    typed = key_to_character(REPLACED_KEYS.get(key, key)) or ""
    return typed if typed.isprintable() and typed.strip() else ""


UNBOUND = "no_key"
"""A name that no key has: Textual ignores an empty one and would keep the default."""
TYPING: tuple[Scope, ...] = ("editor", "goto", "finder", "filter")
"""Where characters are typed, so that none of them can be a key."""
BOXES: tuple[Scope, ...] = (*TYPING, "staged", "limits", "story", "confirm", "help", "text")
"""What lies over a screen and hides its keys."""
TEXTS: tuple[Scope, ...] = ("help", "story")
"""Boxes with a text to move in."""
NEEDED = (
    "app.leave_now",
    "confirm.yes",
    "confirm.no",
    "editor.close",
    "staged.close",
    "limits.close",
    "story.close",
    "filter.drop",
    "finder.close",
    "goto.close",
    "help.close",
)
"""There is always a way out, also of every box, and an answer to a question."""

_MODIFIERS = {"ctrl", "shift", "alt"}
_NAMED = {key.value for key in Keys}
_SAME = {other: key for key, others in KEY_ALIASES.items() for other in others}
_BY_ID = {action.id: action for action in ACTIONS}


def settle(asked: Mapping[str, KeyBinding]) -> tuple[dict[str, str], list[str]]:
    """The keys (as Textual names them, "" for none) of the actions with other keys than their own, and the
    refusals.

    There is one line for each refusal. A request is refused as a whole, so that a key never does what another
    action's key is known to do.
    """
    granted: dict[str, str] = {}
    problems = []
    for name, wish in asked.items():
        try:
            granted[name] = _checked(name, wish.keys)
        except ValueError as error:
            problems.append(f"{wish.place}: {error}")
    while granted and (clashes := list(_clashes(granted))):
        for mine, key, other in clashes:
            if mine.id in granted:
                problems.append(
                    f"{asked[mine.id].place}: {key_text(key)} is a key of {other.id} already: "
                    f"{mine.id} keeps {key_text(mine.keys, every=True)}"
                )
        granted = {name: keys for name, keys in granted.items() if name not in {a.id for a, _, _ in clashes}}
    return granted, list(dict.fromkeys(problems))


def for_textual(keymap: Mapping[str, str]) -> dict[str, str]:
    """The same for `App.set_keymap`."""
    return {name: keys or UNBOUND for name, keys in keymap.items()}


def _checked(name: str, wish: str) -> str:
    """The keys of a wish as Textual names them.

    Raises:
        ValueError: there is no such action or key, or it may not be; the text is one clause.
    """
    action = _BY_ID.get(name)
    if action is None:
        raise ValueError(f"there is no action {name}{near(name, list(_BY_ID))}")
    if not wish.strip():
        if name in NEEDED:
            raise ValueError(f"{name} needs a key")
        return ""
    keys = [_key(piece.strip()) for piece in wish.split(",")]
    for key in keys:
        if action.scope in TYPING and character(key) and key not in action.keys.split(","):
            raise ValueError(
                f"{key_text(key)} is a character to type where {name} is: take one with ctrl or alt"
            )
    return ",".join(dict.fromkeys(keys))


def _key(typed: str) -> str:
    """One key as Textual names it, from its name, its character, or `^p`."""
    if len(typed) == 2 and typed[0] == "^":
        typed = f"ctrl+{typed[1].lower()}"
    if not typed:
        raise ValueError('between commas there is a key; that of the comma is called "comma"')
    (key, _), *_ = BindingsMap([Binding(typed, "")])
    *modifiers, base = key.split("+")
    known = base in _NAMED or key in _NAMED or character(base)
    if not known or not _MODIFIERS.issuperset(modifiers):
        raise ValueError(
            f'there is no key "{typed}" (keys are called like: p, ?, f5, ctrl+x, shift+left, space)'
        )
    return _SAME.get(key, key)


def _clashes(granted: Mapping[str, str]) -> Iterator[tuple[Action, str, Action]]:
    """Pairs of actions that would share a key at a time and do not by default: both ways round."""
    for mine in ACTIONS:
        for other in ACTIONS:
            if mine is other or not _meet(mine, other):
                continue
            shared = _keys(mine, granted) & _keys(other, granted)
            if shared and not shared <= _keys(mine, {}) & _keys(other, {}):
                yield mine, min(shared), other


def _keys(action: Action, granted: Mapping[str, str]) -> set[str]:
    return {key for key in granted.get(action.id, action.keys).split(",") if key}


def _meet(a: Action, b: Action) -> bool:
    """Whether both can work at the same time, or one right after the other where that would be dangerous."""
    if a.scope == b.scope or a.id in BEFORE_ALL or b.id in BEFORE_ALL:
        return True
    if "confirm.yes" in (a.id, b.id):  # the key that opens a question must not answer it
        return not {a.scope, b.scope} & set(BOXES) - {"confirm"}
    if "text" in (a.scope, b.scope):
        return bool({a.scope, b.scope} & set(TEXTS))
    if a.scope in BOXES or b.scope in BOXES:
        return False
    return "everywhere" in (a.scope, b.scope) or (
        "list" in (a.scope, b.scope) and "replay" not in (a.scope, b.scope)
    )
