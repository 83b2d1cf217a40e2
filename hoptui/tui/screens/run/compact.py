"""A run in a small terminal: everything in a few lines (80 × 24), or the key numbers alone (under 60 × 16)."""

from __future__ import annotations

from hoptui.presentation import numbers
from hoptui.tui.charts import raster
from hoptui.tui.charts.line_chart import whole_dots
from hoptui.tui.charts.ticks import value_scale
from hoptui.tui.components import diagnosis_line, empty_state, gpus, host, learning_metrics, phases
from hoptui.tui.components.command_outcome import last_change, unmeasured
from hoptui.tui.components.figures import VALUE, energy, fact, headline, label_of, number
from hoptui.tui.components.header import banner, rate, state
from hoptui.tui.snapshot import SECOND, View
from hoptui.tui.styled_text import Line, Span, fitted, pack

MOST_GPUS = 4


def summary(
    view: View, metric: str, width: int, span_s: float, *, end: int | None = None, plain: bool
) -> list[Line]:
    """Throughput and return with charts two rows high, the phases in one bar, a line a GPU and one for the host.

    The charts show `span_s` seconds up to the stamp `end` (None: now).
    """
    if view.run is None:
        why = empty_state.whole(view, width, "looking for the run")
        return [*why, *([host.short(view, width)] if view.node else [])]
    head = headline(view)
    figures = max(24, min(46, width - 20))
    across = width - figures - 2
    latest = view.store.latest(view.source)
    unit = numbers.clean(view.run.units.get(metric, ""), 12)
    others = [
        fact(label_of(n), number(latest.get(n)), VALUE) for n in learning_metrics.metrics(view) if n != metric
    ]
    beside: list[Line] = [
        (Span(numbers.si(head.value), "strong"), Span(f" {head.unit}", "dim")),
        last_change(view, figures) or unmeasured(view, "no change"),
        (Span(number(latest.get(metric)), "strong"), Span(f" {unit or label_of(metric)}", "dim")),
        next(iter(pack(others, figures, "  ")), ()),
    ]
    charts = [
        *_small_chart(view, head.name, "1", across, span_s, end or view.now),
        *_small_chart(view, metric, "3", across, span_s, end or view.now),
    ]
    found: list[Line] = [
        (*fitted(left, figures, plain=plain), Span("  "), chart)
        for left, chart in zip(beside, charts, strict=True)
    ]
    found += phases.short(view, width)
    own = view.gpus()
    many = len(own) > MOST_GPUS
    shown = own[: MOST_GPUS - 2] if many else own
    found += [gpus.short_of_many(view, own, width)] if many else []
    found += [gpus.short(view, gpu, width) for gpu in shown] or [(Span(gpus.none(view), "dim"),)]
    found += [(Span(_more_gpus(view, len(own) - len(shown)), "dim"),)] if many else []
    return [*found, *_cost(view, width), host.short(view, width)]


def key_numbers(view: View, metric: str, name: str, width: int) -> list[Line]:
    """The numbers that matter most, one a line; no room for more."""
    head = headline(view)
    run, vital = view.run, view.vital
    found: list[Line] = [
        (Span(numbers.clean(run.name if run else name, 30), "strong"), Span("  "), *state(view), *rate(view))
    ]
    shout = banner(view)
    if shout is not None:
        found.append((Span(shout.said(width), shout.ink),))
    if run is not None and vital is not None:
        of = f" / {numbers.grouped(run.total)}" if run.total else ""
        found.append(_figure("iteration", f"{numbers.grouped(vital.step)}{of}"))
    found.append(_figure(head.unit or "speed", numbers.si(head.value)))
    latest = view.store.latest(view.source).get(metric)
    if metric:
        found.append(_figure(label_of(metric), number(latest)))
    if vital is not None:
        found.append(diagnosis_line.line(view, phases.measured(view), width))
    own = view.gpus()
    if len(own) > MOST_GPUS:
        return [*found, gpus.short_of_many(view, own, width)]
    return [*found, *(gpus.short(view, gpu, width) for gpu in own)]


def _more_gpus(view: View, count: int) -> str:
    return ": ".join(
        filter(None, (f"and {count} more GPUs", view.hint("view.alone_hardware", "shows them all")))
    )


def _cost(view: View, width: int) -> list[Line]:
    """MFU, energy, memory headroom and idle power in a line, where any is known."""
    chunks = [fact(gauge.label, gauge.value) for gauge in gpus.mfu(view)]
    chunks += [fact("energy", cost)] if (cost := energy(view)) else []
    return pack([*chunks, *gpus.together(view)], width)[:1]


def chosen_metric(view: View, wanted: str) -> str:
    """The metric the person chose, or the most telling one the run has."""
    names = learning_metrics.metrics(view)
    return wanted if wanted in names else next(iter(names), "")


def _figure(label: str, value: str) -> Line:
    return Span(label, "dim", 16), Span(value, "strong")


def _small_chart(view: View, name: str, ink: str, width: int, span_s: float, end: int) -> tuple[Span, Span]:
    """Two rows of a chart without axes."""
    series = view.store.series(view.source, name)
    if series is None or width < 4:
        return Span(""), Span("")
    dots = raster.ACROSS * width
    t0, t1 = whole_dots(int(span_s * SECOND), end, dots)
    found = series.window(t0, t1 - 1, dots)
    trace = raster.place(found.t, found.low, found.high, t0, t1, dots)
    scale = value_scale((*found.low, *found.high), 3)
    upper, lower = raster.draw([trace], width, 2, scale.bottom, scale.top).text
    return Span(upper, ink), Span(lower, ink)
