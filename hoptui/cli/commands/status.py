"""`hoptui status`: show one run as text or JSON."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from hoptui.cli.commands import gpus, output, target
from hoptui.cli.support import jobs
from hoptui.cli.support.options import Json, Run
from hoptui.cli.support.snapshot import (
    SECOND,
    NodeSnapshot,
    diagnosis_json,
    headline,
    knobs_of,
    look,
    metrics_json,
)
from hoptui.cli.support.terminal import OK, dump, entries, say, table
from hoptui.client.session import RefusedError
from hoptui.domain.columns import head_of
from hoptui.domain.details import RunDetails
from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.hot_lines import hot_lines, sampled
from hoptui.domain.jobs import HeadReports
from hoptui.domain.knobs import KnobState
from hoptui.domain.phases import PhaseReadings
from hoptui.domain.stacks import KEPT_S, StackSamples
from hoptui.model import runs
from hoptui.model.outputs import OutputText, last_lines
from hoptui.presentation import details as presented
from hoptui.presentation import diagnosis, job_head, numbers, sentences, stacks, tuner, vocabulary
from hoptui.presentation.metric_names import logged
from hoptui.presentation.readings import value_text
from hoptui.protocol.messages import CommandRecord, Event, RunState, Vital

LAST = 10  # events and commands in `status`
MOST_ENTRIES = 12  # of the configuration
WIDEST = 300  # characters of a line of output
UNEVEN = 1.5  # a mean of so many medians is shown beside the median


def status(run: Run, /, *, json: Json = False) -> int:
    """Show one run as plain text: state, throughput, phases, knobs, last events."""
    with look() as seen:
        found = seen.find(run)
        if json:
            dump(_details(seen, found))
        else:
            _print(seen, found)
    return OK


def summary(seen: NodeSnapshot, run: RunState) -> dict[str, Any]:
    """A run as `ls --json` shows it."""
    vital = seen.store.vital(run.run)
    return {
        "run": run.run,
        "name": run.name,
        "epoch": run.epoch,
        "state": vocabulary.state_name(vital) if vital else None,
        "pid": run.pid,
        "iteration": vocabulary.iteration(vital),
        "knobs": knobs_of(run),
        "metrics": metrics_json(seen.store.latest(f"run/{run.run}")),
        **(job_head.age_json(vital, "head_") if run.rank else {}),
        "tags": run.tags,
        "job": jobs.brief_json(seen.job(run)),
    }


def throughput(run: RunState, vital: Vital | None, metrics: dict[str, float]) -> str:
    """`512 k steps/s`: over the last iterations if the headline is a rate, otherwise its newest value.

    It is unknown where rank 0 is on a node that is silent.
    """
    name, value = headline(run, metrics)
    if run.head is not None and job_head.old_s(vital) is not None:
        value = None  # what rank 0 has logged is old
    elif vital is not None and vital.throughput is not None:
        value = vital.throughput
    return (
        f"{logged(name, value)} {vocabulary.unit_of(name, run.units)}"
        if value is not None
        else numbers.UNKNOWN
    )


def age(run: RunState) -> str:
    """How long a run has been running, or how long ago it ended."""
    if run.exited_wall:
        return f"{numbers.duration(time.time() - run.exited_wall)} ago"
    return numbers.duration(time.time() - run.started_wall)


def _details(seen: NodeSnapshot, run: RunState) -> dict[str, Any]:
    vital = seen.store.vital(run.run)
    return {
        **summary(seen, run),
        "why": run.exit_reason or (sentences.text_of(vital.because) if vital else ""),
        "because": vital.because if vital else None,
        "bad_values": vital.bad_values if vital else None,
        "metrics_left_out": seen.store.left_out(f"run/{run.run}"),
        "details": presented.json_of(seen.session.describe(run.run)),
        "refused": [{**msgspec.to_builtins(one), "text": sentences.sentence(one)} for one in run.refused],
        "declined": run.declined,
        "notes": run.notes,
        "recording_problem": run.recording,
        "total": run.total,
        "iteration_s": vital.iteration_s if vital else None,
        "left_s": left_s(seen, run, vital) if vital else None,
        "phases": _phases(seen.store.latest(f"run/{run.run}")),
        "gpu_by_phase": {
            one.phase: {**one.readings, "samples": one.samples} for one in (vital.phases if vital else ())
        },
        "where": _where_json(seen, run),
        "job": jobs.whole_json(seen.job(run)),
        "world": run.world,
        "ranks": _ranks(seen, run),
        "gpus": [gpus.report(seen, gpu) for gpu in seen.gpus_of(run)],
        "derived": gpus.derived(seen, run),
        "diagnosis": diagnosis_json(run.diagnosis),
        "tuner": tuner.in_words(run.tuner) if run.tuner is not None else None,
        "targets": target.json_of(seen, run, run.targets),
        "head": _head_json(seen, run),
        "started": run.started_wall,
        "exited": run.exited_wall or None,
        "exit": {"reason": run.exit_reason, "detail": run.exit_detail} if run.exit_reason else None,
        "last_output": _last_output(seen, run),
        "events": _events(seen, run),
        "commands": [record for record in seen.store.commands.values() if record.run == run.run][-LAST:],
    }


def _last_output(seen: NodeSnapshot, run: RunState) -> tuple[str, ...] | None:
    """The last lines that a run which failed has written, None of any other run."""
    if not runs.failed(run):
        return None
    with suppress(RefusedError):  # of an older daemon
        return last_lines(output.newest(seen, run.run, run.rank, OutputText()), LAST)
    return ()


def _samples(seen: NodeSnapshot, run: RunState) -> StackSamples | None:
    """The stack samples of the first rank over the last minute of a run, None if there are none.

    Those of a run that has ended are in its recording.
    """
    if not seen.lives(run):
        return _recorded_samples(seen.session.where.recording(run.run))
    with suppress(RefusedError):  # of an older daemon
        return next((each.samples for each in seen.session.stacks(run.run, KEPT_S)), None)
    return None


def _recorded_samples(path: Path) -> StackSamples | None:
    if not path.exists():
        return None
    from hoptui.model.stack_samples import RecordedStacks
    from hoptui.recording import Recording, RecordingError

    with suppress(RecordingError), Recording.open(path) as opened:
        last = max(opened.minutes()[0], default=0)
        if last:
            found = RecordedStacks(opened).between(max(1, last - round(KEPT_S * SECOND)), 0)
            return next(iter(found.ranks.values()), None)
    return None


def _where_json(seen: NodeSnapshot, run: RunState) -> dict[str, Any] | None:
    """The line with the most samples: its share of them, and over how many seconds they are."""
    samples = _samples(seen, run)
    lines = hot_lines(samples) if samples is not None else []
    if samples is None or not lines:
        return None
    return {
        "share": lines[0].share,
        "kind": lines[0].kind,
        **lines[0].place._asdict(),
        "inside": lines[0].inside,
        "seconds": (samples.ended - samples.began) / SECOND,
        "samples": sampled(samples),
        "recorded": not seen.lives(run),
        "text": stacks.where(samples),
    }


def _events(seen: NodeSnapshot, run: RunState) -> list[Event]:
    """The newest events of the run and of its GPUs."""
    sources = {f"gpu/{uuid}" for uuid in run.gpus}
    return [e for e in seen.store.events if e.run == run.run or e.source in sources][-LAST:]


def _head_json(seen: NodeSnapshot, run: RunState) -> dict[str, Any] | None:
    """What the node of rank 0 says of the run, None where that is this node."""
    vital = seen.store.vital(run.run)
    found = job_head.as_json(run, vital, seen.node, seen.store.names(head_of(f"run/{run.run}")))
    if found is None:
        return None
    reports = run.head or HeadReports()
    return {
        **found,
        "diagnosis": diagnosis_json(reports.diagnosis),
        "targets": target.json_of(seen, run, reports.targets),
    }


def _phases(metrics: dict[str, float]) -> dict[str, float]:
    """Seconds of the last iteration by phase, each followed by its parts."""
    found = {name.removeprefix("phase/"): v for name, v in metrics.items() if name.startswith("phase/")}
    outer = list(dict.fromkeys(name.partition("/")[0] for name in found))
    return {name: found[name] for name in sorted(found, key=lambda n: (outer.index(n.partition("/")[0]), n))}


def _ranks(seen: NodeSnapshot, run: RunState) -> list[dict[str, Any]]:
    """The run's processes on this node: the newest iteration of each and its age in seconds."""
    sources = [(run.rank, run.pid, f"run/{run.run}")]
    sources += [(rank.rank, rank.pid, f"rank/{run.run}/{rank.rank}") for rank in run.ranks]
    return [
        {
            "rank": rank,
            "pid": pid,
            "iteration_s": seen.store.latest(source).get("iteration_s"),
            "age_s": seen.age_s(source),
        }
        for rank, pid, source in sources
    ]


