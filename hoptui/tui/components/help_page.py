"""The help page of a screen: its keys, what it shows, where that comes from, and what is good. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hoptui.presentation import tuner, vocabulary
from hoptui.presentation.gpu_readings import GPU
from hoptui.presentation.readings import DERIVED, HOST, PROCESS, Meaning
from hoptui.tui.actions import ACTIONS, Action, key_text
from hoptui.tui.styled_text import Line, Span, pack

TITLES: Mapping[str, str] = {
    "run": "On this run",
    "overview": "On the overview",
    "gpus": "On a GPU",
    "chart": "On the charts",
    "hosts": "With several hosts",
    "settings": "In the settings",
    "finder": "In the search",
    "help": "On this page",
    "goto": "In this box",
    "note": "In the notes",
    "list": "In a list",
    "text": "In a text",
    "editor": "In the knob editor",
    "staged": "In the staged changes",
    "runs": "On the table of runs",
    "history": "On the history",
    "tuner": "On the tuner",
    "where": "On the lines",
    "output": "On the output",
    "job": "On the nodes of a run",
    "nodes": "On the map of nodes",
    "limits": "While limits are chosen",
    "filter": "While a filter is typed",
    "story": "In the story of a command",
    "confirm": "In this question",
    "replay": "In a replay",
    "everywhere": "Everywhere",
}
_GLANCE = (
    "busy",
    "sm_active",
    "tensor_active",
    "dram_active",
    "power_w",
    "memory_used_bytes",
    "temperature_c",
    "memory_temperature_c",
    "sm_clock_mhz",
    "throttle",
)
_NODE = (*(GPU[name] for name in _GLANCE), *HOST.values())
READINGS: Mapping[str, Sequence[Meaning]] = {
    "run": (*(GPU[name] for name in _GLANCE), *DERIVED.values(), *PROCESS.values(), *HOST.values()),
    "overview": _NODE,
    "gpus": (*GPU.values(), *DERIVED.values()),
    "chart": (*GPU.values(), *DERIVED.values(), *PROCESS.values(), *HOST.values()),
}
SYMBOLIC = (
    "run",
    "overview",
    "gpus",
    "chart",
    "hosts",
    "runs",
    "history",
    "story",
    "tuner",
    "editor",
    "staged",
)
"""Where runs or commands are shown with their symbols."""
_UNKNOWN = ("–", "Unknown: never zero, and never the last value kept alive. A gap in a chart is the same.")
_FADED = ("faded", "Old: the link is down, the run does not answer or has ended. The header says which.")
NOTES: Mapping[str, Sequence[tuple[str, str]]] = {
    "run": (
        _UNKNOWN,
        _FADED,
        ("throughput", "The rate that the run declares as its headline, by the iterations of the last "
         "seconds."),
        ("+6.1 % ± 1.2", "What the last change of a knob did to the throughput, from the iterations before "
         "and after it; the ± is wide enough to be right 95 times in 100. Good: the gain is larger than its "
         "±."),
        ("no detectable", "The change is smaller than its ± and cannot be separated from noise. It "
         "may be nothing, or little."),
        ("too uneven", "The speed varied so much that even twice of it would not be separated from noise."),
        ("ETA", "Iterations that are left, times the seconds of one now. A change of a knob changes it."),
        ("phases", "Where the time of an iteration goes, by the marks that the run sets (run.phase). Good: "
         "the phase that does the learning takes most of it."),
        ("computes", "Where the time goes: what the training thread does and at which lines of the script, "
         "from samples of its stack in the last minute. A run without phases has only them."),
        ("SM 71 %", "Beside a phase: how busy the GPUs are during it. Only samples whose whole window lies "
         "within the phase count, at least five. Shorter phases are unknown; faster sampling shows more."),
        ("⚠ busy ≥ 90 %", "A target that a user has set (hoptui target), with the mean over half a minute of "
         "training on the worst GPU. ✓ is met, ? is not known. Setup, pauses, evaluations and checkpoints do "
         "not count."),
        ("▸", "What takes most of an iteration, measured over the newest ones: where to look first. Dimmed: "
         "of the time that is named."),
        ("over time", "With room for it the shares of the phases are stacked over time, each a mean over as "
         "long as the title says. Blank: no iteration is known there, or a knob was changed (┆)."),
        ("T", "On a mark in a chart (┆): the tuner made that change, not a user."),
        ("N", "On a mark in a chart of the charts screen: a note of a user."),
        ("◷ 4 → 8", "A change on its way. The value in effect is the old one until the run has read the new "
         "one back."),
        ("learning", "What the run logs, by its own names: what they mean and what is good, only the run's "
         "author knows."),
    ),
    "overview": (
        _UNKNOWN,
        _FADED,
        ("SM of a process", "The SM time that the driver books on it: coarse, but it separates neighbours "
         "(nvmlDeviceGetProcessUtilization)."),
        ("pid", "As the driver counts. In a container that is the machine's count, not the container's; then "
         "the user and the command are unknown here."),
    ),
    "gpus": (_UNKNOWN, _FADED),
    "runs": (
        _UNKNOWN,
        ("best", "The least of a loss or an error, the greatest of a return, an accuracy or a rate, over the "
         "whole run. Left out where the name does not decide which end is better."),
        ("columns", "Beside its own columns, the table shows the configuration as far as it differs between "
         "the runs, while there is room."),
        ("filter", "A column, one of = != < <= > >= ~, and a value. A word alone is a part of the name."),
    ),
    "chart": (
        _UNKNOWN,
        _FADED,
        ("12…40", "The least and the greatest value in what one column of dots stands for: no spike is lost, "
         "however far out."),
        ("crosshair", "What each series was there: the newest value at or before it, unless nothing came for "
         "long."),
        ("┆", "A knob that was changed, or an event. With a T: the tuner changed it. With a !: a warning or "
         "an alarm."),
        ("log", "A value that is not above zero lies on the bottom edge."),
        ("beside", "Other runs from their recordings. By time all begin at once; by iteration what was done "
         "again after a restart counts once."),
        ("dashed", "The fifth to the eighth run. The gaps between dashes have one length; other gaps are "
         "unknown values. With three runs or more, a chart of several series shows this run alone: split "
         "it."),
        ("mouse", "The wheel zooms, dragging moves, a click sets the crosshair."),
    ),
    "editor": (
        ("speed only", "Only the speed may change. What is learned stays the same."),
        ("changes what is learned", "From there on training differs from that of an unchanged run."),
        *((name, f"{sentence}.") for name, sentence in vocabulary.COSTS.items()),
        ("keeps", "What the run declared to stay as it is, and what another knob becomes by it. The run has "
         "the last word."),
        ("implies", "What the value makes of other sizes, as the run declared it. The run has the last "
         "word."),
        ("memory", "What the run held when it had this very value before. Nothing is extrapolated: else it "
         "is unknown."),
    ),
    "staged": (
        ("together", "They reach the run within a moment of each other, mostly within the same iteration; "
         "each has its own end."),
    ),
    "tuner": (
        ("speed knobs", "The tuner changes knobs that affect only the speed. It changes one that affects "
         "what is learned only if you allow it, and never one that costs a restart."),
        ("trial", "A change that is kept if the run is clearly faster, and else reverted."),
        ("+6.1 % ± 1.2", "What a trial did to the throughput; the ± is wide enough to be right 95 times in "
         "100."),
        ("left alone", "The tuner does not change this knob: a user asked for it here, or set it by hand."),
        ("spent", "What trials have cost of their budget: a share of the time in which the run trains, of an "
         "hour while that is less."),
        ("lost", "The work that the run would have done in the time that trials cost."),
        ("energy", "The joules of the GPUs for the same work, before and after, if you tune for energy."),
        ("saved", "The joules saved since the change. Work after the tuner has stopped is not counted."),
        ("interrupted", "Another change or event ended the trial early, so its effect is unknown."),
        ("unfinished", "The run or the daemon ended in the middle of it."),
        *((f"{word.symbol} {word.text}", f"{tuner.STANDS_FOR[stand].capitalize()}.")
          for stand, word in tuner.STANDS.items()),
    ),
    "history": (
        ("throughput", "The medians before and after a change, in the run's own unit."),
        ("+6.1 % ± 1.2", "What the change did to it; the ± is wide enough to be right 95 times in 100."),
        ("no detectable", "The change is smaller than its ± and cannot be separated from noise. It "
         "may be nothing, or little."),
        ("too uneven", "The speed varied so much that even twice of it would not be separated from noise."),
        ("together with", "Changes that apply together have one effect. The share of each is unknown."),
        ("older", "The newest 2 000 are listed; where there may be more, the end of the list reads those "
         "before from the recordings."),
        ("copy", "The terminal is asked to copy (OSC 52); some refuse, so the line is shown as well."),
    ),
    "where": (
        ("share", "Of all samples of the stack of the training thread. The line is the innermost one of the "
         "script; in brackets is what it calls most often."),
        ("waits", "For the GPU: what is called may wait for it (.item(), .cpu(), synchronize). For other "
         "ranks: a collective."),
        ("computes", "Modules, autograd and optimizers. With a GPU, they launch kernels."),
        ("most on", "The rank with the greatest share at a line, if that is much greater than that of all "
         "ranks."),
        ("whole run", "From the recording, which has the samples minute by minute. In a replay, up to the "
         "position."),
    ),
    "output": (
        ("file", "The daemon reads the file that stdout or stderr goes to, as nohup, sbatch and > log.txt "
         "make one. It does nothing to the process."),
        ("copied", "hoptui run --output has started the run: its Python code also passes on what it writes. "
         "What libraries in C write is missing."),
        ("follows", "The cursor is on the last line and stays there. Move it up to stop that."),
        ("kept", "The newest 2 000 lines, from the newest 256 KiB. Output is not recorded."),
    ),
    "job": (
        _UNKNOWN,
        _FADED,
        ("map", "A line for each node, a cell for each rank. The shade is the reading in the title; the "
         "lower border says what it means. A cell of several ranks has the most remarkable one."),
        ("own time", "The time of an iteration without waiting for other ranks, by stack samples. Where "
         "ranks wait for each other, all iterations take as long as those of the slowest, and own time "
         "names it."),
        ("◌ silent", "The node has not reported for five seconds. Its ranks are as they were last, and do "
         "not count in medians and totals."),
        ("– missing", "The node has never reported."),
        ("what differs", "Each rank is compared with the median of all, over the last ten seconds: own "
         "time, clocks, links and progress."),
        ("rank 0 reports", "The throughput as rank 0 logs it. Whether that is of one rank or of all, only "
         "the author of the script knows."),
        ("open", "The dashboard of a node, over ssh from this machine. Leaving it leads back here."),
    ),
    "filter": (
        ("words", "All of them must be in what is said of a command: the knob, its values, how far it came, "
         "who gave it and why."),
    ),
    "finder": (
        ("letters", "What has all letters of each typed word in their order. What has a word that begins so "
         "comes first."),
    ),
    "settings": (
        ("set by", "An option of the command line is stronger than the environment, that than config.toml, "
         "and that than what was chosen here and is remembered."),
        ("keys", "Any action has another key by its id, below [keys] in config.toml: \"run.pause\" = "
         "\"f5\"."),
    ),
}  # fmt: skip
KEYS, LABELS = 16, 17
LEAST = 20  # cells for a sentence beside a term


class HelpPage(NamedTuple):
    """The parts of a page: `sections` has, by scope, each action with its keys and whether it works now.

    `scopes` gives their order.
    """

    scopes: tuple[str, ...]
    sections: tuple[tuple[str, tuple[tuple[Action, bool], ...]], ...]


def page(
    active: Iterable[tuple[str, str]], keymap: Mapping[str, str], *, read_only: bool = False
) -> HelpPage:
    """The page of a screen with these active bindings: (key, id of the action).

    It has all actions of the active scopes and marks those that do not work now. A key that another action
    has taken (in a replay) is left out. If nothing may be sent, it has only the actions that work.
    """
    keys: dict[str, list[str]] = {}
    for key, name in active:
        keys.setdefault(name, []).append(key)
    taken = {key for found in keys.values() for key in found}
    picking = keys.pop("list.pick", [])
    scopes = tuple(dict.fromkeys(action.scope for action in ACTIONS if action.id in keys))
    if picking:
        keys.setdefault(_picker(picking, keymap, scopes), []).extend(picking)
    sections = []
    for scope in sorted(scopes, key=lambda scope: (scope == "everywhere", scope in ("list", "text"))):
        found = []
        for action in (a for a in ACTIONS if a.scope == scope):
            own = keymap[action.id].split(",")
            left = [key for key in own if key in keys.get(action.id, ())]
            idle = [key for key in own if key and key not in taken]
            if left or (idle and not read_only):
                found.append((action._replace(keys=",".join(left or idle)), bool(left)))
        sections.append((TITLES.get(scope, f"In {scope}"), tuple(found)))
    return HelpPage(scopes, tuple(sections))


def _picker(picking: list[str], keymap: Mapping[str, str], scopes: Sequence[str]) -> str:
    """The action of the keys that pick in a list: in the list of a dialog it is an action of the dialog, if
    there is one.
    """
    own = (
        a.id for a in ACTIONS if a.scope in scopes and not set(picking).isdisjoint(keymap[a.id].split(","))
    )
    return next(own, "list.pick")


def lines(page: HelpPage, width: int) -> list[Line]:
    """The whole page: keys, what the screen shows, symbols."""
    found: list[Line] = []
    for title, actions in page.sections:
        found += [_heading(title), *(line for one in actions for line in _key(*one, width)), ()]
    notes = [note for scope in page.scopes for note in NOTES.get(scope, ())]
    if notes:
        found.append(_heading("What is shown"))
        found += [line for term, sentence in notes for line in _wrapped(term, sentence, width)]
        found.append(())
    readings = next((READINGS[scope] for scope in page.scopes if scope in READINGS), ())
    if readings:
        found.append(_heading("What the readings mean"))
        for meaning in readings:
            found += _reading(meaning, width)
    if any(scope in SYMBOLIC for scope in page.scopes):
        found += [*([()] if readings else []), *_symbols(width)]
    return found if not found or found[-1] else found[:-1]


def _heading(title: str) -> Line:
    return (Span(title, "title"),)


def _key(action: Action, works: bool, width: int) -> list[Line]:
    keys, ink = key_text(action.keys, every=True), "" if works else "faint"
    said = action.help if works else f"(not now) {action.help}"
    return _wrapped(keys, said, width, ink, ink or "key", KEYS)


def _wrapped(
    term: str, sentence: str, width: int, ink: str = "", of_term: str = "key", column: int = LABELS
) -> list[Line]:
    """A term and its sentence beside it, or below where there is no room beside."""
    indent = _indent(width, column)
    folded: list[Line] = [
        (Span("", width=indent), Span(line, ink)) for line in _folded(sentence, width - indent)
    ]
    if len(term) < indent:
        return [(Span(term, of_term, indent), *line[1:]) for line in folded[:1]] + folded[1:]
    return [(Span(term, of_term),), *folded]


def _indent(width: int, column: int) -> int:
    """Where sentences begin: after a column of terms, unless that leaves them too little."""
    return column if width >= column + LEAST else 2


def _folded(sentence: str, width: int) -> list[str]:
    return textwrap.wrap(sentence, max(LEAST, width)) or [""]


def _reading(meaning: Meaning, width: int) -> list[Line]:
    """Name and a few words; the whole of it; its source; what good looks like."""
    found = _wrapped(meaning.label, meaning.long, width)
    indent = _indent(width, LABELS)
    for label, said, ink in (("from", meaning.source, "dim"), ("good", meaning.good, "good")):
        if said:
            found += [
                (Span("", width=indent), Span(f"{label if not i else '':5}", "dim"), Span(line, ink))
                for i, line in enumerate(_folded(said, width - indent - 5))
            ]
    return found


def _symbols(width: int) -> list[Line]:
    stages = [vocabulary.STAGES[stage] for stage in ("sent", "scheduled", "applied", "rejected")]
    found: list[Line] = [_heading("Symbols")]
    for label, shown in (("runs", vocabulary.STATES.values()), ("commands", stages)):
        indent = _indent(width, LABELS)
        folded = pack((_symbol(word) for word in shown), max(LEAST, width - indent), "  ")
        if indent < LABELS:
            found.append((Span(label, "dim"),))
        found += [
            (Span(label if indent == LABELS and not i else "", "dim", indent), *line)
            for i, line in enumerate(folded)
        ]
    return found


def _symbol(word: vocabulary.Word) -> Line:
    return Span(f"{word.symbol} ", "key"), Span(word.text)
