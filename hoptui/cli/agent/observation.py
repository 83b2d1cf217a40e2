"""What an agent may read of runs. Each function returns what `--json` of the command line prints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from hoptui.cli.commands.history import commands_of
from hoptui.cli.commands.stack import as_json as stacks_json
from hoptui.cli.commands.stack import stacks_of
from hoptui.cli.commands.status import left_s, summary
from hoptui.cli.commands.where import Window, samples_of
from hoptui.cli.commands.where import as_json as samples_json
from hoptui.cli.support.records import command_json, since
from hoptui.cli.support.run_events import Waiting
from hoptui.cli.support.snapshot import NodeSnapshot, headline, knobs_of, look, metrics_json, state_name
from hoptui.cli.support.terminal import usage
from hoptui.domain.columns import head_of
from hoptui.domain.diagnosis import Diagnosis
from hoptui.presentation import diagnosis, job_head, numbers, sentences, vocabulary
from hoptui.protocol.messages import RunState

STATUS_BYTES = 1000
"""The most that a status takes as JSON: an agent reads it often."""
LONGEST_NAME, LONGEST_SENTENCE = 60, 160
METRICS = 6
LONGEST_WAIT_S = 600.0

Ended = Callable[[], bool]
"""Whether nobody waits for the answer any more."""


def runs() -> dict[str, Any]:
    """The runs on this node, without their knobs and metrics."""
    with look(readings=False) as seen:
        left_out = ("knobs", "metrics")
        found = [summary(seen, run) for run in seen.node.runs]
    return {"runs": [{k: v for k, v in run.items() if k not in left_out} for run in found]}


def status(run: str) -> dict[str, Any]:
    """A run in less than 1 kB of JSON: its state, speed, newest metrics and verdict. Unknown is None."""
    with look(readings=False) as seen:
        found = seen.find(run)
        return _fitting(_status(seen, found))


def _status(seen: NodeSnapshot, run: RunState) -> dict[str, Any]:
    vital = seen.store.vital(run.run)
    metrics = seen.store.latest(f"run/{run.run}")
    metric, newest = headline(run, metrics)
    silent = run.head is not None and job_head.old_s(vital) is not None
    rate = vital.throughput if vital is not None and vital.throughput is not None else newest
    if silent:  # what rank 0 has logged is old
        rate, there = None, seen.store.names(head_of(f"run/{run.run}"))
        metrics = {name: value for name, value in metrics.items() if name not in there}
    plain = [
        name for name in metrics if not name.startswith("phase/") and name not in (metric, "iteration_s")
    ]
    shown = {name[:LONGEST_NAME]: metrics[name] for name in plain[:METRICS]}
    why = run.exit_reason or (sentences.text_of(vital.because) if vital else "")
    return {
        "run": run.run,
        "name": numbers.clean(run.name, LONGEST_NAME),
        "state": state_name(vital) if vital else None,
        "why": numbers.clean(why, LONGEST_SENTENCE),
        "iteration": vocabulary.iteration(vital),
        "total": run.total,
        "iteration_s": vital.iteration_s if vital else None,
        "left_s": left_s(seen, run, vital) if vital else None,
        "throughput": {"metric": metric[:LONGEST_NAME], "value": rate} if metric else None,
        "verdict": _verdict(run.diagnosis),
        "tuner": None if silent else run.tuner.stand if run.tuner is not None else "off",
        "metrics": metrics_json(shown),
    }


def _verdict(found: Diagnosis | None) -> dict[str, Any] | None:
    if found is None:
        return None
    first = [numbers.clean(diagnosis.advice_text(one), LONGEST_SENTENCE) for one in found.advice[:1]]
    evidence = [numbers.clean(text, LONGEST_SENTENCE) for text in diagnosis.evidence(found)[:2]]
    known = {"verdict": found.verdict, "confidence": found.confidence, "stale": found.stale}
    return {**known, "evidence": evidence, "advice": first}


def _fitting(found: dict[str, Any]) -> dict[str, Any]:
    """The status with fewer metrics, then without evidence, until it fits."""
    while len(msgspec.json.encode(found)) > STATUS_BYTES:
        if found["metrics"]:
            found["metrics"].popitem()
        elif found["verdict"] is not None and found["verdict"]["evidence"]:
            found["verdict"]["evidence"].pop()
        else:
            found["why"] = ""
            break
    return found


def list_knobs(run: str) -> dict[str, Any]:
    """The knobs of a run, and those that it does not offer with the reasons."""
    with look(readings=False) as seen:
        found = seen.find(run)
        return {"run": found.run, "knobs": knobs_of(found), "declined": found.declined}


def wait_for(run: str, event: str, timeout_s: float, ended: Ended) -> dict[str, Any]:
    """Wait until something happens to a run."""
    if not 0 <= timeout_s <= LONGEST_WAIT_S:
        raise usage(f"timeout_s must be 0 to {LONGEST_WAIT_S:g} seconds, not {timeout_s:g}")
    with look(readings=False) as seen:
        return Waiting(seen, seen.find(run), event).until(timeout_s, ended)


def history(run: str, after: str, most: int) -> dict[str, Any]:
    """The newest commands sent to a run. `now` serves as `since` of the next call."""
    if most < 1:
        raise usage(f"most must be at least 1, not {most}")
    now = time.time()
    found, _, records = commands_of(run)
    newer = since(records, after)
    shown = newer[-most:]
    return {
        "run": found.run,
        "now": now,
        "commands": [command_json(record) for record in shown],
        "left_out": len(newer) - len(shown),
    }


def where(run: str, rank: int | None, seconds: float, most: int) -> dict[str, Any]:
    """The lines of the script that the time of a run goes to."""
    if not 0 < seconds <= 1e9 or most < 1:
        raise usage("seconds must be above 0 and most at least 1")
    found = samples_json(samples_of(run, Window(seconds, None, None), rank), rank)
    return {**found, "lines": found["lines"][:most], "lines_left_out": max(0, len(found["lines"]) - most)}


def stack(run: str) -> dict[str, Any]:
    """Where the ranks of a run are now, the odd group first."""
    return stacks_json(stacks_of(run))