def _print(seen: NodeSnapshot, run: RunState) -> None:
    vital = seen.store.vital(run.run)
    metrics = seen.store.latest(f"run/{run.run}")
    symbol = vocabulary.state_word(vital).symbol if vital else vocabulary.UNKNOWN_STATE.symbol
    restart = f"  {vocabulary.restart(run.epoch)}" if run.epoch > 1 else ""
    process = f"  pid {run.pid}{restart}  on {seen.node.host}" if run.pid else ""  # unknown of an import
    say(f"{numbers.clean(run.name)}  {run.run}{process}")
    say(f"{symbol} {vocabulary.state_text(vital, run)}")
    total = f" of {numbers.grouped(run.total)}" if run.total else ""
    say(f"iteration {numbers.grouped(vocabulary.iteration(vital))}{total}, {_pace(seen, run, metrics)}")
    samples = _samples(seen, run)
    if samples is not None and (where := stacks.where(samples)):
        say(f"{'where' if seen.lives(run) else 'where it last was'}: {where}")
    if last := _last_output(seen, run):
        say()
        say("the last lines of its output")
        for line in last:
            say(f"  {numbers.clean(line, WIDEST)}")
    phases = _phases(metrics)
    whole = max(metrics.get("iteration_s", 0.0), sum(s for name, s in phases.items() if "/" not in name))
    if phases:
        say()
        say("where the last iteration went")
        read = {one.phase: one for one in (vital.phases if vital and seen.lives(run) else ())}
        rows = [
            (
                _inset(name),
                numbers.seconds(s),
                numbers.percent(s / whole if whole else None),
                _during(read[name]) if name in read else "",
            )
            for name, s in phases.items()
        ]
        table(rows, right=(1, 2), indent="  ")
    if run.diagnosis is not None:
        _print_diagnosis(run.diagnosis, ended=not seen.lives(run))
    if run.tuner is not None and run.tuner.stand != "off" and seen.lives(run):
        say()
        say("the tuner")
        say(f"  {job_head.dated(tuner.standing(run.tuner), vital)}")
    if run.targets:
        say()
        say("targets")
        table(target.lines(seen, run, run.targets), indent="  ")
    if run.world > 1:
        _print_ranks(seen, run)
    if (job := seen.job(run)) is not None:
        rate = headline(run, metrics)[0]
        jobs.show(job, vocabulary.unit_of(rate, run.units) if rate else "")
    _print_gpus(seen, run)
    aside = ("iteration_s", headline(run, metrics)[0])
    own = [name for name in metrics if name not in aside and not name.startswith("phase/")]
    plain = [(name, logged(name, metrics[name]), run.units.get(name, "")) for name in own]
    if plain:
        say()
        say("metrics")
        table(plain, right=(1,), indent="  ")
    for remark in vocabulary.lost_metrics(vital, seen.store.left_out(f"run/{run.run}")):
        say(f"  {remark}")
    if run.rank:
        _print_head(seen, run)
    if run.recording:
        say()
        say(f"recording: {numbers.clean(run.recording)}")
    if run.knobs:
        say()
        say("knobs")
        table([knob_line(knob) for knob in run.knobs], right=(1,), indent="  ")
    if run.refused:
        say()
        say("not accepted from the script")
        for one in run.refused:
            say(f"  {sentences.sentence(one)}")
    if run.declined:
        say()
        say("not offered by the script")
        entries(run.declined.items(), indent="  ")
    if (details := seen.session.describe(run.run)) is not None:
        _print_details(details)
    _print_past(seen, run)


