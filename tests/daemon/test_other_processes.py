"""Effects beside a load of other processes that came or went: the figure says so."""

from __future__ import annotations

import pytest
from msgspec import structs

from hoptui.daemon.state import other_processes
from hoptui.daemon.state.row_buffers import Rings
from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo, GpuProcess
from hoptui.domain.tuning import Measured
from hoptui.presentation import vocabulary
from tests.daemon.quiet_node import RUN, SECOND, QuietNode

CPUS = 4
AT = 100 * SECOND
OWN = (f"process/{RUN}",)


def cpu(*parts: tuple[int, int, float, float]) -> Rings:
    """The CPUs in parts of time, in seconds from `AT`: percent of all, and percent of one by the run."""
    found = Rings()
    for first, end, host, own in parts:
        for source, percent in (("host", host), (f"process/{RUN}", own)):
            rows = [(AT + s * SECOND, -1, {"cpu_percent": percent}) for s in range(first, end)]
            found.append(pack(source, rows))
    return found


def rings(host: tuple[float, float], own: tuple[float, float]) -> Rings:
    """The same for 20 s before `AT`, and for 20 s after it."""
    return cpu((-19, 1, host[0], own[0]), (1, 21, host[1], own[1]))


def changed(host: tuple[float, float], own: tuple[float, float]) -> tuple[float, float] | None:
    found = other_processes.load_changed(rings(host, own), OWN, CPUS, AT, AT, AT + 20 * SECOND)
    return None if found is None else (found.fields["before"], found.fields["after"])


def test_a_load_that_comes_or_goes() -> None:
    assert changed((30.0, 80.0), (100.0, 100.0)) == (0.05, 0.55)
    assert changed((80.0, 30.0), (100.0, 100.0)) == (0.55, 0.05)


def test_a_run_that_takes_more_is_no_other_load() -> None:
    assert changed((30.0, 80.0), (100.0, 300.0)) is None
    assert changed((100.0, 100.0), (100.0, 300.0)) is None, "others get less of a full host"


def test_a_pause_for_the_change_is_left_out() -> None:
    """Compilers that live for moments are not counted as the run's."""
    found = cpu((-60, -24, 30.0, 100.0), (-24, 1, 80.0, 0.0), (1, 21, 30.0, 100.0))
    began = AT - 25 * SECOND
    assert other_processes.load_changed(found, OWN, CPUS, began, AT, AT + 20 * SECOND) is None
    assert other_processes.load_changed(found, OWN, CPUS, AT, AT, AT + 20 * SECOND) is not None


def test_what_is_not_read_is_unknown() -> None:
    assert other_processes.load_changed(Rings(), OWN, CPUS, AT, AT, AT + 20 * SECOND) is None
    assert other_processes.others_busy(rings((30.0, 30.0), (0.0, 0.0)), OWN, 0, 0, AT) is None
    known = other_processes.others_busy(rings((30.0, 30.0), (40.0, 40.0)), OWN, CPUS, 0, AT)
    assert known == pytest.approx(0.2)


def test_the_effect_of_a_change_tells_of_it() -> None:
    quiet = QuietNode()
    quiet.hello()
    quiet.node.hardware = structs.replace(quiet.node.hardware, cpus=CPUS)
    for after in (False, True):
        if after:
            quiet.person("micro_batch", 64)
        for _ in range(40):
            quiet.rows(500.0 if after else 1000.0)
            busy = {"host": 90.0 if after else 30.0, f"process/{RUN}": 100.0}
            for source, percent in busy.items():
                quiet.node.rows((pack(source, [(quiet.now, -1, {"cpu_percent": percent})]),))
    (record,) = quiet.node.book.of(RUN)
    assert record.measured is not None
    assert record.measured.gain == pytest.approx(-0.5, abs=0.01)
    assert [remark.code for remark in record.measured.remarks] == ["effect.load_changed"]


def test_the_effect_of_a_change_tells_of_another_process_on_the_gpu() -> None:
    quiet = QuietNode()
    quiet.hello()
    gpu = GpuInfo(uuid="GPU-1", index=3, name="H100")
    quiet.node.gpus = (gpu,)
    run = quiet.run
    run.state = structs.replace(run.state, gpus=(gpu.uuid,))
    own = GpuProcess(gpu=gpu.uuid, pid=7, run=RUN, sm_percent=80.0)
    quiet.node.set_processes((own, GpuProcess(gpu=gpu.uuid, pid=8, sm_percent=15.0)))
    for after in (False, True):
        if after:
            quiet.person("micro_batch", 64)
        for _ in range(40):
            quiet.rows(1100.0 if after else 1000.0)
    (record,) = quiet.node.book.of(RUN)
    assert record.measured is not None
    (remark,) = record.measured.remarks
    assert (remark.code, remark.fields) == ("effect.gpu_shared", {"gpu": 3, "pid": 8})
    assert vocabulary.contended(record.measured)


@pytest.mark.parametrize(
    ("found", "known"),
    [
        (None, None),
        (Measured(settled=True), None),
        (Measured(gain=0.1, interval=0.2), None),
        (Measured(gain=0.1, interval=0.2, settled=True), False),
    ],
)
def test_whether_a_measurement_was_contended_is_known_once_it_is_final(
    found: Measured | None, known: bool | None
) -> None:
    assert vocabulary.contended(found) is known
