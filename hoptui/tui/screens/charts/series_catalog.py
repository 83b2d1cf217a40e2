"""Every series that can be charted, in words: whose it is, what it is called, in which unit. Pure."""

from __future__ import annotations

from typing import NamedTuple, get_args

from hoptui.presentation import numbers
from hoptui.presentation.numbers import UNKNOWN
from hoptui.presentation.readings import DERIVED, GPU, HOST, PROCESS, Meaning, Unit, value_text
from hoptui.protocol.messages import RunState
from hoptui.tui.charts.grid import Pick
from hoptui.tui.components import gpus
from hoptui.tui.components.figures import label_of, number
from hoptui.tui.snapshot import View

UNITS: frozenset[str] = frozenset(get_args(Unit))
_SUFFIXES: tuple[tuple[str, Unit], ...] = (
    ("_bytes_per_s", "B/s"), ("_bytes", "B"), ("_percent", "%"), ("_w", "W"), ("_j", "J"), ("_c", "°C"), ("_s", "s"),
)  # fmt: skip
_AXES: dict[str, tuple[float, str]] = {"B": (2.0**-30, "GiB")}
"""Units that the value axis has a better one for: the factor to it, and its name."""


class CatalogEntry(NamedTuple):
    """A series in words: `where` it comes from, its `label`, its unit (empty: none)."""

    pick: Pick
    where: str
    label: str
    unit: str

    @property
    def factor(self) -> float:
        """From its values to those of the value axis."""
        return _AXES.get(self.unit, (1.0, ""))[0]

    @property
    def axis_unit(self) -> str:
        """The unit of the value axis."""
        unit = _AXES.get(self.unit, (1.0, self.unit))[1]
        return "" if unit == "count" else unit

    @property
    def title(self) -> str:
        """`GPU 0 · SM active`."""
        return f"{self.where} · {self.label}"

    def text(self, value: float | None) -> str:
        """A value of the axis for people, with its unit."""
        if value is None or value != value:
            return UNKNOWN
        raw = value / self.factor
        if self.unit in UNITS:
            return value_text(self.unit, raw)  # type: ignore[arg-type]
        return f"{number(raw)} {self.unit}".rstrip()

    def range_text(self, low: float, high: float) -> str:
        """What was between two values: `612…640 W`, and `640 W` where they read the same."""
        least, most = self.text(low), self.text(high)
        if least == most:
            return most
        unit = most.rpartition(" ")[2] if self.unit in UNITS else self.unit
        head = least.removesuffix(f" {unit}") if unit and most.endswith(f" {unit}") else least
        return f"{head}…{most}"


def listed(view: View) -> list[CatalogEntry]:
    """All series of which anything is known, those of the run first; bit masks are no curves."""
    picks = (Pick(source, metric) for source in _sources(view) for metric in view.store.names(source))
    found = [described(view, pick) for pick in picks]
    return [entry for entry in found if entry.unit != "bit mask"]


def described(view: View, pick: Pick) -> CatalogEntry:
    """A series in words; of one that is gone, as far as its name tells."""
    kind, _, rest = pick.source.partition("/")
    meaning = _meaning(kind, pick.metric)
    if meaning is not None:
        return CatalogEntry(pick, _where(view, kind, rest), meaning.label, meaning.unit)
    unit, label = _unit(view.run, kind, pick.metric)
    return CatalogEntry(pick, _where(view, kind, rest), label, unit)


def _sources(view: View) -> list[str]:
    run = view.run
    own = view.gpus()
    others = [gpu for gpu in view.node.gpus if gpu not in own] if view.node else []
    on_gpus = [f"gpu/{gpu.uuid}" for gpu in (*own, *others)]
    if run is None:
        return [*on_gpus, "host"]
    ranks = [f"rank/{run.run}/{rank.rank}" for rank in run.ranks]
    return [view.source, *ranks, f"derived/{run.run}", *on_gpus, f"process/{run.run}", "host"]


def _where(view: View, kind: str, rest: str) -> str:
    match kind:
        case "gpu":
            gpu = next((g for g in view.node.gpus if g.uuid == rest), None) if view.node else None
            return (
                " ".join(filter(None, (f"GPU {gpu.index}", gpus.part(gpu)))) if gpu else "a GPU that is gone"
            )
        case "rank":
            return f"rank {rest.rpartition('/')[2]}"
        case "derived":
            return "run's GPUs"
        case "process":
            return "run's process"
    return kind


def _meaning(kind: str, metric: str) -> Meaning | None:
    return {"gpu": GPU, "derived": DERIVED, "host": HOST, "process": PROCESS}.get(kind, {}).get(metric)


def _unit(run: RunState | None, kind: str, metric: str) -> tuple[str, str]:
    """The unit of a metric without a meaning of its own, as declared or as its name ends, and its label."""
    declared = run.units.get(metric, "") if run is not None and kind in ("run", "rank") else ""
    if declared:
        return numbers.clean(declared, 24), label_of(metric)
    if metric.startswith("phase/"):
        return "s", label_of(metric)
    for suffix, unit in _SUFFIXES:
        if metric.endswith(suffix) and not (suffix == "_s" and metric.endswith("_per_s")):
            return unit, label_of(metric.removesuffix(suffix))
    if metric.endswith("_per_s"):
        return f"{label_of(metric.removesuffix('_per_s'))}/s", label_of(metric)
    return "", label_of(metric)