def _print_head(seen: NodeSnapshot, run: RunState) -> None:
    say()
    if run.head is None:
        say(job_head.UNKNOWN_HEAD)
        return
    vital = seen.store.vital(run.run)
    reports = "reported" if job_head.as_of(vital) else "reports"
    what = f"metrics and the tuner above are what it {reports}"
    say(f"rank 0 is on {job_head.name(run.head)}; {job_head.dated(what, vital)}")
    if verdict := job_head.verdict(run.head):
        say(f"  {job_head.dated(verdict, vital)}")
    table(target.lines(seen, run, run.head.targets), indent="  ")
    if known_there := job_head.known_there(run.head, seen.node):
        say(f"  {job_head.dated(known_there, vital)}")


def _print_details(details: RunDetails) -> None:
    """What the run is, shortened: --json has all of it."""
    short = ("tags", "notes", "command", "job", "commit")
    rows = [(label, text) for label, text in presented.origin_rows(details) if label in short]
    if rows:
        say()
        say("what it is")
        table(rows, indent="  ")
    for title, values, left_out in (
        ("config", details.config, details.config_left_out),
        ("summary", details.summary, details.summary_left_out),
    ):
        entries = presented.value_rows(values, 0)
        if entries:
            say()
            say(title)
            table(entries[:MOST_ENTRIES], indent="  ")
            more = len(entries) + left_out - MOST_ENTRIES
            if more > 0:
                say(f"  and {more} more: hoptui status --json")


