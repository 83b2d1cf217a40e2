"""Every action of the dashboard, once: keys, footer, help page and command palette are made from this list."""

from __future__ import annotations

from typing import Literal, NamedTuple

from textual.binding import Binding, BindingType

Scope = Literal[
    "everywhere", "overview", "run", "gpus", "list", "editor", "confirm", "help", "replay", "goto"
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
    Action("knob.edit", "run", "e", "edit_knob", "edit knob", "Change the chosen knob at the next boundary"),
    Action("knob.undo", "run", "u", "undo", "undo", "Set the knob that was changed last back to its value before"),
    Action("run.pause", "run", "p", "pause", "pause", "Pause the run at its next boundary, or let it go on"),
    Action("run.checkpoint", "run", "c", "checkpoint", "checkpoint", "Ask the run to write a checkpoint at its next boundary"),
    Action("run.stop", "run", "s", "stop", "stop", "Stop the run at its next boundary, after a question"),
    Action("view.gpus", "run", "d", "gpus", "GPUs", "Every reading of the run's GPUs, with its meaning"),
    Action("view.freeze", "run", "space", "freeze", "freeze", "Keep the numbers and charts still; the run goes on"),
    Action("view.overview", "run", "g", "overview", "overview", "All GPUs and runs of this node"),
    Action("view.metric", "run", "m", "next_metric", "metric", "Show the next metric in the learning chart"),
    Action("view.shorter", "run", "plus,equals_sign", "shorter", "", "A shorter stretch of time in the charts"),
    Action("view.longer", "run", "minus", "longer", "", "A longer stretch of time in the charts"),
    Action("view.tab", "run", "tab,v", "next_panel", "knobs/events", "Knobs or events, where there is no room for both"),
    Action("node.gpus", "overview", "d", "gpus", "GPUs", "Every reading of the chosen GPU, with its meaning"),
    Action("gpu.next", "gpus", "right", "step(1)", "next GPU", "The next GPU; a digit goes to the GPU of that number"),
    Action("gpu.previous", "gpus", "left", "step(-1)", "", "The GPU before"),
    Action("gpu.panel", "gpus", "tab,v", "next_panel", "more", "Meaning, chart or processes, where there is no room for all"),
    Action("gpu.shorter", "gpus", "plus,equals_sign", "shorter", "", "A shorter stretch of time in the chart"),
    Action("gpu.longer", "gpus", "minus", "longer", "", "A longer stretch of time in the chart"),
    Action("gpu.back", "gpus", "escape,d", "back", "back", "Back to where you came from"),
    Action("list.up", "list", "up,k", "up", "", "The row above"),
    Action("list.down", "list", "down,j", "down", "", "The row below"),
    Action("list.first", "list", "home", "first", "", "The first row"),
    Action("list.last", "list", "end", "last", "", "The last row"),
    Action("list.pick", "list", "enter", "pick", "open", "Open the chosen run or GPU, or edit the chosen knob"),
    Action("editor.more", "editor", "up", "step(1)", "more", "The next greater value of the knob's scale"),
    Action("editor.less", "editor", "down", "step(-1)", "less", "The next smaller value of the knob's scale"),
    Action("editor.send", "editor", "enter", "send", "send", "Send the value to the run"),
    Action("editor.close", "editor", "escape", "close", "close", "Close; what was sent stays sent"),
    Action("confirm.yes", "confirm", "y", "yes", "yes", "Do it"),
    Action("confirm.no", "confirm", "n,escape,q", "no", "no", "Leave it"),
    Action("help.close", "help", "escape,question_mark,q,enter,space", "close", "close", "Close this page"),
    Action("gpus.fast", "everywhere", "f", "app.sample_fast", "", "Sample GPUs ten times a second, or at the usual rate again"),
    Action("replay.play", "replay", "space", "app.play_or_pause", "pause", "Play the recording, or stand still"),
    Action("replay.back", "replay", "left", "app.jump(-10)", "", "Ten seconds back"),
    Action("replay.ahead", "replay", "right", "app.jump(10)", "10 s", "Ten seconds ahead"),
    Action("replay.minute_back", "replay", "shift+left", "app.jump(-60)", "", "A minute back"),
    Action("replay.minute_ahead", "replay", "shift+right", "app.jump(60)", "", "A minute ahead"),
    Action("replay.slower", "replay", "left_square_bracket", "app.change_speed(-1)", "", "Play slower"),
    Action("replay.faster", "replay", "right_square_bracket", "app.change_speed(1)", "faster", "Play faster"),
    Action("replay.go_to", "replay", "g", "app.go_to", "go to", "Go to a time, a share or an iteration"),
    Action("replay.before", "replay", "comma", "app.step_event(-1)", "", "The event or command before"),
    Action("replay.next", "replay", "full_stop", "app.step_event(1)", "next event", "The next event or command"),
    Action("replay.start", "replay", "home", "app.to_edge(0)", "", "The beginning of the recording"),
    Action("replay.end", "replay", "end", "app.to_edge(1)", "", "The end of the recording"),
    Action("goto.go", "goto", "enter", "go", "go", "Go there"),
    Action("goto.close", "goto", "escape", "close", "close", "Stay"),
    Action("app.theme", "everywhere", "f2", "app.next_theme", "", "The next colour theme"),
    Action("app.help", "everywhere", "question_mark", "app.help", "help", "Keys, symbols and words"),
    Action("app.commands", "everywhere", "ctrl+p", "app.command_palette", "commands", "Find any action by its name"),
    Action("app.leave", "everywhere", "q", "app.leave", "leave", "Leave; runs go on"),
    Action("app.leave_now", "everywhere", "ctrl+c,ctrl+q", "app.leave", "", "The same, while a box is open too"),
)  # fmt: skip


def of(*scopes: Scope) -> list[Action]:
    """The actions of some scopes, in the order of the list."""
    return [action for action in ACTIONS if action.scope in scopes]


_BEFORE_WIDGETS = (
    "editor",
    "replay",
    "goto",
)  # an input or a list has the same keys and would take them first
_BEFORE_ALL = ("app.leave_now",)  # a box hides the keys of the app, but for those that come first


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
            priority=a.scope in _BEFORE_WIDGETS or a.id in _BEFORE_ALL,
        )
        for a in of(*scopes)
    ]


_KEYS = {
    "question_mark": "?",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "escape": "esc",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "shift+left": "⇧←",
    "shift+right": "⇧→",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "comma": ",",
    "full_stop": ".",
}


def key_text(keys: str, *, every: bool = False) -> str:
    """How people read keys: `?`, `^p`, `space`; only the first one, or every one."""
    found = [_KEYS.get(key, key.replace("ctrl+", "^")) for key in keys.split(",")]
    return " ".join(found) if every else found[0]
