"""The host and the processes on its GPUs, as lines. Pure."""

from __future__ import annotations

from bisect import bisect_right
from statistics import median

from hoptui.domain.devices import BUSY_PERCENT, GpuInfo, GpuProcess, RunProcess
from hoptui.presentation import numbers, sentences
from hoptui.presentation.numbers import UNKNOWN
from hoptui.presentation.readings import value_text
from hoptui.tui.components import figures
from hoptui.tui.components.figures import Gauge, current, fact, gauges, of, ratio
from hoptui.tui.components.gpus import readings
from hoptui.tui.snapshot import OLD_S, View
from hoptui.tui.styled_text import Line, Span, pack

SHADES = "·░▒▓█"
"""A core below 10 %, 40 %, 65 %, 90 %, and above."""
_STEPS = (10.0, 40.0, 65.0, BUSY_PERCENT)
MOST_STRIPS = 3
CORE_LABEL = 7  # cells


def gauge_lines(view: View, width: int) -> list[Line]:
    """CPU and memory of the host and of the run's processes."""
    return gauges([*_host(view), *_process(view)], width)


def lines(view: View, width: int, strips: int = MOST_STRIPS) -> list[Line]:
    """The gauges, the cores in at most so many lines of cells, then load, disk and network in a line."""
    now = current(view, "host")
    facts = [
        fact("load", numbers.si(now.get("load_1m")), 5),
        fact("disk read", _rate(now.get("disk_read_bytes_per_s")), 9),
        fact("written", _rate(now.get("disk_written_bytes_per_s")), 9),
        fact("net in", _rate(now.get("net_received_bytes_per_s")), 9),
        fact("out", _rate(now.get("net_sent_bytes_per_s")), 9),
    ]
    return [*gauge_lines(view, width), *core_lines(view, width, strips), *pack(facts, width)[:1]]