def _print_diagnosis(found: Diagnosis, *, ended: bool) -> None:
    say()
    say("what limited it last" if ended else "what limits it")
    say(f"  {numbers.clean(diagnosis.sentence(found))}")
    for figure in diagnosis.evidence(found)[found.verdict == "unknown" :]:
        say(f"    {figure}")
    for text in () if ended else diagnosis.tries(found):
        say(f"  {text}")


def _print_ranks(seen: NodeSnapshot, run: RunState) -> None:
    found = _ranks(seen, run)
    say()
    say(f"ranks on this node: {len(found)} of {run.world}")
    rows = [
        (
            f"rank {r['rank']}",
            f"pid {r['pid']}",
            numbers.seconds(r["iteration_s"]),
            f"{numbers.duration(r['age_s'])} ago" if r["age_s"] is not None else "",
        )
        for r in found
    ]
    table(rows, right=(2, 3), indent="  ")


def _print_gpus(seen: NodeSnapshot, run: RunState) -> None:
    mine = seen.gpus_of(run)
    together = gpus.derived_lines(run, gpus.derived(seen, run))
    if mine:
        say()
        say("GPUs")
        table([gpus.line(gpu, gpus.readings(seen, gpu)) for gpu in mine], right=gpus.NUMBERS, indent="  ")
        for gpu in mine:
            for sentence in gpus.unknown(gpu, gpus.readings(seen, gpu)):
                say(f"  {gpu.index}  {sentence}")
    if together:
        say()
        say("GPUs and training together")
        table(together, indent="  ")


def _during(found: PhaseReadings) -> str:
    """`SM 71 %, tensor 30 %, 512 W (24 samples)`: what the GPUs read during a phase."""
    parts = [
        f"{label} {value_text('%', found.readings[name])}"
        for label, name in gpus.SHARES
        if name in found.readings
    ]
    watts = found.readings.get("power_w")
    parts += [value_text("W", watts)] if watts is not None else []
    return f"{', '.join(parts)} ({numbers.counted(found.samples, 'sample')})"


