"""The two lines at the top of a run: its name and progress, and a banner for what is urgent."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from hoptui.domain.enumerations import ByValue
from hoptui.model.runs import failed
from hoptui.presentation import numbers, sentences, vocabulary
from hoptui.presentation.sentences.runs import NONE_ENDED
from hoptui.presentation.vocabulary import Word
from hoptui.protocol.messages import State
from hoptui.tui.components import figures, gpus
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import FULL, GAP, HALF, TRACK, Line, Span, width_of

INKS: dict[State, str] = ByValue(
    {
        "live": "good",
        "busy": "warn",
        "paused": "warn",
        "unresponsive": "warn",
        "exited": "stale",
    },
    lambda _: "warn",
)
AGED_S = 3.0
"""An answer is due every second. An older one is late."""
RESTART_SHOWN_S = 30.0
USUAL_HZ = 2.0


class Banner(NamedTuple):
    """An urgent message in one sentence, and a short form if it is long."""

    symbol: str
    text: str
    ink: str
    short: str = ""

    def said(self, width: int) -> str:
        """The sentence where it fits."""
        return self.short if self.short and len(self.text) > width else self.text


def identity(view: View, name: str, width: int, *, frozen: bool = False) -> Line:
    """`hoptui  ppo-cartpole · gpu07 · restart 1 … ● live  iteration 1 204 / 5 000  2 h 14 m  ETA 3 h 2 m`."""
    for shown in (("host", "eta"), ("eta",), ()):  # the optional parts that fit
        line = _identity(view, name, width >= 110, frozen, shown)
        if width_of(line) <= width:
            break
    return line


def _identity(view: View, name: str, wide: bool, frozen: bool, shown: Collection[str]) -> Line:
    run, node = view.run, view.node
    left = [Span(" hoptui  ", "title")] if wide else [Span(" ")]
    place = f"{numbers.clean(view.link.node, 30)}/" if view.link.node else ""
    left += [Span(place, "dim"), Span(numbers.clean(run.name if run else name, 40), "strong")]
    if "host" in shown and node is not None and node.host and not place:
        left.append(Span(f" · {numbers.clean(node.host, 30)}", "dim"))
    if run is not None and run.epoch > 1:
        left.append(Span(f" · {vocabulary.restart(run.epoch)}", "dim"))
    right = [GAP, Span("  "), *state(view), *_how_far(view, wide, eta="eta" in shown)]
    right += rate(view)
    if frozen:
        right.append(Span("   view frozen", "warn"))
    if wide and node is not None and node.viewers > 1:
        right.append(Span(f"   {node.viewers} viewers", "dim"))
    return (*left, *right, Span(" "))


def titled(name: str, page: str) -> Line:
    """The left of a screen that is not the run's own: `hoptui  ppo-cartpole · gpu07 · history`."""
    return Span(" hoptui  ", "title"), Span(name, "strong"), Span(page, "dim")


def of_run(view: View, asked: str, page: str) -> Line:
    """The first line of a screen on the run with the id `asked`, or on all runs of the node without one."""
    gone = f"run {asked}, which is no longer known" if asked else "all runs"
    host = f" · {numbers.clean(view.node.host, 30)}" if view.node and view.node.host else ""
    name = numbers.clean(view.run.name if view.run else gone, 60)
    return *titled(name, f"{host} · {page}"), GAP, *corner(view)


def corner(view: View) -> Line:
    """Its right part: the state of the run, or of an unusual link to the node, and the clock."""
    stated = view.run is not None or view.replay is not None or view.link.state != "live"  # else no state
    clock = Span(f"   {numbers.clock(view.wall)} ", "dim")
    return *(state(view) if stated else ()), *rate(view), clock


def state(view: View) -> Line:
    """`● live`, or in a replay `▶ replay 20×`: the symbol and the word."""
    if view.replay is not None:
        word = vocabulary.PLAYING if view.replay.playing else vocabulary.HALTED
        speed = f" {view.replay.speed:g}×" if view.replay.playing else ""
        return (Span(f"{word.symbol} {word.text}{speed}", "title"),)
    word, ink = _state(view)
    return (Span(f"{word.symbol} {word.text}", ink),)


def rate(view: View) -> Line:
    """`ssh 24 ms` for another node; `10 Hz` while GPUs are sampled faster; `read-only` if nothing can be
    sent.
    """
    hz = view.node.hz if view.node else 0.0
    fast = (*link(view), Span(f"   {hz:g} Hz", "warn")) if hz > USUAL_HZ else link(view)
    return *fast, *restraint(view)


def restraint(view: View) -> Line:
    """Return `read-only` if nothing can be sent; empty in a replay, where that is obvious."""
    return (Span("   read-only", "mark"),) if view.read_only and view.replay is None else ()


def link(view: View) -> Line:
    """The link to another node: `ssh 24 ms`; `ssh 24 ms, slow link, 1 s old`; `ssh, 5 s old` while no answer
    arrives.

    Empty for this node.
    """
    if not view.link.node or view.link.state != "live":
        return ()
    age, trip = view.link.age_s(view.clock), view.link.round_trip_ms
    if age is not None and age >= AGED_S:
        return (Span(f"   ssh, {numbers.duration(age)} old", "warn"),)
    far = f" {trip:.0f} ms" if trip is not None else ""
    old = f", {numbers.duration(age)} old" if age is not None and age >= 1.0 else ""
    return Span(f"   ssh{far}", "dim"), Span(f", slow link{old}" if view.link.slow else "", "warn")


