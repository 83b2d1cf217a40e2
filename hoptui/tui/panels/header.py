"""The two lines on top of a run: who and how far; under it the progress, or what a person must know at once."""

from __future__ import annotations

from typing import NamedTuple

from hoptui.tui.lines import FULL, GAP, HALF, TRACK, Line, Span
from hoptui.tui.panels import gpus
from hoptui.tui.view import View
from hoptui.viewer import format as text
from hoptui.viewer import words
from hoptui.viewer.words import Word
from hoptui.wire.messages import State

INKS: dict[State, str] = {
    "live": "good",
    "busy": "warn",
    "paused": "warn",
    "unresponsive": "warn",
    "exited": "stale",
}
RESTART_SHOWN_S = 30.0
USUAL_HZ = 2.0


class Banner(NamedTuple):
    """What a person must know at once, in one sentence."""

    symbol: str
    text: str
    ink: str


def identity(view: View, name: str, width: int, *, frozen: bool = False) -> Line:
    """`hoptui  ppo-cartpole · gpu07 · epoch 1 … ● live  iteration 1 204 / 5 000  2 h 14 m  ETA 3 h 2 m`."""
    wide = width >= 110
    run, node = view.run, view.node
    left = [Span(" hoptui  ", "title")] if wide else [Span(" ")]
    left.append(Span(text.clean(run.name if run else name, 40), "strong"))
    if node is not None and node.host:
        left.append(Span(f" · {text.clean(node.host, 30)}", "dim"))
    if run is not None and (wide or run.epoch > 1):
        left.append(Span(f" · epoch {run.epoch}", "dim"))
    right = [GAP, *state(view), *_how_far(view, wide)]
    right += rate(view)
    if frozen:
        right.append(Span("   view frozen", "warn"))
    if wide and node is not None and node.viewers > 1:
        right.append(Span(f"   {node.viewers} viewers", "dim"))
    return (*left, *right, Span(" "))


def state(view: View) -> Line:
    """`● live`, or in a replay `▶ replay 20×`: the symbol and the word."""
    if view.replay is not None:
        word = words.PLAYING if view.replay.playing else words.HALTED
        speed = f" {view.replay.speed:g}×" if view.replay.playing else ""
        return (Span(f"{word.symbol} {word.text}{speed}", "title"),)
    word, ink = _state(view)
    return (Span(f"{word.symbol} {word.text}", ink),)


def rate(view: View) -> Line:
    """`10 Hz` while GPUs are sampled faster than usual."""
    hz = view.node.hz if view.node else 0.0
    return (Span(f"   {hz:g} Hz", "warn"),) if hz > USUAL_HZ else ()


def progress(view: View, width: int) -> Line:
    """The banner if there is one, else how much of the run is done; a plain rule where its length is unknown."""
    shout = banner(view)
    if shout is not None:
        return Span(f" {shout.symbol} ", shout.ink), Span(shout.text, shout.ink), GAP
    done = _done(view)
    if done is None:
        return (Span(TRACK * width, "track"),)
    label = f" {text.percent(done)} "
    halves = round((width - len(label)) * 2 * min(max(done, 0.0), 1.0))
    full = FULL * (halves // 2) + HALF * (halves % 2)
    return Span(full, "1"), Span(TRACK * (width - len(label) - len(full)), "track"), Span(label, "dim")


def banner(view: View) -> Banner | None:
    """What is wrong or unusual, the most important first; None: all is well."""
    link = view.link
    match link.state:
        case "failed":
            return Banner("✕", text.clean(link.reason or "the daemon cannot be reached"), "bad")
        case "connecting":
            return Banner("◌", "connecting to the daemon", "warn")
        case "lost":
            since = text.duration(max(0.0, view.clock - link.since))
            reason = f" ({text.clean(link.reason)})" if link.reason else ""
            return Banner(
                "◌", f"link to the daemon lost {since} ago{reason}: training goes on, reconnecting", "warn"
            )
    run, vital = view.run, view.vital
    if run is None:
        return None
    if view.exited:
        word = words.STATES["exited"]
        failed = run.exit_reason not in ("", "finished", "stopped")
        when = f" at {text.clock(run.exited_wall)}" if run.exited_wall else ""
        at = f", last iteration {text.grouped(vital.step)}" if vital else ""
        return Banner(word.symbol, f"{words.state_text(vital, run)}{when}{at}", "bad" if failed else "warn")
    if vital is not None and vital.state != "live":
        return Banner(words.STATES[vital.state].symbol, _explained(view), INKS[vital.state])
    wrong = gpus.alarm(view)
    if wrong:
        return Banner("⚠", wrong, "bad")
    if run.epoch > 1 and view.wall - run.started_wall < RESTART_SHOWN_S:
        since = text.duration(view.wall - run.started_wall)
        return Banner(
            words.RESTARTED.symbol,
            f"restarted {since} ago: epoch {run.epoch}, older commands are void",
            "warn",
        )
    if run.lease is not None and run.lease.holder is not None and run.lease.left_s > 0:
        return Banner("▸", f"{words.who(run.lease.holder)} has the wheel of this run", "warn")
    return None


def _explained(view: View) -> str:
    run, vital = view.run, view.vital
    if run is None or vital is None:
        return ""
    said = words.state_text(vital, run)
    match vital.state:
        case "paused" if view.replay is None:
            return f"{said} (the open dashboard that paused it keeps it paused; p goes on)"
        case "unresponsive":
            return f"{said}; the process exists, values below are old"
        case "busy" if vital.progress_age_s is not None:
            return f"{said}; no boundary for {text.duration(vital.progress_age_s)}"
    return said


def _state(view: View) -> tuple[Word, str]:
    match view.link.state:
        case "connecting":
            return Word("◌", "connecting"), "warn"
        case "lost":
            return Word("◌", "link lost"), "warn"
        case "failed":
            return Word("✕", "no daemon"), "bad"
    if view.exited:
        return words.STATES["exited"], INKS["exited"]
    if view.vital is None:
        return words.UNKNOWN_STATE, "dim"
    return words.STATES[view.vital.state], INKS[view.vital.state]


def _how_far(view: View, wide: bool) -> Line:
    run, vital = view.run, view.vital
    if run is None or vital is None:
        return ()
    of = f" / {text.grouped(run.total)}" if run.total else ""
    spans = [
        Span("   iteration " if wide else "  ", "dim"),
        Span(text.grouped(vital.step), "strong"),
        Span(of, "dim"),
    ]
    end = run.exited_wall or view.wall
    gap = "   " if wide else "  "
    spans.append(Span(f"{gap}{text.duration(max(0.0, end - run.started_wall))}", "dim"))
    left = _left_s(view)
    if left is not None:
        spans += [Span(f"{gap}ETA ", "dim"), Span(text.duration(left))]
    return tuple(spans)


def _left_s(view: View) -> float | None:
    run, vital = view.run, view.vital
    if run is None or vital is None or not run.total or vital.iteration_s is None or view.exited:
        return None
    return max(0, run.total - vital.step) * vital.iteration_s


def _done(view: View) -> float | None:
    if view.run is None or view.vital is None or not view.run.total:
        return None
    return view.vital.step / view.run.total