def _inset(phase: str) -> str:
    *outer, name = phase.split("/")
    return "  " * len(outer) + name


def _print_past(seen: NodeSnapshot, run: RunState) -> None:
    lines = [(e.wall, vocabulary.happened(e)) for e in _events(seen, run)]
    lines += [(c.wall, vocabulary.sentence(c)) for c in seen.store.commands.values() if c.run == run.run]
    if lines:
        say()
        say("last events")
        for wall, line in sorted(lines)[-LAST:]:
            say(f"  {numbers.clock(wall)}  {line}")


def _pace(seen: NodeSnapshot, run: RunState, metrics: dict[str, float]) -> str:
    vital = seen.store.vital(run.run)
    if not seen.lives(run):
        return f"ended {age(run)}"
    parts = [throughput(run, vital, metrics)]
    if vital and vital.iteration_s:
        parts.append(_iteration(vital.iteration_s, _recent_s(seen, run, vital)))
    if vital and (left := left_s(seen, run, vital)) is not None:
        parts.append(f"{numbers.duration(left)} to go")
    return ", ".join([*parts, f"running for {age(run)}"])


def _iteration(usual_s: float, mean_s: float | None) -> str:
    """`180 ms an iteration, 3.91 ms the median` where iterations differ much, else `3.91 ms an iteration`."""
    if mean_s is None or mean_s < UNEVEN * usual_s:
        return f"{numbers.seconds(usual_s)} an iteration"
    return f"{numbers.seconds(mean_s)} an iteration, {numbers.seconds(usual_s)} the median"


def left_s(seen: NodeSnapshot, run: RunState, vital: Vital) -> float | None:
    """The remaining seconds, as on the dashboard; None if unknown or the run is unresponsive."""
    if not run.total or run.total <= vital.step or vital.state in ("unresponsive", "exited"):
        return None
    return runs.left_s(run, vital, *_ends(seen, run, vital), begun=_begun(seen, run), last_t=vital.last_t)


def _recent_s(seen: NodeSnapshot, run: RunState, vital: Vital) -> float | None:
    """The mean seconds from one iteration to the next; None if unknown or there are no iterations."""
    if vital.logs_only:
        return None
    return runs.recent_s(*_ends(seen, run, vital), begun=_begun(seen, run), last_t=vital.last_t)


def _begun(seen: NodeSnapshot, run: RunState) -> int:
    return int(run.started_wall * SECOND) - seen.node.wall_offset_ns


def _ends(
    seen: NodeSnapshot, run: RunState, vital: Vital
) -> tuple[Iterable[CommandRecord], Callable[[int], runs.Ends]]:
    """The commands to the run, and what reads the ends of its iterations after a stamp."""
    source = f"run/{run.run}"

    def read(start: int) -> runs.Ends:
        metrics, points = ("iteration_s",), runs.POINTS
        found = seen.session.query(source, metrics, run=run.run, t0=start, t1=vital.last_t, points=points)
        return array("q", found.t), array("q", found.step)

    return (record for record in seen.store.commands.values() if record.run == run.run), read


def knob_line(knob: KnobState) -> tuple[str, ...]:
    """A knob as one row: name, value, bounds, effect, cost, how long its last change took, and who set it."""
    spec = knob.spec
    if spec.choices:
        bounds = " | ".join(numbers.value(choice, spec) for choice in spec.choices)
    elif spec.min is None and spec.max is None:
        bounds = ""
    else:
        bounds = f"{numbers.value(spec.min, spec)} … {numbers.value(spec.max, spec)}"
    note = "" if knob.in_effect else "not in effect as asked"
    by = f"set by {numbers.clean(knob.by, 40)}" if knob.by else ""
    shown = f"{numbers.value(knob.value, spec)} {numbers.clean(spec.unit, 12)}".rstrip()
    last = vocabulary.took(knob.took_s)
    cost = f"{spec.cost} ({last})" if last else spec.cost
    return (spec.name, shown, bounds, spec.effect, cost, ", ".join(filter(None, (note, by))))
