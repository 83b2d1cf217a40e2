"""The state of a job in a recording: what it keeps, how exactly, and in how much room."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from benchmarks.simulated_job import SimulatedJob
from hoptui.domain.job_history import RANK_READINGS
from hoptui.domain.jobs import JobState
from hoptui.protocol.record_bytes import RecordError, compressed
from hoptui.protocol.recorded_jobs import decode_recorded, encode_recorded
from screenshots import made_up_job

STATE = made_up_job.state(10, 4, 120.0, here=3)
EXACT = 2.0**-10
PER_HOUR = 1_000_000
"""Bytes that the states of 512 ranks may add in an hour."""


def simulated(world: int) -> JobState:
    job = SimulatedJob(world)
    for _ in range(25):
        job.tick()
    return job.state()


def test_readings_are_kept_to_their_digits_and_all_else_exactly() -> None:
    found = decode_recorded(encode_recorded(STATE))
    assert [node.condition for node in found.nodes] == [node.condition for node in STATE.nodes]
    assert {node.condition for node in found.nodes} == {"live", "silent", "missing"}
    for (node, rank), (other, kept) in zip(STATE.ranks(), found.ranks(), strict=True):
        assert other.host == node.host
        assert other.age_s == pytest.approx(node.age_s, rel=EXACT)
        assert (kept.rank, kept.step, kept.line, kept.kind) == (rank.rank, rank.step, rank.line, rank.kind)
        assert kept.gpu is not None
        assert rank.gpu is not None
        assert (kept.gpu.index, kept.gpu.throttled) == (rank.gpu.index, rank.gpu.throttled)
        for name, read in RANK_READINGS.items():
            assert read(kept) == pytest.approx(read(rank), rel=EXACT), name


def test_uuids_are_kept_of_the_own_node_and_elsewhere_which_ranks_share_a_gpu() -> None:
    nodes = list(STATE.nodes)
    for index in (0, 3):
        summary = nodes[index].summary
        assert summary is not None
        first, second, third, fourth = summary.ranks
        assert first.gpu is not None
        shared = (first, structs.replace(second, gpu=first.gpu), structs.replace(third, gpu=None), fourth)
        nodes[index] = structs.replace(nodes[index], summary=structs.replace(summary, ranks=shared))
    found = decode_recorded(encode_recorded(structs.replace(STATE, nodes=tuple(nodes))))
    uuids = [rank.gpu.uuid if rank.gpu is not None else None for _, rank in found.ranks()]
    assert uuids[:4] == ["0", "0", None, "1"]
    assert uuids[12:16] == ["GPU-12", "GPU-12", None, "GPU-15"]


def test_an_hour_of_512_ranks_takes_less_than_a_megabyte() -> None:
    assert 60 * len(encode_recorded(simulated(512))) < PER_HOUR


def test_a_state_that_is_too_large_has_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoptui.protocol.recorded_jobs.STATE_BYTES", 1500)
    found = decode_recorded(encode_recorded(STATE))
    assert found.ranks() == []
    assert len(found.nodes) == len(STATE.nodes)


@given(st.data())
def test_damage_is_an_error(data: st.DataObject) -> None:
    raw = msgspec.to_builtins(STATE) | {"columns": {"rank": [0, 1]}, "counts": [2] + [0] * 9}
    name = data.draw(st.sampled_from(["columns", "counts", "nodes", "world"]))
    junk = data.draw(
        st.one_of(
            st.none(), st.integers(-(2**60), 2**60), st.text(), st.lists(st.integers(-9, 9)), st.binary()
        )
    )
    try:
        decode_recorded(compressed(raw | {name: junk}))
    except RecordError:
        return
    assert name in ("counts", "world", "columns")


@given(st.binary(max_size=64))
def test_bytes_are_no_state(body: bytes) -> None:
    with pytest.raises(RecordError):
        decode_recorded(body)
