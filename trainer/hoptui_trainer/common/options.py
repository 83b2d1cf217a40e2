"""Command-line options made from the knobs of a config dataclass: one declaration, one set of names and
bounds."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypedDict

import cyclopts

from hoptui import Knob
from hoptui_trainer.common.errors import UsageError

KnobValues = Mapping[str, int | float | str | bool]


class Declared(NamedTuple):
    """A field of a config dataclass that is a knob."""

    name: str
    kind: type
    knob: Knob


def declared(config: type) -> Iterator[Declared]:
    """The knobs of a config dataclass, in its order."""
    for name, hint in typing.get_type_hints(config, include_extras=True).items():
        for extra in getattr(hint, "__metadata__", ()):
            if isinstance(extra, Knob):
                yield Declared(name, typing.get_args(hint)[0], extra)


def whole_number(_: object, tokens: Sequence[cyclopts.Token]) -> int:
    """A cyclopts converter: `4096`, `4_096`; never `1.5`, which cyclopts' own would round.

    Raises:
        ValueError: the text is no whole number.
    """
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def option_name(name: str) -> str:
    """`num_envs` as it is written on the command line: `--num-envs`."""
    return "--" + name.replace("_", "-")


def knob_options(config: type, defaults: Mapping[str, Any]) -> type:
    """A TypedDict with one optional key per knob, for a cyclopts command: only what a person typed will be in
    it.

    `defaults` maps the names of recipes to instances of `config`, for the help text.
    """
    fields: dict[str, Any] = {}
    for name, kind, knob in declared(config):
        by_recipe = {recipe: getattr(values, name) for recipe, values in defaults.items()}
        same = len(set(by_recipe.values())) == 1
        shown = [
            spelled(value) if same else f"{recipe}: {spelled(value)}" for recipe, value in by_recipe.items()
        ]
        default = f"[default: {shown[0] if same else ', '.join(shown)}]"
        text = (
            f"{knob.description}; {value_range(knob)} {default}"
            if kind is not bool
            else f"{knob.description} {default}"
        )
        converter = whole_number if kind is int else None
        option = cyclopts.Parameter(name=option_name(name), help=text, converter=converter)
        fields[name] = Annotated[kind, option]
    return TypedDict(f"{config.__name__}Options", fields, total=False)  # type: ignore[no-any-return, operator]


def spelled(value: object) -> str:
    """A knob's value as a person types it."""
    return f"{value:g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def value_range(knob: Knob) -> str:
    """The values that a knob takes, for the help: its choices, or its bounds."""
    if knob.choices:
        return " | ".join(map(spelled, knob.choices))
    return " to ".join(
        f"{bound:,g}" if isinstance(bound, float) else f"{bound:,}" for bound in (knob.min, knob.max)
    )


def check_options(config: type, given: KnobValues) -> dict[str, Any]:
    """What was typed, as the knobs' types.

    Raises:
        UsageError: a value that its knob does not take.
    """
    checked: dict[str, Any] = {}
    for name, _, knob in declared(config):
        if name in given:
            try:
                checked[name] = knob.check(name, given[name])
            except ValueError as error:
                raise UsageError(f"{option_name(name)}: {error}") from None
    return checked


def kept(arguments: Sequence[str], knobs: Mapping[str, type]) -> list[str]:
    """A command line without `--resume` and the knobs (by option): the checkpoint knows their values as they
    are by now."""
    left: list[str] = []
    skip = False
    for argument in arguments:
        written, has_value, _ = argument.partition("=")
        option = written.replace("_", "-")  # `--num_envs` is taken as well
        positive = f"--{option.removeprefix('--no-')}"
        if skip:
            skip = False
        elif option == "--resume" or option in knobs:
            skip = not has_value and knobs.get(option) is not bool
        elif knobs.get(positive) is not bool:
            left.append(argument)
    return left
