"""Results of earlier tuners, kept for the next run of the same kind: how kinds are identified, and what is
kept. Pure.

The next tuner starts its search at a result, but does not trust it. A result that does not fit is measured
and reverted like any other trial. So a key that is too wide costs one trial. A key that is too narrow only
loses what was known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

import msgspec
from msgspec import structs

from hoptui.domain.knobs import KnobSpec, KnobValue
from hoptui.domain.tuning import Objective
from hoptui.protocol.messages import CommandRecord, RunState

MOST = 500
"""The newest results that are kept. A kind of run has one for each objective and each set of knobs that a
tuner may turn."""
ASIDE = frozenset(
    (
        *("seed", "iterations", "steps", "total", "hours", "minutes", "name", "run-name", "json", "quiet",
          "verbose"),
        *("resume", "checkpoint", "checkpoint-dir", "checkpoint-every", "out", "output", "output-dir", "log",
          "log-dir"),
    )
)  # fmt: skip
"""Options of a command line that do not affect the work of an iteration."""
FILES = (".pt", ".ckpt", ".json", ".jsonl", ".txt", ".toml", ".yaml")


class TunerResult(msgspec.Struct, frozen=True, kw_only=True):
    """The final result of a tuner: `values` by knob, and the most bytes that the run held with them (`peak`,
    None: unknown).

    `turned` are the knobs that the tuner was allowed to turn; empty means those of `values`. `key` identifies
    the kind of run, `run` and `name` the run. `wall` is the time, in seconds since 1970.
    """

    key: str
    values: dict[str, KnobValue]
    peak: int | None = None
    objective: Objective = "throughput"
    run: str = ""
    name: str = ""
    wall: float = 0.0
    turned: tuple[str, ...] = ()


def key(run: RunState, gpus: Iterable[str], records: Sequence[CommandRecord] = ()) -> str:
    """The kind of a run, 16 hexadecimal digits: its work, the names of its GPUs (`gpus`), its torch.

    The work consists of these parts:
    the command line without paths, seeds and knobs; the cost of a unit of throughput; and the declared values
    of knobs that shape the work. These are knobs of cost `rebuild` and `restart` (the model, precision,
    compile mode), and integer knobs of effect `learning`. Later changes of a knob do not change the kind.

    After a restart, a process declares the values that the earlier process left. The run's commands
    (`records`, oldest first) show the values from before they were turned. Changes that the run itself made
    in an earlier process are unknown.
    """
    shape = {
        knob.spec.name: _begun(knob.spec, run.epoch, records) for knob in run.knobs if _shapes(knob.spec)
    }
    said = {
        "argv": _command(run.argv, {knob.spec.name for knob in run.knobs}),
        "flops": None if run.flops is None else (run.flops.per_unit, run.flops.metric),
        "headline": run.headline,
        "knobs": sorted((knob.spec.name, knob.spec.kind) for knob in run.knobs),
        "shape": shape,
        "gpus": sorted(gpus),
        "world": run.world,
        "torch": run.versions.get("torch", ""),
    }
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()[:16]


def best(
    results: Iterable[TunerResult],
    kind: str,
    objective: Objective,
    held: Mapping[str, KnobValue] | None = None,
) -> TunerResult | None:
    """The best earlier result for a run of this kind and objective that this tuner can bring about.

    `held` are the values in effect of the knobs that the tuner may not turn. A result with other values of
    these does not apply. Of the others, the one whose tuner was allowed to turn most of the free knobs wins,
    then the newest.
    """
    kept = held or {}
    same = [
        result
        for result in results
        if result.key == kind
        and result.objective == objective
        and all(kept.get(name, value) == value for name, value in result.values.items())
    ]
    return max(same, key=lambda result: (len(set(result.turned) - kept.keys()), result.wall), default=None)


def with_newer(results: Sequence[TunerResult], newer: TunerResult) -> tuple[TunerResult, ...]:
    """Add a newer result. It replaces the earlier one of the same kind, objective and `turned`. The newest
    `MOST` are kept.

    A tuner that may turn other knobs has compared other values. So neither result disproves the other.
    """
    if not newer.turned:
        newer = structs.replace(newer, turned=tuple(sorted(newer.values)))
    others = [r for r in results if _slot(r) != _slot(newer)]
    return (*others, newer)[-MOST:]


def _slot(result: TunerResult) -> tuple[str, Objective, tuple[str, ...]]:
    return result.key, result.objective, result.turned


def _shapes(spec: KnobSpec) -> bool:
    return spec.cost in ("rebuild", "restart") or (spec.effect == "learning" and spec.kind == "int")


def _begun(spec: KnobSpec, epoch: int, records: Iterable[CommandRecord]) -> KnobValue:
    """The value that the first process declared for a knob. Each later process declares what the earlier one
    left."""
    begun = left = None
    for before, value in (move for r in records if r.epoch < epoch for move in _moves(r, spec.name)):
        begun, left = (begun if before == left else before), value
    return spec.default if begun is None or left != spec.default or spec.cost == "restart" else begun


def _moves(record: CommandRecord, knob: str) -> Iterator[tuple[KnobValue | None, KnobValue]]:
    """The values before and after each change of a knob by a command."""
    yield from ((change.before, change.value) for change in record.followed if change.knob == knob)
    if record.knob == knob and record.effective is not None:
        yield record.before, record.effective


def _command(argv: str, knobs: set[str]) -> list[str]:
    """The words of a command line that identify the work, sorted, so that their order does not matter."""
    aside = ASIDE | {name.replace("_", "-") for name in knobs}
    words = argv.split()
    kept: list[str] = []
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        if not word.startswith("-"):
            kept.append(_plain(word))
            continue
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        name = option.lstrip("-").replace("_", "-")
        if name.removeprefix("no-") not in aside:
            kept.append(f"{name}={_plain(value)}")
    return sorted(filter(None, kept))


def _plain(word: str) -> str:
    """A word of a command line. "" for a path, because file locations do not change the work."""
    return "" if "/" in word or PurePath(word).suffix in FILES else word
