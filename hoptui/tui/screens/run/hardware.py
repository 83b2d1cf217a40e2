"""What the run's hardware does, as its panel tells it: one GPU in detail, several in a line each, the host where there is none."""

from __future__ import annotations

from typing import NamedTuple

from hoptui.tui.charts.line_chart import ChartSeries
from hoptui.tui.components import gpu_table, gpus, host
from hoptui.tui.components.figures import fact
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, pack

FACT_LINES = 2


class Told(NamedTuple):
    """A title and the lines under it."""

    title: str
    lines: list[Line]


def told(view: View, width: int) -> Told:
    """The readings of this moment."""
    shown = view.gpus()
    if not shown:
        none = " · no GPU of its own" if view.node and view.node.gpus else " · no GPU" if view.node else ""
        return Told(f"Host{none}", [*gpus.absent(view, width), *host.lines(view, width)])
    if len(shown) == 1:
        return Told(gpus.title(shown[0]), gpus.detail(view, shown[0], width, FACT_LINES))
    chunks = [fact(gauge.label, gauge.value) for gauge in gpus.mfu(view)] + gpus.together(view)
    rows = gpu_table.rows(view, shown, width)
    return Told(gpus.kinds(shown), [gpu_table.head(shown, width), *rows, *pack(chunks, width)[:1]])


def curves(view: View) -> list[ChartSeries]:
    """What its chart shows, in per cent; of more GPUs than there are inks what they do together."""
    shown = view.gpus()
    if len(shown) > gpus.CHARTED:
        return gpus.many_curves(view, shown)
    if shown:
        work = gpus.work_curves(view, shown)
        return [*work, *gpus.power_curves(shown, share=True)] if len(shown) == 1 else work
    run, cpus = view.run.run if view.run else "", max(1, view.node.cpus if view.node else 1)
    return [
        ChartSeries("host", "cpu_percent", "host CPU %", "1"),
        ChartSeries(f"process/{run}", "cpu_percent", "run CPU %", "2", 1 / cpus),
    ]