def core_lines(view: View, width: int, most: int = MOST_STRIPS) -> list[Line]:
    """One cell per core in the order of their numbers, and in words how many are busy.

    Where the cells do not fit into `most` lines, there are only the words. Without the loads of the cores, as
    in a replay, the words are of what is recorded of them.
    """
    loads = view.store.cores
    old = (view.now - loads.t) / 1e9 > OLD_S and not view.node_stale
    percents = [] if old else list(loads.percent.values())
    room = max(1, width - CORE_LABEL)  # a panel that is not shown has no width
    words = _core_words(percents, current(view, "host"), room)
    if not words:
        return []
    label = Span("cores", "dim", CORE_LABEL)
    strips = -(-len(percents) // room)
    if not percents or strips > most:
        return [(label, Span(words))]
    cells = [_cell(one) for one in percents]
    if strips == 1 and len(percents) + 2 + len(words) <= room:
        return [(label, *cells, Span("  "), Span(words, "dim"))]
    lines: list[Line] = [(Span("", "", CORE_LABEL), *cells[i : i + room]) for i in range(0, len(cells), room)]
    return [(label, *lines[0][1:]), *lines[1:], (Span("", "", CORE_LABEL), Span(words, "dim"))]


def _cell(percent: float) -> Span:
    return Span(SHADES[bisect_right(_STEPS, percent)], "warn" if percent >= BUSY_PERCENT else "1")


def _core_words(percents: list[float], now: dict[str, float], room: int) -> str:
    """`1 of 64 ≥ 90 %; least 0 %, median 3 %, most 100 %`, as far as known and as it fits into so many cells;
    empty if nothing is known.
    """
    busiest, busy = now.get("cpu_busiest_core_percent"), now.get("cpu_busy_cores")
    if percents:
        count = sum(one >= BUSY_PERCENT for one in percents)
        head, most = f"{count} of {len(percents)} ≥ {BUSY_PERCENT:.0f} %", f"most {max(percents):.0f} %"
        middle = f"median {median(percents):.0f} %"
        whole = f"{head}; least {min(percents):.0f} %, {middle}, {most}"
        forms = (whole, f"{head}; {middle}, {most}", f"{head}; {most}", head)
        return next((words for words in forms if len(words) <= room), head)
    if busiest is None or busy is None:
        return ""
    return f"{busy:.0f} ≥ {BUSY_PERCENT:.0f} %; most {busiest:.0f} %"


def short(view: View, width: int) -> Line:
    """The host in one line, as much as fits."""
    now = current(view, "host")
    chunks = [
        fact("host CPU", numbers.percentage(now.get("cpu_percent")), 5),
        fact("memory", _memory(view, now), 12),
    ]
    if "cpu_busiest_core_percent" in now:  # older recordings lack it
        chunks.insert(1, fact("busiest core", numbers.percentage(now["cpu_busiest_core_percent"]), 5))
    if view.run is not None:
        own = current(view, f"process/{view.run.run}")
        chunks.append(fact("run CPU", numbers.percentage(own.get("cpu_percent")), 7))
        chunks.append(fact("RSS", of(numbers.gib(own.get("memory_rss_bytes")), UNKNOWN, "GiB"), 9))
    chunks.append(fact("load", numbers.si(now.get("load_1m")), 5))
    return next(iter(pack(chunks, width, "  ")), ())


def _host(view: View) -> list[Gauge]:
    now = current(view, "host")
    used, total = now.get("memory_used_bytes"), now.get("memory_total_bytes")
    return [
        Gauge("CPU", ratio(now.get("cpu_percent"), 100), numbers.percentage(now.get("cpu_percent")), "1"),
        Gauge("memory", ratio(used, total), _memory(view, now), "3"),
    ]


def _process(view: View) -> list[Gauge]:
    if view.run is None:
        return []
    now = current(view, f"process/{view.run.run}")
    cpus = view.node.cpus if view.node else 0
    rss = now.get("memory_rss_bytes")
    total = current(view, "host").get("memory_total_bytes")
    return [
        Gauge(
            "run CPU",
            ratio(now.get("cpu_percent"), 100 * cpus),
            numbers.percentage(now.get("cpu_percent")),
            "2",
        ),
        Gauge("run RSS", ratio(rss, total), of(numbers.gib(rss), UNKNOWN, "GiB"), "3"),
    ]


def _memory(view: View, now: dict[str, float]) -> str:
    total = now.get("memory_total_bytes") or (view.node.memory_total_bytes if view.node else None)
    return of(numbers.gib(now.get("memory_used_bytes")), numbers.gib(total or None), "GiB")


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{numbers.si(value)}B/s" if value >= 1000 else f"{value:.0f} B/s"


_GPU, _PID, _USER, _HELD, _SM, _CPU, _RUN = 4, 9, 11, 10, 7, 8, 18
RISING, FALLING = "▲", "▼"
"""Beside the name of the column that processes are sorted by: numbers fall, others rise."""
_NARROW = 56  # with less there is no room for the user and the SM share
_A_CONTEXT = 256 << 20  # bytes: less than the smallest CUDA context, more than a driver without one holds
_ANOTHERS, _ANOTHERS_SHORT = "of another container or user", "somebody else's"


def processes(view: View, gpu: str | None = None) -> list[GpuProcess]:
    """Those of one GPU, or of all: by GPU, the one that holds most memory first."""
    place = {info.uuid: i for i, info in enumerate(view.node.gpus)} if view.node else {}
    found = [p for p in view.store.processes if gpu is None or p.gpu == gpu]
    return sorted(found, key=lambda p: (place.get(p.gpu, len(place)), -(p.memory_used_bytes or 0), p.pid))


def processes_title(view: View, *parts: str) -> str:
    """The title of a list of processes. In a replay it ends with how many were not recorded, on all GPUs, and
    with the age of the others.
    """
    age_s, left_out = view.store.processes_age_s, view.store.processes_left_out
    more = f"{left_out} more not recorded" if left_out else ""
    age = f"{numbers.duration(age_s)} old" if age_s is not None and age_s >= 1 else ""
    return " · ".join(filter(None, (*parts, more, age)))


def process_head(width: int, sort: str = "", *, cpu: bool = False) -> Line:
    """What stands over the rows of processes. The column that they are sorted by has a mark."""

    def name(text: str) -> str:
        mark = FALLING if text in ("memory", "SM", "CPU") else RISING
        return f"{text}{mark}" if text == sort else text

    spans = [
        Span(f"  {name('GPU')}", "dim", 2 + _GPU + (sort == "GPU")),
        Span(name("pid"), "dim", _PID - (sort == "GPU")),
        Span("user", "dim", _USER),
        Span(name("memory"), "dim", _HELD, right=True),
    ]
    spans += [Span(name("SM"), "dim", _SM, right=True)]
    spans += [Span(name("CPU"), "dim", _CPU, right=True)] if cpu else []
    spans.append(Span("  "))
    return (
        (*spans, Span("run", "dim", _RUN), Span(name("command"), "dim"))
        if _wide(width)
        else (*spans, Span(f"run or {name('command')}", "dim"))
    )


def process_rows(view: View, width: int, cursor: int) -> list[Line]:
    """The processes of all GPUs, one per line, to choose from; then why there are none, or where they are
    unknown.
    """
    found = [
        (Span("› " if i == cursor else "  ", "key"), *process_row(view, one, width - 2, gpus=True))
        for i, one in enumerate(processes(view))
    ]
    return [*found, *untold(view, bool(found), width)]


def untold(view: View, some: bool, width: int) -> list[Line]:
    """What follows the rows of processes: the GPUs whose processes are unknown, or why there are no rows."""
    return [(Span("  "), *line) for line in _untold(view, None, some, width - 2)]


def worker_row(own: RunProcess, depth: int, width: int, *, chosen: bool) -> Line:
    """A process on no GPU that another one has started, `depth` levels below a process on a GPU."""
    spans = [Span("› " if chosen else "  ", "key"), Span("", "", _GPU), Span(str(own.pid), "dim", _PID)]
    if width - 2 >= _NARROW:
        spans += [
            Span("", "", _USER + _HELD + _SM),
            Span(value_text("%", own.cpu_percent), "", _CPU, right=True),
        ]
    else:
        spans.append(Span("", "", _HELD))
    spans += [Span("  "), *([Span("", "", _RUN)] if _wide(width - 2) else [])]
    below = f"{'  ' * (depth - 1)}└ {numbers.gib(own.rss_bytes)} GiB  "
    return (*spans, Span(below, "dim"), Span(numbers.clean(own.command, 160)))


def process_lines(view: View, width: int, most: int, gpu: str) -> list[Line]:
    """At most `most` lines of one GPU, the last one saying how many are left out."""
    found = [process_row(view, one, width, gpus=False) for one in processes(view, gpu)]
    found += _untold(view, gpu, bool(found), width)
    if len(found) <= most:
        return found
    kept = found[: max(0, most - 1)]
    return [*kept, (Span(f"and {len(found) - len(kept)} more", "dim"),)]


def _untold(view: View, gpu: str | None, some: bool, width: int) -> list[Line]:
    """The GPUs whose processes are unknown, which differs from no process. Without any process, also the
    reason.
    """
    refused = [
        (info, sentences.sentence(why))
        for info in _asked(view, gpu)
        if (why := info.missing_because.get("processes"))
    ]
    if refused or some:
        return [_refused(info, why, gpus=gpu is None) for info, why in refused]
    if view.store.processes_age_s is None and _asked(view, gpu):
        return [(Span("the processes of this time are not recorded", "dim"),)]
    return [(Span(_nobody(view, gpu, width), "dim"),)]


def _asked(view: View, gpu: str | None) -> list[GpuInfo]:
    return [info for info in (view.node.gpus if view.node else ()) if gpu is None or info.uuid == gpu]


def _nobody(view: View, gpu: str | None, width: int) -> str:
    """That no process is known, and whether that means that there is none; as much as there is room for."""
    asked = _asked(view, gpu)
    if not asked:
        return figures.missing_note(view) or "there is no GPU"
    read = [info for info in asked if readings(view, info)]
    held = max((readings(view, info).get("memory_used_bytes", 0.0) for info in asked), default=0.0)
    if held > _A_CONTEXT:
        used = value_text("B", held)
        said = f"the driver names no process, yet {used} are in use"
        whose = () if gpu else (": by another container, or hidden from this one", ": by another container")
        return next((said + more for more in whose if len(said + more) <= width), said)
    if len(read) == len(asked):
        return "no process holds this GPU" if gpu else "no process holds a GPU"
    if read:
        return "no process holds a GPU that can be read"
    reasons = {sentences.text_of(info.problem) for info in asked}
    why = reasons.pop() if len(reasons) == 1 else ""
    why = why or (sentences.joined(view.node.sampler_problems) if view.node else "") or "no readings arrive"
    return f"who is on {'it' if gpu else 'the GPUs'} is unknown: {why}"


def _refused(info: GpuInfo, why: str, *, gpus: bool) -> Line:
    spans = [Span(str(info.index), "dim", _GPU)] if gpus else []
    return (*spans, Span(f"who is on it is unknown: {why}", "warn"))


def process_row(
    view: View, process: GpuProcess, width: int, *, gpus: bool, cpu: tuple[float | None, str] | None = None
) -> Line:
    """A process on a GPU. `cpu` has its share of a core, and a mark of what it has started, of the tree."""
    infos = view.node.gpus if view.node else ()
    number = next((str(info.index) for info in infos if info.uuid == process.gpu), UNKNOWN)
    run = view.store.run(process.run) if process.run else None
    name = numbers.clean(run.name if run else process.run, 40)
    command = numbers.clean(process.command, 160) or (_ANOTHERS if width >= _NARROW else _ANOTHERS_SHORT)
    spans = [Span(number, "dim", _GPU)] if gpus else []
    spans.append(Span(str(process.pid), "", _PID))
    if width >= _NARROW:
        spans.append(Span(numbers.clean(process.user, 24) or UNKNOWN, "" if process.user else "dim", _USER))
    spans.append(Span(value_text("B", process.memory_used_bytes), "", _HELD, right=True))
    if width >= _NARROW:
        spans.append(Span(value_text("%", process.sm_percent), "", _SM, right=True))
        spans += [Span(value_text("%", cpu[0]), "", _CPU, right=True)] if cpu is not None else []
    spans.append(Span("  "))
    spans += [Span(cpu[1], "key")] if cpu is not None and cpu[1] and not _wide(width) else []
    ink = "" if process.command else "dim"
    if _wide(width):
        of_run = Span(name or UNKNOWN, "strong" if name else "dim", _RUN)
        return (*spans, of_run, Span(cpu[1] if cpu is not None else "", "key"), Span(command, ink))
    return (*spans, Span(name, "strong") if name else Span(command, ink))


def _wide(width: int) -> bool:
    return width >= 90
