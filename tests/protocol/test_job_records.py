"""What nodes write to the store of a job, with every field, and as an older hoptui has written it."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from hoptui.domain.facts import Fact
from hoptui.domain.jobs import JobNode, JobState, NodeSummary, RankGpu, RankSummary
from hoptui.protocol import job_records
from hoptui.protocol.job_records import HeadFacts, HeadRow, JobRecord, NodeRecord, PauseRenewal
from hoptui.protocol.messages import Command
from tests.protocol.conftest import ANA, EVENT, NOTE, RECORD, REPORTS, TUNER
from tests.protocol.test_codec import contains

GOLDEN = Path(__file__).parent / "golden" / "job_records"
GPU = RankGpu(
    uuid="GPU-1",
    index=1,
    utilization=0.97,
    power_w=612.0,
    memory_used=6e10,
    memory_total=8e10,
    clock_mhz=1755.0,
    throttled="power",
    nvlink_bytes_s=2e11,
)
RANK = RankSummary(
    rank=9,
    condition="live",
    step=1205,
    iteration_s=0.41,
    waiting=0.2,
    samples=600,
    dispersion=1.5,
    backward=0.3,
    work_s=0.25,
    phases="data,forward",
    progress_age_s=0.2,
    line="train.py:12 step",
    kind="computes",
    line_share=0.6,
    throughput=1.2e6,
    mfu=0.41,
    gpu=GPU,
)
SUMMARY = NodeSummary(
    host="node-1",
    run="r1",
    epoch=2,
    number=77,
    wall=1.7e9,
    ranks=(RANK,),
    cpu=0.3,
    memory=0.4,
    sent_bytes_s=1e9,
    received_bytes_s=2e9,
    alarms=(Fact("gpu.lost", {"gpu": 1}),),
    left=True,
)
COMMAND = Command(id="c2", run="r1", epoch=2, verb="set", knob="grad_accum", value=8, origin=ANA)
NODE = NodeRecord(
    node="identity-1", summary=SUMMARY, commands=(COMMAND,), renewal=PauseRenewal(3, 30.0), notes=(NOTE,)
)
STATE = JobState(
    run="r1",
    epoch=2,
    world=16,
    nodes=(JobNode(index=0, condition="silent", age_s=6.5, summary=SUMMARY),),
    head=1,
    here=2,
    store_problem="RuntimeError: no connection",
    read_s=0.002,
    age_s=7.5,
    slow=Fact("job.slow_rank", {"rank": 9, "basis": "own"}),
    head_problem="a record is damaged",
)
FACTS = HeadFacts(
    t=19,
    reports=REPORTS,
    tuner=TUNER,
    held={"grad_accum": "ana (pid 4121)"},
    rows=(HeadRow(17, 1205, {"loss": 0.5}),),
    events=(EVENT,),
    commands=(RECORD,),
    notes=(NOTE,),
    counts={"metrics": 3, "commands": 4},
)
JOB = JobRecord(
    state=job_records.encode_state(STATE),
    identities=("identity-1",),
    answers=(RECORD,),
    run=job_records.encode_facts(FACTS),
)
RECORDS: dict[str, tuple[msgspec.Struct, Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "node": (NODE, job_records.encode_node, job_records.decode_node),
    "state": (STATE, job_records.encode_state, job_records.decode_state),
    "facts": (FACTS, job_records.encode_facts, job_records.decode_facts),
    "head": (JOB, job_records.encode_job, job_records.decode_job),
}
PARTS = (NODE, SUMMARY, RANK, GPU, STATE, STATE.nodes[0], FACTS, REPORTS, JOB)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_an_example_leaves_no_field_at_its_default(part: msgspec.Struct) -> None:
    """A field at its default would not be missed if it got lost on the way."""
    for field in structs.fields(type(part)):
        assert getattr(part, field.name) != field.default, field.name


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_understood_as_it_was_meant(name: str) -> None:
    example, encode, decode = RECORDS[name]
    assert decode(encode(example)) == example


@pytest.mark.parametrize("name", RECORDS)
def test_golden_bytes_are_still_understood(name: str) -> None:
    """What an older hoptui writes, down to the last field. HOPTUI_GOLDEN=write adds a missing file."""
    example, encode, decode = RECORDS[name]
    path = GOLDEN / f"{name}.bin"
    if os.environ.get("HOPTUI_GOLDEN") == "write" and not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode(example))
    sent = path.read_bytes()
    found = decode(sent)
    assert type(found) is type(example)
    then = msgspec.msgpack.decode(sent if name == "head" else zlib.decompress(sent))
    assert contains(msgspec.msgpack.decode(msgspec.msgpack.encode(found)), then)