def progress(view: View, width: int) -> Line:
    """The banner if there is one, else the progress of the run; a plain rule if its length is unknown."""
    shout = banner(view)
    if shout is not None:
        said = shout.said(width - len(shout.symbol) - 2)
        return Span(f" {shout.symbol} ", shout.ink), Span(said, shout.ink), GAP
    done = _done(view)
    if done is None:
        return (Span(TRACK * width, "track"),)
    label = f" {numbers.percent(done)} "
    halves = round((width - len(label)) * 2 * min(max(done, 0.0), 1.0))
    full = FULL * (halves // 2) + HALF * (halves % 2)
    return Span(full, "1"), Span(TRACK * (width - len(label) - len(full)), "track"), Span(label, "dim")


def banner(view: View) -> Banner | None:
    """Return the most important problem or unusual state, None without one."""
    to = view.link
    match to.state:
        case "failed":
            return Banner("✕", numbers.clean(to.reason or "the daemon cannot be reached"), "bad")
        case "connecting":
            return Banner("◌", figures.missing_reason(view) or "connecting to the daemon", "warn")
        case "lost":
            since = numbers.duration(max(0.0, view.clock - to.since))
            reason = f" ({numbers.clean(to.reason)})" if to.reason else ""
            what, then = (
                f"link to {to.node or 'the daemon'} lost {since} ago",
                "training does not need it, reconnecting",
            )
            return Banner("◌", f"{what}{reason}: {then}", "warn", f"{what}: {then}")
    run, vital = view.run, view.vital
    if run is None:
        return _of_node(view)
    if view.exited:
        word = vocabulary.STATES["exited"]
        when = f" at {numbers.clock(run.exited_wall)}" if run.exited_wall else ""
        at = f", after {numbers.counted(vital.step, 'iteration')}" if vital else ""
        said = f"{vocabulary.state_text(vital, run)}{when}"
        return Banner(word.symbol, said + at, "bad" if failed(run) else "warn", said)
    if vital is not None and vital.state != "live":
        whole, brief = _explained(view)
        return Banner(vocabulary.STATES[vital.state].symbol, whole, INKS[vital.state], brief)
    wrong = gpus.alarm(view)
    if wrong:
        return Banner("⚠", wrong, "bad", wrong.partition(". ")[0])
    if run.epoch > 1 and view.wall - run.started_wall < RESTART_SHOWN_S:
        since = numbers.duration(view.wall - run.started_wall)
        return Banner(
            vocabulary.RESTARTED.symbol,
            f"restarted {since} ago: {vocabulary.restart(run.epoch)}",
            "warn",
        )
    return _of_node(view)


def _of_node(view: View) -> Banner | None:
    """What is wrong with history, the metrics or alerts: nothing else on the screen shows it."""
    wrong = (view.run.recording if view.run is not None else "") or (view.node.history if view.node else "")
    if wrong:
        return Banner("⚠", f"history: {numbers.clean(wrong)}", "warn")
    problem = (view.node.metrics_problem or view.node.alerts_problem) if view.node else None
    return Banner("⚠", sentences.sentence(problem), "warn") if problem else None


def _explained(view: View) -> tuple[str, str]:
    """Return why the run does not continue and what helps, and a short form."""
    run, vital = view.run, view.vital
    if run is None or vital is None:
        return "", ""
    said = vocabulary.state_text(vital, run)
    match vital.state:
        case "paused" if view.replay is None:
            how = view.hint("run.pause", "resumes it") if not view.read_only else ""
            why = "the dashboard that paused it renews this while it is open"
            return f"{said} ({'; '.join(filter(None, (why, how)))})", "; ".join(filter(None, (said, how)))
        case "unresponsive":
            return f"{said}; the process exists, values below are old", said
        case "busy" if vital.progress_age_s is not None and NONE_ENDED not in said:
            return f"{said}; {NONE_ENDED} for {numbers.duration(vital.progress_age_s)}", said
    return said, said


def _state(view: View) -> tuple[Word, str]:
    match view.link.state:
        case "connecting":
            return Word("◌", "connecting"), "warn"
        case "lost":
            return Word("◌", "link lost"), "warn"
        case "failed":
            return Word("✕", "no link" if view.link.node else "no daemon"), "bad"
    if view.exited:
        return vocabulary.STATES["exited"], INKS["exited"]
    if view.vital is None:
        return vocabulary.UNKNOWN_STATE, "dim"
    return vocabulary.state_word(view.vital), INKS[view.vital.state]


def _how_far(view: View, wide: bool, *, eta: bool) -> Line:
    run, vital = view.run, view.vital
    if run is None or vital is None:
        return ()
    of = f" / {numbers.grouped(run.total)}" if run.total else ""
    ink = "stale" if view.stale and not view.exited else "strong"
    spans = [
        Span("   iteration " if wide else "  ", "dim"),
        Span(numbers.grouped(vocabulary.iteration(vital)), ink),
        Span(of, "dim"),
    ]
    gap = "   " if wide else "  "
    spans.append(Span(f"{gap}{numbers.duration(view.ran_s)}", "dim"))
    left = view.left_s if eta else None
    if left is not None:
        spans += [Span(f"{gap}ETA ", "dim"), Span(numbers.duration(left))]
    return tuple(spans)


def _done(view: View) -> float | None:
    if view.run is None or view.vital is None or not view.run.total:
        return None
    step = vocabulary.iteration(view.vital)
    return None if step is None else step / view.run.total
