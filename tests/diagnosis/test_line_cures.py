"""The usual cure of what a line does: when it is offered, and for which line."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from hoptui.diagnosis.causes import Means
from hoptui.diagnosis.line_cures import OFTEN, line_cures
from hoptui.diagnosis.sampled_time import SampledTime
from hoptui.domain.activities import activities
from hoptui.domain.diagnosis import Verdict
from hoptui.domain.stacks import Stack, StackFrame
from tests.diagnosis.loads import synthetic, window

SITE = "/opt/env/lib/python3.12/site-packages/"
MAIN = StackFrame("/job/train.py", "main", 12)
STACKS: dict[str, Stack] = {
    "wait": (MAIN._replace(line=30, call="loss.item"),),
    "copy": (MAIN._replace(line=20, call="x.to"),),
    "compute": (MAIN._replace(line=21, call="torch.mm"),),
    "input": (
        MAIN,
        StackFrame(f"{SITE}torch/utils/data/dataloader.py", "_SingleProcessDataLoaderIter._next_data", 700),
        StackFrame("/job/data.py", "augment", 37, call="np.rot90"),
    ),
    "save": (MAIN._replace(line=40), StackFrame(f"{SITE}torch/serialization.py", "save", 9)),
    "log": (MAIN._replace(line=50), StackFrame(f"{SITE}matplotlib/figure.py", "savefig", 9)),
    "script": (MAIN._replace(line=60, call="sorted"),),
}
ALL = 200
ENOUGH = round(OFTEN * ALL)
NO_READINGS: Mapping[str, float] = MappingProxyType({})


def cures(
    verdict: Verdict, counts: Mapping[str, int], gpu: Mapping[str, float] = NO_READINGS
) -> list[tuple[Any, Any]]:
    """Return the cures with their lines, for samples of these kinds. The others are of the script."""
    return cures_of(verdict, {STACKS[kind]: n for kind, n in counts.items()}, gpu)


def cures_of(
    verdict: Verdict, stacks: Mapping[Stack, int], gpu: Mapping[str, float] = NO_READINGS
) -> list[tuple[Any, Any]]:
    """Return the same for samples with these stacks."""
    rest = {STACKS["script"]: ALL - sum(stacks.values())}
    sampled = SampledTime.of(activities({stack: n for stack, n in (rest | {**stacks}).items() if n}))
    found = window(gpus=(synthetic(**gpu),), sampled=sampled)
    facts = line_cures(verdict, found, Means(found.gpus))
    return [(fact.fields["cure"], fact.fields.get("line")) for fact in facts]


def test_a_thread_that_keeps_the_interpreter_belongs_in_another_process() -> None:
    """A DataLoader without workers is not the cause then."""
    started = StackFrame("/usr/lib/python3.12/threading.py", "Thread._bootstrap", 1002)
    held: list[tuple[str, Verdict, int]] = [("script", "host-bound", 60), ("input", "data-bound", 37)]
    for other, verdict, line in held:
        kept = (*STACKS["compute"], started, *STACKS[other][-1:])
        assert cures_of(verdict, {kept: ENOUGH + 10}) == [("own_process", line)]
        assert cures_of(verdict, {kept: ENOUGH - 10}) == []


OTHERS: list[Verdict] = ["env-bound", "compiling", "straggler", "power-limited", "healthy", "unknown"]
CURES: list[tuple[Verdict, str, str, int]] = [
    ("data-bound", "input", "load_in_workers", 37),
    ("launch-bound", "wait", "avoid_sync", 30),
    ("launch-bound", "compute", "fewer_kernels", 21),
    ("transfer-bound", "copy", "pin_memory", 20),
    ("save-bound", "save", "save_in_background", 40),
    ("wrong-device", "compute", "move_to_gpu", 21),
]


@pytest.mark.parametrize(("verdict", "kind", "cure", "line"), CURES)
def test_a_line_has_its_cure_from_a_share_on(verdict: Verdict, kind: str, cure: str, line: int) -> None:
    assert cures(verdict, {kind: ENOUGH}) == [(cure, line)]
    assert cures(verdict, {kind: ENOUGH - 1}) == []


@pytest.mark.parametrize("kind", ["copy", "wait"])
def test_results_that_are_copied_to_the_host_have_another_cure(kind: str) -> None:
    gpu = {"upload": 1e6, "download": 8e9}
    line = {"copy": 20, "wait": 30}[kind]
    assert cures("transfer-bound", {kind: ENOUGH}, gpu) == [("pin_results", line)]


@pytest.mark.parametrize("kind", ["wait", "copy", "compute", "input", "save", "log"])
@pytest.mark.parametrize(
    "verdict", ["env-bound", "compiling", "straggler", "power-limited", "healthy", "unknown"]
)
def test_other_verdicts_have_no_cure_of_a_line(verdict: Verdict, kind: str) -> None:
    assert cures(verdict, {kind: ALL}) == []


def test_workers_are_advised_only_where_the_training_process_loads() -> None:
    sampled = SampledTime.of(
        activities({(MAIN, StackFrame("/job/data.py", "read_file", 37, call="read")): ALL})
    )
    assert sampled.share("input") == 1
    found = window(sampled=sampled)
    assert list(line_cures("data-bound", found, Means(found.gpus))) == []


def test_waits_come_before_small_kernels() -> None:
    assert cures("launch-bound", {"wait": ENOUGH, "compute": 2 * ENOUGH}) == [
        ("avoid_sync", 30),
        ("fewer_kernels", 21),
    ]


def test_logging_is_blamed_only_where_it_takes_more_than_the_rest_of_the_script() -> None:
    assert cures("host-bound", {"log": ALL // 2 + 10}) == [("log_less", 50)]
    assert cures("host-bound", {"log": ALL // 2 - 10}) == []


@pytest.mark.parametrize(
    ("gpu", "found"),
    [
        ({"tensor": 0.0, "fp32": 0.6}, [("autocast", None)]),
        ({"tensor": 0.1, "fp32": 0.6}, []),
        ({"tensor": 0.0, "fp32": 0.2}, []),
    ],
)
def test_a_lower_precision_is_advised_where_fp32_works_alone(
    gpu: dict[str, float], found: list[tuple[str, None]]
) -> None:
    assert cures("compute-bound", {"compute": ALL}, gpu) == found
