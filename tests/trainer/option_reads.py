"""Command lines of the workloads as their parsers declare them, and which options a run reads."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin
from unittest import mock

import torch

import hoptui
from hoptui_trainer.__main__ import app
from hoptui_trainer.common.job import JobOptions, options_given
from hoptui_trainer.common.launch import Launch
from hoptui_trainer.common.options import KnobValues, declared, option_name
from hoptui_trainer.common.ranks import ALONE
from hoptui_trainer.common.report import Console, silent
from hoptui_trainer.lm import train as lm
from hoptui_trainer.lm.config import PRESETS as LM_PRESETS
from hoptui_trainer.lm.config import LMConfig
from hoptui_trainer.lm.job import LMOptions, LMPlan
from hoptui_trainer.lm.job import resolve_job as resolve_lm
from hoptui_trainer.ppo import train as ppo
from hoptui_trainer.ppo.config import PRESETS as PPO_PRESETS
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.job import PPOOptions, PPOPlan, make_plan
from hoptui_trainer.vision import train as vision
from hoptui_trainer.vision.config import PRESETS as VISION_PRESETS
from hoptui_trainer.vision.config import VisionConfig
from hoptui_trainer.vision.images import Loading
from hoptui_trainer.vision.job import VisionOptions, VisionPlan
from hoptui_trainer.vision.job import resolve_job as resolve_vision

Read = tuple[type, str]
"""A class and the field of it that was read."""


class Workload(NamedTuple):
    """A workload: `carriers` are the classes whose fields have the names of options. A field of the first
    that has it is what training reads."""

    loop: Any
    options: type[JobOptions]
    config: type
    presets: Mapping[str, Any]
    carriers: tuple[type, ...]


WORKLOADS = {
    "ppo": Workload(ppo, PPOOptions, PPOConfig, PPO_PRESETS, (PPOConfig, PPOPlan, PPOOptions)),
    "lm": Workload(lm, LMOptions, LMConfig, LM_PRESETS, (LMConfig, LMPlan, LMOptions)),
    "vision": Workload(
        vision,
        VisionOptions,
        VisionConfig,
        VISION_PRESETS,
        (Loading, VisionConfig, VisionPlan, VisionOptions),
    ),
}

NO_USE = re.compile(
    r"(^|\.)(check|_check\w*|check_\w+|judging|evaluations_asked|introduction|resolve_job|make_plan|declare"
    r"|state_dict|_saved_progress|_not_kept|cautions|computation|network|remedies|options_given"
    r"|without_effect|__post_init__)(\.|$)|^sizes(\.|$)"
)
"""Functions in which to read an option is to refuse, to print, to declare or to save it."""
CARRYING = re.compile(r"^(dataclasses|copy|hoptui(\..*)?)$")
"""Modules that read every field of what they are given."""


class Option(NamedTuple):
    """An option as its parser has it."""

    name: str
    kind: Any

    @property
    def written(self) -> str:
        return option_name(self.name)


def options(workload: str) -> list[Option]:
    """All options of a command, from its parser."""
    found = []
    for argument in app[workload].assemble_argument_collection():
        if argument.parameter.parse is False:
            continue
        if argument.keys or (workload in ("slurm", "check") and argument.name.startswith("--")):
            name = argument.keys[-1] if argument.keys else argument.name[2:].replace("-", "_")
            found.append(Option(name, _kind(argument.hint)))
    return found


def _kind(hint: Any) -> Any:
    """The type without None and annotations."""
    while get_origin(hint) is not None and type(None) in get_args(hint):
        hint = next(part for part in get_args(hint) if part is not type(None))
    return hint.__origin__ if hasattr(hint, "__metadata__") else hint


def parsed(workload: str, words: list[str]) -> tuple[JobOptions, KnobValues]:
    """What a command line means. Each option is parsed alone, and once: to parse fifty takes long.

    Raises:
        CycloptsError: the parser refuses it.
    """
    starts = [place for place, word in enumerate(words) if word.startswith("--")]
    given: dict[str, Any] = {}
    knobs: dict[str, Any] = {}
    for start, end in zip(starts, [*starts[1:], len(words)], strict=True):
        job, own = _parsed(workload, *words[start:end])
        given |= options_given(job)
        knobs |= own
    return _joined(WORKLOADS[workload].options(**given), knobs)


def _joined(job: JobOptions, knobs: KnobValues) -> tuple[JobOptions, KnobValues]:
    """PPO has its knobs in its job."""
    if isinstance(job, PPOOptions):
        return dataclasses.replace(job, knobs=knobs), {}
    return job, knobs


@functools.cache
def _parsed(workload: str, *words: str) -> tuple[JobOptions, KnobValues]:
    _, bound, _ = app.parse_args([workload, *words], exit_on_error=False, print_error=False)
    return bound.arguments.get("job") or WORKLOADS[workload].options(), bound.arguments.get("knobs") or {}


def resolved(
    workload: str, words: list[str], *, on_gpu: bool = False, world: int = 1, at_once: bool = False
) -> Any:
    """The plan of a command line; `at_once` parses it as a whole.

    Raises:
        CycloptsError, UsageError: it is refused.
    """
    job, knobs = _joined(*_parsed.__wrapped__(workload, *words)) if at_once else parsed(workload, words)
    job.check()
    if workload == "ppo":
        return make_plan(job, None, on_gpu=on_gpu)  # type: ignore[arg-type]
    if on_gpu or world > 1:
        resolve: Any = resolve_lm if workload == "lm" else resolve_vision
        return resolve(job, knobs, None, on_gpu=on_gpu, world=world)
    device = torch.device("cpu")
    launch = Launch(
        *(), workload=workload, job=job, saved=None, notes=(), ranks=ALONE, device=device,
        console=Console(silent), began=0.0,
    )  # fmt: skip
    plan = WORKLOADS[workload].loop.resolve(job, knobs, launch)
    return plan[0] if workload == "vision" else plan


def train(workload: str, words: list[str]) -> set[Read]:
    """Train as a command line says. Returns what was read, by code that uses it.

    Raises:
        CycloptsError, UsageError: it is refused.
    """
    job, knobs = parsed(workload, words)
    found: set[Read] = set()
    patches = [
        mock.patch.object(kind, "__getattribute__", _recorder(kind, found)) for kind in carriers(workload)
    ]
    arguments = (job,) if workload == "ppo" else (job, knobs)
    for patch in patches:
        patch.start()
    try:
        WORKLOADS[workload].loop.train(*arguments, lambda _: None)
    finally:
        for patch in reversed(patches):
            patch.stop()
    return found


def carriers(workload: str) -> tuple[type, ...]:
    return WORKLOADS[workload].carriers


def carrier(workload: str, name: str) -> type:
    """The class from whose field training reads an option."""
    return next(kind for kind in carriers(workload) if name in fields_of(kind))


def fields_of(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def _recorder(kind: type, found: set[Read]) -> Any:
    names, plain = fields_of(kind), object.__getattribute__

    def read(self: object, name: str) -> Any:
        if name in names and (kind, name) not in found and _uses(sys._getframe(1)):
            found.add((kind, name))
        return plain(self, name)

    return read


def _uses(frame: Any) -> bool:
    """Whether the code of a frame, or what it was called by, uses what it reads."""
    if CARRYING.match(frame.f_globals["__name__"]):
        return False
    while frame is not None and frame.f_globals["__name__"] != __name__:
        if NO_USE.search(frame.f_code.co_qualname):
            return False
        frame = frame.f_back
    return True


def plan_values(plan: Any) -> dict[str, Any]:
    """The values of a plan and of its config, by field."""
    own = {name: getattr(plan, name) for name in fields_of(type(plan)) - {"config", "notes"}}
    return {**own, **vars(plan.config)}


def values(option: Option, workload: Workload, own: Mapping[str, str], now: object) -> Iterator[list[str]]:
    """The words of values other than `now` that an option may have: `own` where they are named, else those
    that follow from its type or the bounds of its knob."""
    if option.name in own:
        yield [option.written, own[option.name]]
        return
    knob = next((knob for name, _, knob in declared(workload.config) if name == option.name), None)
    if option.kind is bool:
        yes, no = option.written, "--no-" + option.written[2:]
        yield [no if now is True else yes]
        if now is None:
            yield [no]
    elif knob is not None and knob.choices:
        yield from (
            [option.written, str(choice)] for choice in knob.choices if choice not in (now, "max-autotune")
        )
    elif knob is not None:
        yield from ([option.written, f"{value}"] for value in _around(knob, option.kind, now))
    elif get_origin(option.kind) is Literal:
        yield from ([option.written, choice] for choice in get_args(option.kind) if choice != now)
    elif option.kind is int:
        yield from ([option.written, str(number)] for number in (3, 1, 2))
    elif option.kind is float:
        yield from ([option.written, str(number)] for number in (0.5, 2.5))
    elif option.kind is Path:
        yield [option.written, "folder"]
    else:
        yield [option.written, "x"]


def _around(knob: hoptui.Knob, kind: type, now: Any) -> Iterator[int | float]:
    """Values of a knob near the one that it has."""
    least, most = knob.min or 0, knob.max or 0
    near = (now * 2, now / 2, now + 1, now - 1, least, most) if now else (1, 2, least, most)
    for value in near:
        taken = kind(value)
        if least <= taken <= most and taken != now:
            yield taken
