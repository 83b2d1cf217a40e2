"""Options and knobs that have no effect in some jobs: each workload has one table of them.

An option without effect is refused. A knob without effect is not declared, or refuses changes where another
knob decides whether it has one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hoptui_trainer.common.errors import UsageError, in_terms_of_knobs
from hoptui_trainer.common.options import declared, option_name

Apply = Callable[[Any], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What decides which options have an effect.

    Args:
        config: the values of the knobs.
        on_gpu: whether the training device is a GPU.
        source: where samples come from: the name of an environment or of data.
        acts_on_cpu: whether the CPU computes rollouts.
    """

    config: Any
    on_gpu: bool
    source: str = ""
    acts_on_cpu: bool = False


class Rule(NamedTuple):
    """When options have an effect.

    Args:
        names: of knobs and other options, as fields are spelled.
        why_not: the reason for which they have none, and what to do about it; "" where they have one. Other
            knobs are named as in `schedule wsd`.
        by_knob: whether a knob decides it that can change while the run goes on.
    """

    names: tuple[str, ...]
    why_not: Callable[[Circumstances], str]
    by_knob: bool = False


Rules = Sequence[Rule]


def check_applies(rules: Rules, where: Circumstances, given: Mapping[str, Any]) -> None:
    """Refuse options without effect.

    Args:
        given: the values on the command line, by field.

    Raises:
        UsageError: one sentence that begins with the option.
    """
    for name, value in given.items():
        if reason := next(_reasons(rules, name, where), ""):
            written = option_name(name)
            raise UsageError(f"{f'--no-{written[2:]}' if value is False else written}: {reason}")


def objection(rules: Rules, where: Circumstances, names: Iterable[str]) -> str:
    """Why the first of these has no effect, as `name: reason`; "" if each has one."""
    return next((f"{name}: {reason}" for name in names for reason in _reasons(rules, name, where)), "")


def without_effect(rules: Rules, where: Circumstances) -> tuple[str, ...]:
    """The knobs that have no effect in this run, whatever else is changed in it."""
    fixed = [rule for rule in rules if not rule.by_knob]
    knobs = (name for name, _, _ in declared(type(where.config)))
    return tuple(name for name in knobs if any(_reasons(fixed, name, where)))


def knob_setters(
    rules: Rules, where: Callable[[], Circumstances], apply: Mapping[str, Apply]
) -> dict[str, Apply]:
    """What applies each knob, for `Run.knobs`. It refuses a change without effect, and refuses in terms of
    knobs what is refused in terms of options at the start.

    Args:
        where: the circumstances at the time of a change.
        apply: what applies a knob, by name; others are fields that training reads.
    """
    config = where().config
    return {
        name: _setter(name, rules, where, apply.get(name), getattr(config, name))
        for name, _, _ in declared(type(config))
    }


def _setter(
    name: str, rules: Rules, where: Callable[[], Circumstances], apply: Apply | None, held: object
) -> Apply:
    own = [rule for rule in rules if name in rule.names and rule.by_knob]

    def set_to(value: object) -> None:
        nonlocal held
        # A change that is taken back comes with the value of before.
        if value != held and (reason := next(_reasons(own, name, where()), "")):
            raise ValueError(reason)
        if apply is not None:
            try:
                apply(value)
            except UsageError as error:
                # The answer begins with the knob and the value already.
                text = in_terms_of_knobs(str(error)).removeprefix(f"{name} {value}: ")
                raise ValueError(text) from error
        held = value

    return set_to


def _reasons(rules: Rules, name: str, where: Circumstances) -> Iterator[str]:
    """Why a knob or option has no effect."""
    return filter(None, (rule.why_not(where) for rule in rules if name in rule.names))
