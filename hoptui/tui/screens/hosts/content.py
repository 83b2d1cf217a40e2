"""All hosts with their links and runs: the lines of the hosts screen, and of the bar below other screens.
Pure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from hoptui.presentation import numbers
from hoptui.presentation.vocabulary import Word
from hoptui.protocol.messages import RunState
from hoptui.tui.components import gpus, header, runs
from hoptui.tui.components.figures import current, headline, unless_old
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import GAP, Line, Span, width_of

LINKS: dict[str, tuple[Word, str]] = {
    "connecting": (Word("◌", "connecting"), "warn"),
    "live": (Word("●", "connected"), "good"),
    "lost": (Word("◌", "link lost"), "warn"),
    "failed": (Word("✕", "no link"), "bad"),
}
_NAME, _STEP, _SPEED = 32, 19, 9
_APART = 2  # blanks after the state


class HostStatus(NamedTuple):
    """A host by the name it was asked for, as it is seen at this moment."""

    name: str
    view: View


class HostRow(NamedTuple):
    """A line of the list: a host (`run` None) or one of its runs."""

    host: str
    run: RunState | None = None


def listed(hosts: Sequence[HostStatus]) -> list[HostRow]:
    """Every host, and under it its runs that have not ended."""
    return [row for host in hosts for row in (HostRow(host.name), *_runs(host))]


def rows(hosts: Sequence[HostStatus], width: int, cursor: int) -> list[Line]:
    """`listed` as it is drawn, in columns as wide as what is in them."""
    seen, found = {host.name: host for host in hosts}, listed(hosts)
    longest = max((width_of((Span(_name(row)),)) for row in found), default=0)
    name = min(_NAME, 2 + longest, width // 3)
    ran = [runs.view_of(seen[row.host].view, row.run) for row in found if row.run is not None]
    state = _APART + max((len(runs.word_of(view).text) + 2 for view in ran), default=0)
    step = min(_STEP, max((len(runs.iteration_of(view)) for view in ran), default=0))
    lines: list[Line] = []
    for i, row in enumerate(found):
        mark, host = Span("› " if i == cursor else "  ", "key"), seen[row.host]
        line = _host(host, name) if row.run is None else _run(host, row.run, (name, state, step), width)
        lines.append((mark, *line))
    return lines


def summary(hosts: Sequence[HostStatus]) -> str:
    """`3 hosts, 2 connected, 5 runs`."""
    up = sum(host.view.link.state == "live" for host in hosts)
    count = sum(len(runs.living(host.view)) for host in hosts if host.view.link.state == "live")
    links = "all connected" if up == len(hosts) else f"{up} connected"
    return f"{len(hosts)} hosts, {links}, {numbers.counted(count, 'run')}"


def bar(hosts: Sequence[HostStatus], here: str) -> Line:
    """The hosts in one line, the one on screen first: `gpu07 ● 3 runs   gpu08 ◌ link lost 12 s ago`."""
    spans: list[Span] = [Span(" ")]
    for host in hosts:
        word, ink = LINKS[host.view.link.state]
        live = host.view.link.state == "live"
        count = len(runs.living(host.view))
        what = (f"{numbers.counted(count, 'run')}" if live else word.text) + _since(host.view)
        spans += [Span(numbers.clean(host.name, 30), "strong" if host.name == here else "")]
        spans += [Span(f" {word.symbol}", ink), Span(f" {what}", "dim" if live else ink)]
        spans += [*header.link(host.view), Span("    ")]
    return (*spans, GAP)


def why(host: HostStatus, width: int) -> list[Line]:
    """Why a host is not connected, in full, because its row has room only for the start. Empty if connected
    or unknown.
    """
    if host.view.link.state == "live":
        return []
    told = numbers.clean(host.view.link.reason, 300)
    return [(Span(line, "dim"),) for line in textwrap.wrap(told, max(20, width))]


def _runs(host: HostStatus) -> list[HostRow]:
    return [HostRow(host.name, run) for run in runs.living(host.view)]


def _name(row: HostRow) -> str:
    return (
        numbers.clean(row.host, 30) if row.run is None else f"  {row.host}/{numbers.clean(row.run.name, 40)}"
    )


def _host(host: HostStatus, name: int) -> Line:
    view = host.view
    word, ink = LINKS[view.link.state]
    spans = [Span(_name(HostRow(host.name)), "strong", name), Span(f"{word.symbol} {word.text}", ink)]
    if view.link.state != "live":
        reason = numbers.clean(view.link.reason, 300)
        return (*spans, Span(_since(view), ink), Span(f": {reason}" if reason else "", "dim"))
    ended = sum(1 for _ in runs.ordered(view)) - len(runs.living(view))
    past = f"   {ended} ended" if ended else ""
    return (*spans, *header.link(view), Span("   "), *_hardware(view), Span(past, "dim"))


def _hardware(view: View) -> Line:
    """`8 × NVIDIA H100, busy 92 %, 4.2 kW`; without GPUs why there are none, and the CPUs."""
    shown = view.gpus()
    if not shown:
        cpu = current(view, "host").get("cpu_percent")
        why = gpus.none(view) if view.node else "waiting for the daemon"
        return (Span(f"CPU {cpu:.0f} %" if cpu is not None else "", ""), Span(f"   {why}", "dim"))
    values = [current(view, f"gpu/{gpu.uuid}") for gpu in shown]
    busy = [found["busy"] for found in values if "busy" in found]
    watts = [found["power_w"] for found in values if "power_w" in found]
    told = [numbers.clean(gpus.kinds(shown), 40)]
    told += [f"busy {sum(busy) / len(busy):.0f} %"] if len(busy) == len(shown) else []
    told += [f"{numbers.si(sum(watts))} W"] if len(watts) == len(shown) else []
    return (Span(", ".join(told)),)


def _run(host: HostStatus, run: RunState, columns: tuple[int, int, int], width: int) -> Line:
    """A run of a host; `columns` are the cells of its name, its state and its iterations."""
    view, (name, state, step) = runs.view_of(host.view, run), columns
    word, known = runs.word_of(view), runs.state_of(view)
    old = "stale" if view.node_stale else ""
    ink = header.INKS[known] if known else old or "dim"
    spans = (
        Span("  ", width=2),
        Span(f"{numbers.clean(host.name, 30)}/", "dim"),
        Span(
            numbers.clean(run.name, 40), old or "strong", max(4, name - 3 - len(numbers.clean(host.name, 30)))
        ),
        Span(f"{word.symbol} {word.text}", ink, state),
        Span(runs.iteration_of(view), old, step, right=True),
    )
    age = numbers.duration(view.ran_s) + " " if width >= 100 else ""
    return (*spans, *_speed(view, ink), GAP, Span(age, "dim"))


def _speed(view: View, ink: str) -> Line:
    """How fast a run is, or why it is not live; of a host that does not answer nothing is known."""
    if not runs.as_usual(view):
        return Span("  "), Span(runs.why_not_live(view), ink)
    speed = headline(view)
    value = None if view.node_stale else unless_old(view, speed.name, speed.value)
    return Span(numbers.logged(value), "stale" if view.node_stale else "", _SPEED, right=True), Span(
        f" {speed.unit}", "dim"
    )


def _since(view: View) -> str:
    """How long a link has been lost."""
    if view.link.state != "lost":
        return ""
    return f" {numbers.duration(max(0.0, view.clock - view.link.since))} ago"
