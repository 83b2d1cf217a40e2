"""The showcase: which change it makes, and what it says of recordings that lack something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import showcase
from benchmarks.showcase import MOST_BYTES, WORKLOADS, advised, keep, missing
from hoptui.cli.support.recordings import EXAMPLES
from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.domain.facts import fact
from hoptui.domain.hot_lines import hot_lines
from hoptui.model.stack_samples import RecordedStacks
from hoptui.protocol.messages import RunState
from hoptui.recording import Recording, library, stored_json
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
    assert before == [
        "a verdict",
        "lines of the script",
        "a trial of the tuner",
        "the processes on its GPUs",
    ]


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


def texts(path: Path) -> list[str]:
    """Everything in a recording that may have a path: samples of stacks, records, and what is known of the
    run and its node.
    """
    with Recording.open(path, still=True) as recording:
        samples = RecordedStacks(recording).between(0, 0).ranks.values()
        records = (*recording.events(), *recording.commands())
        stored = (*map(stored_json.encode, records), recording.recall("run"), recording.recall("node"))
        return [*(name for each in samples for name in each.names), *map(str, stored)]


@pytest.mark.parametrize("name", ["lm-h200", "ppo-h200"])
def test_a_shipped_recording_has_no_folder_of_the_machine_where_it_was_made(name: str) -> None:
    found = re.findall(
        r"(?<![\w.-])/(?:work|root|opt|mnt|data|home(?!/user/)|tmp/(?!torchinductor_user/))[/\w.-]*",
        " ".join(texts(EXAMPLES / f"{name}.hoptui")),
    )
    assert found == []


def test_paths_are_renamed_and_nothing_else(tmp_path: Path) -> None:
    source, path = EXAMPLES / "ppo-h200.hoptui", tmp_path / "copy.hoptui"
    keep(source, path, {"/home/user/hoptui": "/a"})
    before, after = texts(source), texts(path)
    assert any("/home/user/hoptui/trainer" in text for text in before)
    assert [text.replace("/home/user/hoptui", "/a") for text in before] == after
    assert missing(path) == []
    with Recording.open(source, still=True) as one, Recording.open(path, still=True) as other:
        assert (one.sources(), one.span()) == (other.sources(), other.span())
        lines, renamed = (hot_lines(RecordedStacks(each).between(0, 0).ranks[0]) for each in (one, other))
    assert [(line.share, line.kind, line.place.line) for line in lines] == [
        (line.share, line.kind, line.place.line) for line in renamed
    ]
    assert path.read_bytes()[18:20] == b"\1\1", "a rollback journal: reading writes nothing beside it"


def test_each_workload_starts_on_a_gpu_and_on_a_cpu() -> None:
    assert set(WORKLOADS) == {"lm", "ppo"}
    for name, workload in WORKLOADS.items():
        assert workload.gpu[0] == workload.cpu[0] == name
        assert "--iterations" in workload.gpu
        assert "--iterations" in workload.cpu
