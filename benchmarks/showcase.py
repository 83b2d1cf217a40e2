"""Record a language model and a PPO run from a slow start: what limits each, the advised change, the tuner.

`python -m benchmarks.showcase [--device cpu] [--only lm ppo] [--output FOLDER] [--rename OLD=NEW]`. It takes
less than ten minutes on a GPU node without network, or on a CPU. The language model starts as in the "before"
of its guide (`guides.py`), or with the smallest preset and one sequence at a time on a CPU. PPO starts as
`hoptui demo` does. Once a run has a verdict with advice, the first advised change is made and its effect
waited for. Then the tuner has the rest of the time.

Each recording is copied to the folder as `showcase-<workload>-<device>.hoptui`, at most 2 MB each. It must
hold a verdict, lines of the script, the change, a trial of the tuner and readings of the processes.
What is missing is said, and the exit status is 1 then. `hoptui replay FILE` plays it. `--rename` replaces the
beginning of paths, so that a recording does not name the folders of the machine where it was made.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import structs

from benchmarks.guides import LM_BEFORE
from benchmarks.live import Live
from benchmarks.measure import RESULTS, Bench, bench, report, tell, until
from benchmarks.training import start
from benchmarks.tuner_guides import endless
from hoptui.cli.commands.demo import EAGER, SLOW
from hoptui.client.session import Session
from hoptui.domain.diagnosis import Advice
from hoptui.domain.hot_lines import hot_lines
from hoptui.domain.knobs import KnobError, check_value
from hoptui.domain.stacks import StackSamples
from hoptui.domain.tuning import Limits
from hoptui.model.recorded.processes import ProcessReader
from hoptui.model.stack_samples import RecordedStacks
from hoptui.node.addresses import addresses
from hoptui.presentation import vocabulary
from hoptui.protocol.messages import CommandRecord, Event, RunState
from hoptui.recording import Recording, library, stack_minutes, stored_json
from hoptui.recording.database import open_for_writing, transaction
from hoptui.recording.tables import Records

MOST_BYTES = 2_000_000
BEFORE = 30
"""Iterations before the advised change: as many as the demo waits for."""
ITERATIONS = "100000"
"""More than a run reaches here."""
ADVICE_S, EFFECT_S, TUNE_S, WHOLE_S = 90.0, 75.0, 80.0, 30.0
WORDS = (
    "a verdict", "lines of the script", "a change by a user", "a trial of the tuner", "its processes",
    "the processes on its GPUs",
)  # fmt: skip

Device = str
Record = TypeVar("Record", Event, CommandRecord)
NO_PLACES: Mapping[str, str] = MappingProxyType({})


class Workload(NamedTuple):
    """The metric that counts its units, and its command from a slow start on a GPU and on a CPU."""

    work: str
    gpu: tuple[str, ...]
    cpu: tuple[str, ...]
    learning: tuple[str, ...] = ()
    """The knobs of learning that the tuner may turn."""


def _words(settings: dict[str, str]) -> tuple[str, ...]:
    return tuple(word for name, value in settings.items() for word in (f"--{name}", value))


_PPO = ("ppo", "--env", "Pendulum-v1", "--iterations", "1")
WORKLOADS = {
    "lm": Workload(
        "tokens",
        LM_BEFORE,
        (
            *("lm", "--preset", "tiny", "--batch-tokens", "2048", "--micro-batch", "1", "--compile", "off"),
            *("--evaluate-every", "0", "--iterations", "1"),
        ),
    ),
    "ppo": Workload(
        "env_steps", (*_PPO, *_words(SLOW | EAGER)), (*_PPO, *_words(SLOW)), ("num_envs", "minibatch_size")
    ),
}


def advised(state: RunState) -> tuple[Advice, int] | None:
    """The first advised change to a value that is not in effect, and the version of its knob."""
    for advice in state.diagnosis.advice if state.diagnosis is not None else ():
        knob = next((knob for knob in state.knobs if knob.spec.name == advice.knob), None)
        if knob is None or advice.value is None:
            continue
        with suppress(KnobError):
            if check_value(knob.spec, advice.value) != knob.value:
                return advice, knob.version
    return None


def record(
    node: Bench, session: Session, name: str, device: Device, output: Path, places: Mapping[str, str]
) -> dict[str, Any]:
    """Record one workload.

    Raises:
        RuntimeError: the run was lost, or the tuner does not start.
        TimeoutError: it was never advised what to change.
    """
    workload = WORKLOADS[name]
    command = endless(workload.gpu if device == "cuda" else workload.cpu, ITERATIONS)
    since = time.monotonic_ns()
    started = start(node, (*command, "--device", device), name=name)
    run = Live(node, session, started, workload.work)
    until(lambda: run.iterations(since) >= BEFORE, ADVICE_S, f"{BEFORE} iterations of {name}")
    advice, version = until(lambda: advised(run.state()), ADVICE_S, f"advice for {name}")
    state = run.state()
    assert state.diagnosis is not None
    why = f"advised: the run is {state.diagnosis.verdict}"
    given = session.submit(
        state, "set", knob=advice.knob, value=advice.value, expect_version=version, why=why
    )
    session.outcome(given, timeout_s=EFFECT_S)
    changed = _measured(session, state.run, given)
    tuned = run.tuned(Limits(learning=workload.learning, budget=1.0), TUNE_S)
    run.end()
    path = output / f"showcase-{name}-{device}.hoptui"
    keep(addresses().recording(state.run), path, places)
    return {
        "file": str(path),
        "bytes": path.stat().st_size,
        "seconds": round((time.monotonic_ns() - since) / 1e9),
        "verdict": state.diagnosis.verdict,
        "change": vocabulary.sentence(changed),
        "trials": len(tuned.tried),
        "missing": missing(path),
    }


def _measured(session: Session, run: str, command: str) -> CommandRecord:
    """A change once its effect is known or final, or as it is after some time."""
    end = time.monotonic() + EFFECT_S
    while True:
        found = next(r for r in session.fetch(run=run).commands if r.id == command)
        effect = found.measured
        if (effect is not None and (effect.detectable or effect.settled)) or time.monotonic() > end:
            return found
        time.sleep(0.2)


def keep(source: Path, path: Path, places: Mapping[str, str] = NO_PLACES) -> None:
    """Copy a recording once it is closed. The oldest rows of one that is too large become summaries.

    Paths are renamed as by `rename_paths`.

    The copy has a rollback journal: to read one with a write-ahead log, SQLite writes files beside it.
    """
    until(lambda: library.at_rest(source), WHOLE_S, f"the end of {source}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    shutil.copyfile(source, path)
    large = path.stat().st_size > MOST_BYTES
    if large:
        with Recording.create(path) as recording:
            recording.thin(MOST_BYTES - MOST_BYTES // 10)
    if places:
        rename_paths(path, places)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        if large or places:
            database.execute("VACUUM")


def rename_paths(path: Path, places: Mapping[str, str]) -> None:
    """Replace texts such as the beginning of paths in a recording of one node that no process writes.

    What a newer version has stored of the run is kept. Rows and their sources have no paths.
    """
    db, lock = open_for_writing(path)
    try:
        records = Records(path, db)
        with transaction(db):
            values: dict[str, bytes | str] = {}
            for key in (library.RUN, library.NODE):
                if (raw := records.recall(key)) is not None:
                    values[key] = stored_json.encode(_renamed(stored_json.plain(raw), places))
            for t in records.minutes(0)[0]:
                minute = stack_minutes.decode(records.minute(t) or b"", t)
                ranks = {rank: [_renamed_samples(each, places)] for rank, each in minute.ranks.items()}
                values[stack_minutes.key(t)] = stack_minutes.encode(ranks, t)
            records.remember(values)
            records.add_events(_renamed_record(event, Event, places) for event in records.events(0))
            records.add_commands(_renamed_record(one, CommandRecord, places) for one in records.commands(0))
    finally:
        db.close()
        os.close(lock)


def _renamed(value: Any, places: Mapping[str, str]) -> Any:
    """Replace in all texts of JSON, but not in the names of fields."""
    if isinstance(value, str):
        for old, new in places.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, dict):
        return {key: _renamed(item, places) for key, item in value.items()}
    return [_renamed(item, places) for item in value] if isinstance(value, list | tuple) else value


def _renamed_record(record: Record, kind: type[Record], places: Mapping[str, str]) -> Record:
    return msgspec.convert(_renamed(msgspec.to_builtins(record), places), kind)


def _renamed_samples(samples: StackSamples, places: Mapping[str, str]) -> StackSamples:
    packages = tuple(
        (name, len(_renamed(samples.names[name][:start], places))) for name, start in samples.packages
    )
    return structs.replace(samples, names=tuple(_renamed(samples.names, places)), packages=packages)


def missing(path: Path) -> list[str]:
    """What a recording lacks that a showcase must hold."""
    with Recording.open(path, still=True) as recording:
        known = library.known_run(recording)
        run = known.state if known is not None else None
        name = run.run if run is not None else ""
        samples = RecordedStacks(recording).between(0, 0).ranks
        lines = [line for each in samples.values() for line in hot_lines(each) if line.place.file]
        commands = recording.commands()
        held = (
            any(event.code == "diagnosis.verdict" for event in recording.events()),
            bool(lines),
            any(command.origin.kind == "person" and command.stage == "applied" for command in commands),
            any(command.origin.kind == "tuner" and command.stage == "applied" for command in commands),
            f"process/{name}" in recording.sources(),
            run is None or not run.gpus or name in _on_gpus(recording),
        )
    found = [what for what, there in zip(WORDS, held, strict=True) if not there]
    return found + ([f"a size below {MOST_BYTES:,} bytes"] if path.stat().st_size > MOST_BYTES else [])


def _on_gpus(recording: Recording) -> set[str]:
    """The runs whose processes were on a GPU at the end."""
    found = ProcessReader(recording).at(recording.span()[1])
    return {process.run for process in found.processes} if found is not None else set()


def main(arguments: Sequence[str] = ()) -> int:
    """Record, and report what became of each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.showcase", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=[*WORKLOADS], help="these alone")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder of the recordings")
    parser.add_argument(
        "--rename", nargs="+", default=[], metavar="OLD=NEW", help="replace the beginning of paths in them"
    )
    given = parser.parse_args(list(arguments))
    places = dict(one.split("=", 1) for one in given.rename)
    found: dict[str, Any] = {}
    for name in given.only:
        with bench() as node, node.session() as session:
            try:
                one = record(node, session, name, given.device, given.output, places)
            except (RuntimeError, TimeoutError) as error:
                one = {"missing": [*WORDS], "error": str(error)}
            found[name] = tell(name, one)
    report("showcase", {"device": given.device, "workloads": found})
    return int(any(one["missing"] for one in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
