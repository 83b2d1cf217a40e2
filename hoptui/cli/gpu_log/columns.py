"""The GPUs as rows over time: the columns of a table that fits the terminal, and those of a CSV file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from hoptui.domain.devices import GpuInfo
from hoptui.presentation import numbers, sentences
from hoptui.presentation.gpu_readings import GPU
from hoptui.presentation.numbers import UNKNOWN

COMPUTED = ("memory_headroom_bytes", "idle_power_w", "xid")
"""Readings that no row has: they follow from others, or from events."""
HELD = {"power_violation_percent": "power_violation_s", "thermal_violation_percent": "thermal_violation_s"}
"""Shares of the time since the row before, and the reading that each is computed from."""
READINGS = (*(name for name in GPU if name not in COMPUTED), *HELD)
FIXED = ("utc", "host", "gpu", "uuid")
MIB, GIB = 1 << 20, 1 << 30


class GpuAtMoment(NamedTuple):
    """One GPU at one moment: `wall` in seconds since 1970, and its known readings with those of `HELD`."""

    wall: float
    host: str
    gpu: GpuInfo
    readings: Mapping[str, float]


class Column(NamedTuple):
    """A column of the table. In a narrow terminal those of the highest `rank` go first."""

    name: str
    unit: str
    reading: str
    width: int
    rank: int
    scale: float = 1.0
    digits: int = 0


COLUMNS = (
    Column("power", "W", "power_w", 5, 0),
    Column("temp", "°C", "temperature_c", 4, 0),
    Column("HBM", "°C", "memory_temperature_c", 3, 3),
    Column("busy", "%", "busy", 4, 0),
    Column("SM", "%", "sm_active", 3, 0),
    Column("tensor", "%", "tensor_active", 6, 1),
    Column("DRAM", "%", "dram_active", 4, 1),
    Column("mem", "%", "memory_busy", 3, 6),
    Column("enc", "%", "encoder_busy", 3, 7),
    Column("dec", "%", "decoder_busy", 3, 7),
    Column("jpg", "%", "jpeg_busy", 3, 7),
    Column("ofa", "%", "ofa_busy", 3, 7),
    Column("SMclk", "MHz", "sm_clock_mhz", 5, 1),
    Column("memclk", "MHz", "memory_clock_mhz", 6, 6),
    Column("pviol", "%", "power_violation_percent", 5, 2),
    Column("tviol", "%", "thermal_violation_percent", 5, 2),
    Column("used", "GiB", "memory_used_bytes", 5, 0, GIB, 1),
    Column("BAR1", "MiB", "bar1_used_bytes", 6, 8, MIB),
    Column("CC", "MiB", "protected_memory_used_bytes", 6, 9, MIB),
    Column("ECCc", "errors", "ecc_corrected", 6, 5),
    Column("ECCu", "errors", "ecc_uncorrected", 6, 4),
    Column("replay", "PCIe", "pcie_replays", 6, 5),
    Column("in", "MB/s", "pcie_rx_bytes_per_s", 6, 1, 1e6),
    Column("out", "MB/s", "pcie_tx_bytes_per_s", 6, 1, 1e6),
)
"""In their order from left to right."""


def fitting(width: int | None, taken: int) -> tuple[Column, ...]:
    """The columns for a terminal of `width` cells, of which `taken` are used; all for None.

    Columns of a rank come together or not at all.
    """
    if width is None:
        return COLUMNS
    kept = 0
    for rank in sorted({column.rank for column in COLUMNS}):
        needed = taken + sum(column.width + 1 for column in COLUMNS if column.rank <= rank)
        if needed > width and rank:
            break
        kept = rank
    return tuple(column for column in COLUMNS if column.rank <= kept)


def label(gpu: GpuInfo) -> str:
    """The number of a GPU; for a MIG instance also the start of its UUID."""
    return f"{gpu.index}/{numbers.clean(gpu.uuid.removeprefix('MIG-'), 4)}" if gpu.parent else str(gpu.index)


def heading(columns: Sequence[Column], time_width: int, label_width: int) -> tuple[str, str]:
    """Two lines, which begin with #: names and units."""
    names = [f"# {'time'.ljust(time_width - 2)}", "gpu".rjust(label_width)]
    units = ["#".ljust(time_width), " " * label_width]
    return (
        " ".join([*names, *(column.name.rjust(column.width) for column in columns)]),
        " ".join([*units, *(column.unit.rjust(column.width) for column in columns)]),
    )


def line(row: GpuAtMoment, columns: Sequence[Column], time: str, label_width: int) -> str:
    """A row of the table; what is unknown is a dash."""
    cells = [_cell(column, row.readings.get(column.reading)) for column in columns]
    return " ".join([time, label(row.gpu).rjust(label_width), *cells])


def _cell(column: Column, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return UNKNOWN.rjust(column.width)
    return f"{value / column.scale:.{column.digits}f}".rjust(column.width)


def csv_line(cells: Sequence[str]) -> str:
    """One line of a CSV file, with its end."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerow(cells)
    return file.getvalue()


CSV_HEADER = csv_line((*FIXED, *READINGS))


def csv_row(row: GpuAtMoment) -> str:
    """A row of the CSV file: UTC, host, number and UUID of the GPU, then `READINGS`; unknown is empty."""
    utc = datetime.fromtimestamp(row.wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    fixed = (utc, numbers.clean(row.host, 255), str(row.gpu.index), row.gpu.uuid)
    return csv_line((*fixed, *(_plain(row.readings.get(name)) for name in READINGS)))


def _plain(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:.0f}" if value == int(value) else repr(value)


def reasons(gpus: Sequence[GpuInfo]) -> dict[str, str]:
    """Why GPUs cannot be read, one sentence by UUID."""
    return {
        gpu.uuid: f"GPU {label(gpu)} cannot be read: {sentences.sentence(gpu.problem)}"
        for gpu in gpus
        if gpu.problem
    }
