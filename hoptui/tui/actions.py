"""Every action of the dashboard. Keys, footer, help page and command palette use this list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from textual.binding import Binding, BindingsMap, BindingType
from textual.keys import KEY_ALIASES, REPLACED_KEYS, Keys, key_to_character

from hoptui.presentation import numbers
from hoptui.settings import KeyBinding, near

Scope = Literal[
    "everywhere",
    "overview",
    "run",
    "gpus",
    "settings",
    "runs",
    "history",
    "tuner",
    "where",
    "output",
    "job",
    "nodes",
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
    "note",
]


class Action(NamedTuple):
    """One action. `keys` are Textual key names, `help` is one sentence.

    `label` is for the footer (empty: not shown). The `[keys]` table of `config.toml` refers to `id`.
    """

    id: str
    scope: Scope
    keys: str
    action: str
    label: str
    help: str


ACTIONS = (
    Action("view.all", "run", "escape", "alone('')", "all panels", "Show all panels"),
    Action("knob.edit", "run", "e", "edit_knob", "edit knob", "Change the chosen knob after this iteration"),
    Action("knob.advice", "run", "o", "advice", "take the advice",
           "Make the first change that the diagnosis advises"),
    Action("knob.undo", "run", "u", "undo", "undo",
           "Revert the last change of a knob"),
    Action("knob.staged", "run", "a", "staged", "staged",
           "Review the staged changes and send them together"),
    Action("view.tuner", "run", "t", "app.tuner", "tuner",
           "Show the tuner of the run; start or stop it there"),
    Action("run.pause", "run", "p", "pause", "pause", "Pause the run after this iteration, or resume it"),
    Action("run.checkpoint", "run", "c", "checkpoint", "checkpoint",
           "Ask the run to write a checkpoint after this iteration"),
    Action("run.stop", "run", "s", "stop", "stop", "Stop the run after this iteration, if you confirm"),
    Action("view.gpus", "run", "d", "gpus", "GPUs", "Show every reading of the run's GPUs, with its meaning"),
    Action("view.history", "run", "h", "app.history", "history",
           "Show every command given to the run, and its effect"),
    Action("view.where", "run", "w", "where", "lines",
           "Show the lines of the script that the time goes to"),
    Action("view.output", "run", "l", "output", "output",
           "Show what the run writes to stdout and stderr"),
    Action("view.notes", "run", "number_sign", "app.notes", "",
           "Show the notes on the run, and add one"),
    Action("view.job", "run", "J", "job", "job",
           "Show the ranks of all nodes of the run: which differ, and which node does not answer"),
    Action("view.details", "run", "i", "details", "",
           "Show what the run is: configuration, results, tags, commit and packages"),
    Action("view.freeze", "run", "space", "freeze", "freeze",
           "Freeze the numbers and charts; the run continues"),
    Action("view.overview", "run", "g,O", "overview", "overview", "Show all GPUs and runs of this node"),
    Action("run.next", "run", "n", "next_run(1)", "next run", "Show the next live run"),
    Action("run.previous", "run", "N", "next_run(-1)", "", "Show the previous live run"),
    Action("view.metric", "run", "m", "next_metric", "metric", "Show the next metric in the learning chart"),
    Action("view.shorter", "run", "plus,equals_sign", "shorter", "",
           "Show a shorter time in the charts"),
    Action("view.longer", "run", "minus", "longer", "", "Show a longer time in the charts"),
    Action("view.alone_throughput", "run", "1", "alone('throughput')", "",
           "Show only throughput; again or esc: all panels"),
    Action("view.alone_learning", "run", "2", "alone('learning')", "", "Show only learning"),
    Action("view.alone_hardware", "run", "3", "alone('hardware')", "", "Show only the hardware"),
    Action("view.alone_phases", "run", "4", "alone('phases')", "", "Show only the phases"),
    Action("view.alone_knobs", "run", "5", "alone('knobs')", "", "Show only the knobs"),
    Action("view.alone_events", "run", "6", "alone('events')", "", "Show only the events"),
    Action("view.alone_tuner", "run", "7", "alone('tuner')", "", "Show only the tuner"),
    Action("view.tab", "run", "tab,v", "next_panel", "knobs/events",
           "Show knobs or events, if there is no room for both"),
    Action("node.history", "overview", "h", "app.history", "history",
           "Show every command given to the runs of this node"),
    Action("view.charts", "run", "slash", "app.charts", "charts",
           "Find any series by a few letters and chart it"),
    Action("node.runs", "overview", "t", "app.runs", "all runs",
           "Show recorded and live runs as a table: filter, sort, and chart several together"),
    Action("runs.mark", "runs", "space", "mark", "mark", "Mark the chosen run for the charts, or unmark it"),
    Action("runs.unmark", "runs", "u", "unmark", "unmark all", "Unmark all runs"),
    Action("runs.charts", "runs", "c", "charts", "charts",
           "Chart the marked runs together, up to eight, or the chosen run"),
    Action("runs.filter", "runs", "slash", "filter", "filter", "Show only runs for which this holds"),
    Action("runs.sort", "runs", "s", "sort", "sort",
           "Sort by a column; choosing it again reverses the order"),
    Action("runs.group", "runs", "b", "group", "group", "Group runs with the same value of a column"),
    Action("runs.back", "runs", "escape,t", "back", "back", "Go back to the previous screen"),
    Action("node.gpus", "overview", "d", "gpus", "GPUs",
           "Show every reading of the chosen GPU, with its meaning"),
    Action("list.other", "overview", "tab", "next_list(1)", "other list",
           "Go to the next list: runs, GPUs, processes on them"),
    Action("list.other_back", "overview", "shift+tab", "next_list(-1)", "",
           "Go to the previous list"),
    Action("process.end", "overview", "x", "end_process", "end process",
           "End the chosen process on a GPU, if you confirm"),
    Action("process.sort", "overview", "s", "sort_processes", "",
           "Sort the processes by the next column: GPU, memory, CPU, SM, pid, command"),
    Action("process.fold", "overview", "space", "fold", "workers",
           "Show the processes that the chosen one has started, or hide them"),
    Action("node.charts", "overview", "slash", "app.charts", "charts",
           "Find any reading by a few letters and chart it"),
    Action("gpu.next", "gpus", "right,l", "step(1)", "next GPU",
           "Show the next GPU; a digit shows the GPU of that number"),
    Action("gpu.previous", "gpus", "left,h", "step(-1)", "", "Show the previous GPU"),
    Action("gpu.panel", "gpus", "tab,v", "next_panel", "more",
           "Show meaning, chart or processes, if there is no room for all"),
    Action("gpu.shorter", "gpus", "plus,equals_sign", "shorter", "",
           "Show a shorter time in the chart"),
    Action("gpu.longer", "gpus", "minus", "longer", "", "Show a longer time in the chart"),
    Action("gpu.charts", "gpus", "slash", "app.charts", "charts",
           "Find any reading by a few letters and chart it"),
    Action("gpu.back", "gpus", "escape,d", "back", "back", "Go back to the previous screen"),
    Action("settings.back", "settings", "escape,f4", "back", "back", "Go back to the previous screen"),
    Action("history.filter", "history", "slash", "filter", "filter",
           "Show only commands that contain these words"),
    Action("history.stage", "history", "s", "next_stage", "stage",
           "Show only commands of one stage; again: the next stage"),
    Action("history.person", "history", "b", "next_person", "person",
           "Show only commands of one user or the tuner; again: the next one"),
    Action("history.copy", "history", "y", "copy", "copy",
           "Copy the shell command that repeats the chosen command"),
    Action("history.notes", "history", "number_sign", "app.notes", "notes",
           "Show the notes on the run, and add one"),
    Action("history.back", "history", "escape,h", "back", "back", "Go back to the previous screen"),
    Action("tuner.start", "tuner", "s", "start", "start",
           "Start the tuner of the run, after a form for its limits"),
    Action("tuner.stop", "tuner", "x", "stop", "stop tuner",
           "Stop the tuner and revert its current trial"),
    Action("tuner.freeze", "tuner", "space", "freeze", "freeze knob",
           "Freeze the chosen knob for the tuner, or release it"),
    Action("tuner.advice", "tuner", "o", "advice", "take the advice",
           "Make the first change that the diagnosis advises"),
    Action("tuner.other", "tuner", "tab", "other", "other list", "Switch between the trials and the knobs"),
    Action("tuner.back", "tuner", "escape,t", "back", "back", "Go back to the previous screen"),
    Action("where.whole", "where", "a", "whole", "whole run",
           "Switch between the last minute and the whole run, from its recording"),
    Action("where.next", "where", "n", "rank(1)", "next rank",
           "Show the next rank; after the last one all ranks"),
    Action("where.previous", "where", "N", "rank(-1)", "", "Show the previous rank"),
    Action("where.back", "where", "escape,w", "back", "back", "Go back to the previous screen"),
    Action("output.filter", "output", "slash", "filter", "filter",
           "Show only lines that contain these words"),
    Action("output.stream", "output", "tab", "other_stream", "other stream",
           "Switch between stdout and stderr, if they go to different places"),
    Action("output.next", "output", "n", "rank(1)", "next rank", "Show the next rank"),
    Action("output.previous", "output", "N", "rank(-1)", "", "Show the previous rank"),
    Action("output.back", "output", "escape,l", "back", "back", "Go back to the previous screen"),
    Action("job.reading", "job", "m", "reading(1)", "reading",
           "Colour the map by the next reading: iteration, own time, waiting, GPU, power, memory, clock"),
    Action("job.reading_back", "job", "M", "reading(-1)", "", "Colour the map by the previous reading"),
    Action("job.panel", "job", "tab,v", "next_panel", "over time",
           "Show the ranks over time or the nodes, if there is no room for both"),
    Action("job.shorter", "job", "plus,equals_sign", "shorter", "", "Show a shorter time in the map"),
    Action("job.longer", "job", "minus", "longer", "", "Show a longer time in the map"),
    Action("job.back", "job", "escape,J", "back", "back", "Go back to the previous screen"),
    Action("nodes.left", "nodes", "left,h", "column(-1)", "", "Go to the node on the left"),
    Action("nodes.right", "nodes", "right,l", "column(1)", "", "Go to the node on the right"),
    Action("limits.less", "limits", "left,h,minus", "turn(-1)", "", "Select the previous value"),
    Action("limits.more", "limits", "right,l,plus", "turn(1)", "change", "Select the next value"),
    Action("limits.start", "limits", "enter", "start", "start", "Start the tuner within these limits"),
    Action("limits.close", "limits", "escape", "close", "close", "Close without starting the tuner"),
    Action("chart.find", "chart", "slash", "find", "find", "Find any series by a few letters and chart it"),
    Action("chart.left", "chart", "left,h", "cross(-1)", "", "Move the crosshair of all charts to the left"),
    Action("chart.right", "chart", "right,l", "cross(1)", "",
           "Move the crosshair of all charts to the right"),
    Action("chart.far_left", "chart", "H,shift+left", "pan(-1)", "",
           "Show an earlier part, by a quarter of the width"),
    Action("chart.far_right", "chart", "L,shift+right", "pan(1)", "",
           "Show a later part, by a quarter of the width"),
    Action("chart.closer", "chart", "plus,equals_sign", "zoom(1)", "zoom",
           "Zoom in to half the x axis, around the crosshair"),
    Action("chart.wider", "chart", "minus", "zoom(-1)", "", "Zoom out to twice the x axis"),
    Action("chart.all", "chart", "a", "all", "all", "Show all history and follow the newest"),
    Action("chart.freeze", "chart", "z,space", "freeze", "freeze",
           "Freeze the visible part, or follow the newest again"),
    Action("chart.live", "chart", "G,end", "live", "", "Follow the newest"),
    Action("chart.axis", "chart", "x", "by_step", "by iteration",
           "Switch the x axis between iterations and time"),
    Action("chart.log", "chart", "y", "log", "log",
           "Switch the value axis of the chosen chart to logarithmic or back"),
    Action("chart.smooth", "chart", "e", "smooth", "smooth",
           "Draw lines as moving averages, or as they are"),
    Action("chart.compare", "chart", "c", "compare", "compare",
           "Compare with one more run or recording, up to eight together"),
    Action("chart.before", "chart", "up,k", "choose(-1)", "", "Choose the previous chart"),
    Action("chart.next", "chart", "down,j,tab", "choose(1)", "", "Choose the next chart"),
    Action("chart.alone", "chart", "enter", "alone", "alone", "Show only the chosen chart, or all again"),
    Action("chart.merge", "chart", "m", "merge", "", "Merge the chosen chart into the previous one"),
    Action("chart.split", "chart", "s", "split", "", "Split the chosen chart into one per series"),
    Action("chart.remove", "chart", "d,delete", "remove", "", "Remove the chosen chart"),
    Action("chart.back", "chart", "escape", "back", "back",
           "Remove the crosshair, or go back to the previous screen"),
    Action("finder.up", "finder", "up", "move(-1)", "", "Go one row up"),
    Action("finder.down", "finder", "down", "move(1)", "", "Go one row down"),
    Action("finder.page_up", "finder", "pageup", "page(-1)", "", "Go one page up"),
    Action("finder.page_down", "finder", "pagedown", "page(1)", "", "Go one page down"),
    Action("finder.take", "finder", "enter", "take", "choose", "Choose the series"),
    Action("finder.together", "finder", "tab", "together", "into the chosen chart",
           "Add the series to the chosen chart"),
    Action("finder.close", "finder", "escape", "close", "close", "Close"),
    Action("list.up", "list", "up,k", "up", "", "Go one row up"),
    Action("list.down", "list", "down,j", "down", "", "Go one row down"),
    Action("list.page_up", "list", "pageup,ctrl+u", "page(-1)", "", "Go one page up"),
    Action("list.page_down", "list", "pagedown,ctrl+d", "page(1)", "", "Go one page down"),
    Action("list.first", "list", "home", "first", "", "Go to the first row"),
    Action("list.last", "list", "end,G", "last", "", "Go to the last row"),
    Action("list.pick", "list", "enter", "pick", "open", "Open, edit or change the chosen one"),
    Action("editor.more", "editor", "up", "step(1)", "more",
           "Select the next greater value of the knob's scale"),
    Action("editor.less", "editor", "down", "step(-1)", "less",
           "Select the next smaller value of the knob's scale"),
    Action("editor.much_more", "editor", "pageup", "leap(1)", "",
           "Select a much greater value, about ten steps"),
    Action("editor.much_less", "editor", "pagedown", "leap(-1)", "",
           "Select a much smaller value, about ten steps"),
    Action("editor.send", "editor", "enter", "send", "send", "Send the value to the run"),
    Action("editor.stage", "editor", "insert", "stage", "stage",
           "Stage the value, to send it together with others"),
    Action("editor.stage_number", "editor", "a", "stage_number", "stage",
           "Stage a typed number"),
    Action("editor.close", "editor", "escape", "close", "close", "Close; a sent value stays sent"),
    Action("staged.send", "staged", "enter", "send", "send all", "Send all staged changes"),
    Action("staged.edit", "staged", "e", "edit", "edit", "Edit the chosen change"),
    Action("staged.remove", "staged", "x,delete", "remove", "remove", "Remove the chosen change"),
    Action("staged.close", "staged", "escape,a", "close", "close", "Close; unsent changes stay staged"),
    Action("filter.keep", "filter", "enter", "keep", "keep", "Keep the filter"),
    Action("filter.drop", "filter", "escape", "drop", "drop", "Restore the previous filter"),
    Action("story.copy", "story", "y", "copy", "copy", "Copy the shell command that repeats this command"),
    Action("story.close", "story", "escape,q,enter", "close", "close", "Go back to the list"),
    Action("confirm.yes", "confirm", "y", "yes", "yes", "Do it"),
    Action("confirm.no", "confirm", "n,escape,q", "no", "no", "Do nothing"),
    Action("text.up", "text", "up,k", "scroll(-1)", "", "Scroll one line up"),
    Action("text.down", "text", "down,j", "scroll(1)", "", "Scroll one line down"),
    Action("text.page_up", "text", "pageup,ctrl+u", "page(-1)", "", "Scroll one page up"),
    Action("text.page_down", "text", "pagedown,ctrl+d,space", "page(1)", "more", "Scroll one page down"),
    Action("text.first", "text", "home", "scroll_to(0)", "", "Go to the beginning"),
    Action("text.last", "text", "end,G", "scroll_to(1)", "", "Go to the end"),
    Action("help.close", "help", "escape,question_mark,q,enter", "close", "close", "Close this page"),
    Action("gpus.fast", "everywhere", "f", "app.sample_fast", "",
           "Sample GPUs ten times a second, or at the usual rate again"),
    Action("replay.play", "replay", "space", "app.play_or_pause", "pause",
           "Play or pause the recording"),
    Action("replay.back", "replay", "left", "app.jump(-10)", "", "Go ten seconds back"),
    Action("replay.ahead", "replay", "right", "app.jump(10)", "10 s", "Go ten seconds ahead"),
    Action("replay.minute_back", "replay", "shift+left", "app.jump(-60)", "", "Go one minute back"),
    Action("replay.minute_ahead", "replay", "shift+right", "app.jump(60)", "", "Go one minute ahead"),
    Action("replay.slower", "replay", "left_square_bracket", "app.change_speed(-1)", "", "Play slower"),
    Action("replay.faster", "replay", "right_square_bracket", "app.change_speed(1)", "faster", "Play faster"),
    Action("replay.go_to", "replay", "g", "app.go_to", "go to", "Go to a time, a share or an iteration"),
    Action("replay.before", "replay", "comma", "app.step_event(-1)", "",
           "Go to the previous event or command"),
    Action("replay.next", "replay", "full_stop", "app.step_event(1)", "next event",
           "Go to the next event or command"),
    Action("replay.start", "replay", "home", "app.to_edge(0)", "", "Go to the beginning of the recording"),
    Action("replay.end", "replay", "end", "app.to_edge(1)", "", "Go to the end of the recording"),
    Action("goto.go", "goto", "enter", "go", "go", "Go there"),
    Action("goto.close", "goto", "escape", "close", "close", "Stay"),
    Action("note.add", "note", "enter", "add", "add", "Add the note that is typed"),
    Action("note.close", "note", "escape", "close", "close", "Close; a note that is not added is lost"),
    Action("hosts.list", "hosts", "H", "app.hosts", "hosts", "Show all hosts and their runs"),
    Action("hosts.again", "hosts", "r", "app.again", "try again",
           "Retry the connection to an unreachable host now"),
    Action("app.theme", "everywhere", "f2", "app.next_theme", "", "Switch to the next colour theme"),
    Action("app.settings", "everywhere", "f4", "app.settings", "",
           "Show the settings and their origin; choose themes and panels"),
    Action("app.help", "everywhere", "question_mark", "app.help", "help",
           "Show the keys of this screen, and explain its contents"),
    Action("app.help_now", "everywhere", "f1", "app.help", "", "Show the help, also while a dialog is open"),
    Action("app.commands", "everywhere", "ctrl+p", "app.command_palette", "commands",
           "Find any action by its name"),
    Action("app.suspend", "everywhere", "ctrl+z", "app.suspend_process", "",
           "Suspend to the shell; fg resumes the dashboard; runs continue"),
    Action("app.leave", "everywhere", "q", "app.leave", "leave", "Quit the dashboard; runs continue"),
    Action("app.leave_now", "everywhere", "ctrl+c,ctrl+q", "app.leave", "",
           "Quit, also while a dialog is open"),
)  # fmt: skip


def of(*scopes: Scope) -> list[Action]:
    """Return the actions of some scopes, in the order of the list."""
    return [action for action in ACTIONS if action.scope in scopes]


def picking(label: str) -> Action:
    """Return the action on the chosen line of a list, with a label for the key bar."""
    return next(action for action in of("list") if action.id == "list.pick")._replace(label=label)


DEFAULT_KEYS: Mapping[str, str] = {action.id: action.keys for action in ACTIONS}
"""The default keys of every action."""

_BEFORE_WIDGETS = (
    "editor",
    "filter",
    "replay",
    "goto",
    "finder",
    "note",
)  # an input or a list would consume the same keys first
BEFORE_ALL = (
    "app.suspend",
    "app.leave_now",
    "app.help_now",
)  # a dialog hides the other keys of the app


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
    """Return keys for display: `?`, `^p`, `space`. Only the first one unless `every`; "" for none."""
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
TYPING: tuple[Scope, ...] = ("editor", "goto", "finder", "filter", "note")
"""Scopes with text input. A typed character is not a key there."""
BOXES: tuple[Scope, ...] = (*TYPING, "staged", "limits", "story", "confirm", "help", "text")
"""Dialogs over a screen, which hide its keys."""
TEXTS: tuple[Scope, ...] = ("help", "story")
"""Dialogs with a text to scroll."""
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
    "note.close",
    "help.close",
)
"""Actions that always have a key: leaving the dashboard and each dialog, and answering a question."""

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
        raise ValueError(f"there is no action {numbers.clean(name, 60)}{near(name, list(_BY_ID))}")
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
        shown = numbers.clean(typed, 40)
        raise ValueError(
            f'there is no key "{shown}" (keys are called like: p, ?, f5, ctrl+x, shift+left, space)'
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
