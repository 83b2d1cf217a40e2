"""A smaller model where memory is too short: what it is, and whether the user agrees."""

from __future__ import annotations

import dataclasses
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import hoptui
from hoptui_trainer.common.job import JobOptions
from hoptui_trainer.common.memory import is_out_of_memory, release, shortage
from hoptui_trainer.common.memory_budget import memory_line
from hoptui_trainer.common.options import declared
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.common.remedies import remedies

WIDTHS = ("hidden", "d_model", "ff")
"""Knobs that are halved for a smaller model, with the heads if they can be."""
ANSWER_S = 600.0
"""How long a question waits for an answer; none is a no."""


class Plan(Protocol):
    """A frozen dataclass with the config of a run."""

    @property
    def config(self) -> Any: ...


PlanT = TypeVar("PlanT", bound=Plan)
S = TypeVar("S")


class Consent:
    """Whether a run may go on with a smaller model: `--smaller-model-on-oom`, else the answer to a question
    on the terminal, else no. All ranks call it together, and rank 0 decides.

    Args:
        check: refuses a config whose sizes do not fit together, with a ValueError.
        say: takes a line for users.
        without: the knobs that mean nothing to the model of a config.
        other: errors that a smaller model does not help against.
        tried: knobs that `fitted` does not name as a remedy, because `prepare` has tried them.
    """

    def __init__(
        self,
        job: JobOptions,
        run: hoptui.Run,
        ranks: RankGroup,
        device: Any,
        check: Callable[[Any], None],
        say: Callable[[str], None],
        without: Callable[[Any], tuple[str, ...]] = lambda config: (),
        other: tuple[type[Exception], ...] = (),
        tried: tuple[str, ...] = (),
    ) -> None:
        self._job, self._run, self._ranks, self._device = job, run, ranks, device
        self._check, self._say, self._without, self._other = check, say, without, other
        self._tried = tried

    def smaller(self, config: Any, why: str, *, helps: bool = True) -> dict[str, int]:
        """The knobs of a smaller model and their values if the user agrees to it; else empty.

        `why` is why the present one cannot go on; with `helps` false the answer is no. The change is reported
        as an event and as a line.
        """
        values = smaller_model(config, self._check, self._without(config))
        if not values or not self._agreed(question(config, values, why, self._memory()), helps=helps):
            return {}
        text = f"{why}: a smaller model instead, {changes(config, values)}; its weights begin anew"
        self._run.event(text, level="warning")
        self._say(text)
        return values

    def remedies(self, config: Any, tried: tuple[str, ...] = ()) -> str:
        """What helps instead, without knobs that were `tried`."""
        limited = (
            f"; {self._job.memory_limit} are planned with (--memory-limit)" if self._job.memory_limit else ""
        )
        return remedies(config, (*self._without(config), *tried)) + limited

    def fitted(self, plan: PlanT, prepare: Callable[[PlanT], S]) -> tuple[PlanT, S]:
        """The plan that fits, and what `prepare` makes of it.

        Each attempt gets a config of its own, because an attempt replaces what was left open.

        Raises:
            MemoryError: it does not fit, and a smaller model is not wanted; with what helps.
        """
        config = plan.config
        while True:
            attempt = dataclasses.replace(plan, config=dataclasses.replace(config))  # type: ignore[type-var]
            try:
                return attempt, prepare(attempt)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                why, helps = shortage(error), not isinstance(error, self._other)
                everywhere = self._ranks.world == 1 or isinstance(error, MemoryError)
            release(self._device)
            # What other ranks have not met cannot be agreed on with them.
            values = self.smaller(config, why, helps=helps) if everywhere else {}
            if not values and not helps:
                raise MemoryError(why)  # it names what is too large
            if not values:
                raise MemoryError(f"{why}; {self.remedies(config, self._tried)}")
            config = dataclasses.replace(config, **values)

    def _memory(self) -> str:
        return memory_line(self._device, self._ranks.local_world)

    def _agreed(self, text: str, *, helps: bool) -> bool:
        own = helps and self._ranks.rank == 0 and (self._job.smaller_model_on_oom or self._answer(text))
        return bool(self._ranks.gather(own)[0])

    def _answer(self, text: str) -> bool:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        with self._run.phase("question"):
            return ask(text, lambda: self._run.stop_asked)


def ask(text: str, stopped: Callable[[], bool], seconds: float = ANSWER_S) -> bool:
    """Ask on the terminal. True if the answer is y or yes; False for another one, for none within `seconds`,
    and once `stopped`."""
    sys.stderr.write(text)
    sys.stderr.flush()
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stopped():
        if select.select([sys.stdin], [], [], 0.2)[0]:
            return sys.stdin.readline().strip().lower() in ("y", "yes")
    sys.stderr.write("no answer\n")
    return False


def question(config: Any, values: Mapping[str, int], why: str, memory: str) -> str:
    """The question whether to go on with `values`."""
    return (
        f"{memory}\n{why}.\nGo on with a smaller model ({changes(config, values)})? "
        "Its weights begin anew: what was learned is not used. [y/N] "
    )


def changes(config: Any, values: Mapping[str, int]) -> str:
    """The values before and after."""
    return ", ".join(f"{name} {getattr(config, name):,} → {value:,}" for name, value in values.items())


def smaller_model(config: Any, check: Callable[[Any], None], without: tuple[str, ...] = ()) -> dict[str, int]:
    """The knobs of a model of half the width, or of half the layers where that cannot be; empty if there is
    no smaller one."""
    least = {name: int(knob.min or 1) for name, _, knob in declared(type(config)) if name not in without}
    for values in _candidates(config, least):
        smaller = {name: value for name, value in values.items() if value < getattr(config, name)}
        if not smaller or any(value < least[name] or value < 1 for name, value in smaller.items()):
            continue
        try:
            check(dataclasses.replace(config, **smaller))
        except ValueError:
            continue
        return smaller
    return {}


def _candidates(config: Any, knobs: Mapping[str, int]) -> Iterator[dict[str, int]]:
    widths = {name: getattr(config, name) // 2 for name in WIDTHS if name in knobs}
    if "heads" in knobs:
        for heads in (max(1, config.heads // 2), config.heads, 1):
            yield {**widths, "heads": heads}
    elif widths:
        yield widths
    if "layers" in knobs:
        yield {"layers": config.layers // 2}
