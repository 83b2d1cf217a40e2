"""The showcase: which change it makes, and what it says of recordings that lack something."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import showcase
from benchmarks.showcase import MOST_BYTES, WORKLOADS, advised, keep, missing
from hoptui.cli.support.recordings import EXAMPLES
from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.domain.facts import fact
from hoptui.protocol.messages import RunState
from hoptui.recording import library
from tests import factories

RECORDINGS = Path(__file__).parents[1] / "recordings"


def run(*advice: Advice) -> RunState:
    found = Diagnosis(verdict="launch-bound", confidence=0.9, advice=advice)
    return factories.run(diagnosis=found)


def test_the_first_advised_change_that_is_possible_is_made() -> None:
    knobs = {knob.spec.name: knob for knob in run().knobs}
    accum = knobs["grad_accum"]
    wanted = Advice(knob="grad_accum", value=2)
    there = Advice(knob="grad_accum", value=accum.value)
    absent = Advice(knob="compile", value="default")
    too_large = Advice(knob="grad_accum", value=10**9)
    open_ended = Advice(knob="grad_accum", direction="down")
    line = Advice(fact=fact("advice.without_a_knob", verdict="data-bound"))
    assert advised(run(line, absent, too_large, open_ended, there, wanted)) == (wanted, accum.version)
    assert advised(run(line, absent, there)) is None
    assert advised(factories.run()) is None


def test_a_recording_that_lacks_something_is_not_a_showcase() -> None:
    assert [missing(EXAMPLES / f"{name}.hoptui") for name in ("lm-h200", "ppo-h200")] == [[], []]
    assert missing(RECORDINGS / "ppo-cpu-tuned.hoptui") == [
        "a verdict",
        "lines of the script",
        "a change by a user",
    ]
    before = missing(RECORDINGS / "ppo-h100.hoptui")
    assert before == ["a verdict", "lines of the script", "a trial of the tuner"]


def test_a_recording_is_copied_and_a_large_one_is_thinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, path = RECORDINGS / "ppo-h100.hoptui", tmp_path / "new" / "copy.hoptui"
    keep(source, path)
    assert path.read_bytes() == source.read_bytes()
    assert source.stat().st_size < MOST_BYTES
    monkeypatch.setattr(showcase, "MOST_BYTES", 1_200_000)
    keep(source, path)
    assert library.at_rest(path)
    assert path.stat().st_size < 1_200_000
    assert path.read_bytes()[18:20] == b"\1\1", "a rollback journal: reading writes nothing beside it"
    assert "a size below" not in str(missing(path))


def test_each_workload_starts_on_a_gpu_and_on_a_cpu() -> None:
    assert set(WORKLOADS) == {"lm", "ppo"}
    for name, workload in WORKLOADS.items():
        assert workload.gpu[0] == workload.cpu[0] == name
        assert "--iterations" in workload.gpu
        assert "--iterations" in workload.cpu
