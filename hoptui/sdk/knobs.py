"""Declaring a knob, and the handle through which the training loop reads its value."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

from hoptui.domain import knobs as wire
from hoptui.domain.knobs import Cost, Effect, Kind, KnobError, KnobSpec, KnobState, KnobValue, Scale
from hoptui.domain.tuning import TUNER

T = TypeVar("T", bound=KnobValue)


@dataclass(frozen=True)
class Knob:
    """A declaration for `Annotated[int, Knob(1, 64, effect="speed")]` on a config dataclass.

    The same declaration gives the command-line option its bounds and the running job its live knob. The fields are
    those of `Run.knob`.
    """

    min: int | float | None = None
    max: int | float | None = None
    choices: tuple[KnobValue, ...] = ()
    scale: Scale = "linear"
    effect: Effect = "learning"
    cost: Cost = "free"
    keeps: str = ""
    unit: str = ""
    description: str = ""

    def spec(self, name: str, default: KnobValue, kind: Kind | None = None) -> KnobSpec:
        """The declaration as it travels.

        Raises:
            KnobError: see `hoptui.domain.knobs.check_spec`.
        """
        kind = kind or wire.kind_of(default)
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields |= {"min": _bound(name, self.min), "max": _bound(name, self.max)}
        fields["choices"] = tuple(map(wire.plain, self.choices))
        default = float(default) if kind == "float" else wire.plain(default)
        spec = KnobSpec(name=name, kind=kind, default=default, **fields)
        wire.check_spec(spec)
        return spec

    def check(self, name: str, value: KnobValue) -> KnobValue:
        """`value` as the knob's type.

        Raises:
            ValueError: wrong type, NaN, or out of bounds; the text is one sentence that names the knob.
        """
        kind = wire.kind_of(value)
        if kind == "int" and any(isinstance(bound, float) for bound in (self.min, self.max)):
            kind = "float"
        bare = KnobSpec(
            name=name,
            kind=kind,
            default=value,
            min=self.min,
            max=self.max,
            choices=self.choices,
            scale=self.scale,
        )
        return wire.check_value(bare, value)


def _bound(name: str, bound: object) -> int | float | None:
    """A bound as Python's own number; numpy's are taken too."""
    if bound is None:
        return None
    if hasattr(bound, "__index__"):
        return int(bound.__index__())
    if hasattr(bound, "__float__"):
        return float(bound)
    raise KnobError(f"{name} has {wire.shown(bound)} as a bound, which is no number")


class KnobHandle(Generic[T]):
    """A declared knob. The training loop reads `value`; only the boundary and `revert` change it.

    `command` is the id of the command that set it last, "" once that was reverted; `took_s` how long the run stood still
    for it.
    """

    __slots__ = (
        "_apply",
        "_before",
        "_read",
        "_reverted",
        "_settled",
        "by",
        "command",
        "in_effect",
        "spec",
        "took_s",
        "value",
        "version",
        "wanted",
    )

    def __init__(
        self,
        spec: KnobSpec,
        value: T,
        apply: Callable[[Any], object] | None = None,
        read: Callable[[], Any] | None = None,
    ) -> None:
        self.spec = spec
        self.value = wire.plain(value)
        self.wanted: KnobValue = self.value
        self.version = 0
        self.by = ""
        self.in_effect = True
        self.command = ""
        self.took_s: float | None = None
        self._apply = apply
        self._read = read
        self._before: tuple[KnobValue, int, str] = (self.value, 0, "")
        self._settled = False
        self._reverted: Callable[[KnobHandle[Any], KnobValue, str], object] | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def waits(self) -> bool:
        """Whether a value was asked for that only a new process can have."""
        return self.spec.cost == "restart" and not self.in_effect

    @property
    def tuned(self) -> bool:
        """Whether it was the tuner, and no person, who set it last."""
        return self.by == TUNER

    def state(self) -> KnobState:
        """The knob as it travels, with the value in effect; one that waits has not been set yet."""
        return KnobState(
            spec=self.spec,
            value=self.value,
            version=self.version,
            in_effect=self.in_effect or self.waits,
            by=self.by,
            took_s=self.took_s,
        )

    def on_revert(self, tell: Callable[[KnobHandle[Any], KnobValue, str], object]) -> None:
        """`tell(handle, value before, reason)` is called after `revert` has changed the value. Only the run calls this."""
        self._reverted = tell

    def revert(self, value: T, reason: str) -> None:
        """Set back a value that turned out not to hold, e.g. after running out of memory; call it on all ranks alike.

        The command that had set it becomes `reverted`, with `reason` for everybody to read. Never raises: what the
        setter raises is added to the reason.
        """
        before, waited = self.value, self.waits
        try:
            self._put(wire.check_value(self.spec, value))
        except Exception as error:
            self.in_effect = False
            reason = f"{reason}; setting {wire.shown(value)} raised {type(error).__name__}: {error}"
        self.version += not waited  # what only waited was no change
        if self._reverted is not None:
            self._reverted(self, before, reason)
        self.command = ""

    def set(self, wanted: KnobValue, by: str) -> None:
        """Apply a checked value and read back what is in effect. Only the boundary calls this.

        Raises:
            SetterError: the setter or the reader raised; the old value is in effect again, or the text says that not.
        """
        before = self.wanted
        self._before = (before, self.version, self.by)
        try:
            self._put(wanted)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            try:
                self._put(before)
            except Exception as second:
                self.in_effect = False
                reason += f"; setting the old value back raised {type(second).__name__}: {second}"
            raise SetterError(f"{self.name} could not be set to {wire.shown(wanted)}: {reason}") from error
        if not self.waits:
            self.version += 1
            self.by = by

    def arrive(self, wanted: KnobValue, by: str, command: str, took_s: float) -> bool:
        """In a new process: whether it has the value that it was started for. Only the boundary calls this."""
        value, same = self._checked(self.value, wanted)
        if same:
            self.wanted, self.version, self.by = value, self.version + 1, by
            self.command, self.took_s = command, took_s
        return same

    def undo(self) -> None:
        """Take back the last `set`, because it failed on another rank.

        Raises:
            SetterError: the setter or the reader raised.
        """
        before, version, by = self._before
        try:
            self._put(before)
        except Exception as error:
            self.in_effect = False
            raise SetterError(
                f"setting {self.name} back to {wire.shown(before)} raised {type(error).__name__}: {error}"
            ) from error
        self.version, self.by = version, by

    def refresh(self) -> bool:
        """Read back the value in effect: it may follow from another knob. True if it is not what it was."""
        if self._read is None:
            return False
        before = self.value, self.in_effect
        self._take(self._read(), self.wanted)
        return before != (self.value, self.in_effect)

    def settle(self) -> None:
        """What the training script chose or derived by itself is what is wanted: nobody asked for another value.

        For a knob that was left open, or that follows from another one. Call it in the setter of the knob that has
        changed, this one or any other, on all ranks alike: the boundary reads the value back and tells everybody, as no
        command's doing. Never raises.
        """
        self._settled = True

    def _put(self, wanted: KnobValue) -> None:
        self._settled = False
        if self._apply is not None:
            self._apply(wanted)
        self._take(wanted if self._read is None else self._read(), wanted)

    def _take(self, effective: object, wanted: KnobValue) -> None:
        self.value, self.in_effect = self._checked(effective, wanted)
        self.wanted = wanted
        if self._settled:
            self.wanted, self.in_effect, self._settled = self.value, True, False

    def _checked(self, effective: object, wanted: KnobValue) -> tuple[T, bool]:
        if self.spec.kind == "float" and hasattr(effective, "__float__"):
            effective = float(effective)
        elif self.spec.kind == "int" and hasattr(effective, "__index__") and not isinstance(effective, bool):
            effective = effective.__index__()
        if wire.kind_of(effective) != self.spec.kind:
            raise KnobError(f"{self.name} reads back {wire.shown(effective)}, which is no {self.spec.kind}")
        same = effective == wanted
        if isinstance(effective, float) and isinstance(wanted, int | float):
            same = abs(effective - wanted) <= 1e-6 * max(abs(effective), abs(wanted))
        return wire.plain(cast(T, effective)), same


class SetterError(Exception):
    """A knob that could not be set; its text is one sentence."""


def annotated(config: object) -> Iterator[tuple[str, Knob, Kind]]:
    """The fields of a dataclass instance that are declared as knobs: name, declaration, kind."""
    kinds: dict[type, Kind] = {bool: "bool", int: "int", float: "float", str: "str"}
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(cast(Any, config)):
        for extra in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(extra, Knob):
                base = typing.get_args(hints[field.name])[0]
                if typing.get_origin(base) is Literal:
                    base = type(typing.get_args(base)[0])
                yield field.name, extra, kinds.get(base) or wire.kind_of(getattr(config, field.name))


def field_setter(config: object, name: str, after: Callable[[Any], object] | None) -> Callable[[Any], None]:
    """What sets a field of a config and then tells `after`."""

    def put(value: Any) -> None:
        setattr(config, name, value)
        if after is not None:
            after(value)

    return put


def field_reader(config: object, name: str) -> Callable[[], Any]:
    """What reads a field of a config."""
    return lambda: getattr(config, name)
