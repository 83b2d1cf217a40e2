"""The head of the benchmark says as much of its run as a head may."""

from __future__ import annotations

import random

from benchmarks.job_nodes import event_texts, metric_names
from hoptui.protocol.job_records import (
    MOST_EVENTS,
    MOST_METRICS,
    RUN_BYTES,
    HeadFacts,
    HeadRow,
    decode_facts,
    encode_facts,
)
from hoptui.protocol.messages import Event


def test_the_head_says_nearly_as_much_as_it_may() -> None:
    dice = random.Random(3)
    values = {name: dice.random() for name in metric_names()}
    events = tuple(
        Event(seq=i, t=i, wall=1.7e9 + i, kind="note", text=text) for i, text in enumerate(event_texts())
    )
    facts = HeadFacts(t=1, rows=(HeadRow(1, 1, values),), events=events)
    assert (len(values), len(events)) == (MOST_METRICS, MOST_EVENTS)
    body = encode_facts(facts)
    assert 0.85 * RUN_BYTES < len(body) <= RUN_BYTES
    assert decode_facts(body) == facts, "nothing is left out"
