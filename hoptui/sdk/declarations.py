"""What a run says of itself: its knobs, its metrics, its GPUs and its cost. The half of `Run` that stands before the loop."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar

from hoptui.domain.knobs import Cost, Effect, KnobError, KnobSpec, KnobValue, Scale, check_value
from hoptui.protocol.messages import Command, Flops
from hoptui.sdk.knobs import Knob, KnobHandle, annotated, field_reader, field_setter
from hoptui.sdk.values import plain_name

log = logging.getLogger("hoptui")
T = TypeVar("T", bool, int, float, str)
V = TypeVar("V", bound=KnobValue)


class Declarations:
    """`declared` counts them: the link tells the daemon whenever it has risen."""

    def __init__(self) -> None:
        self.knob_handles: dict[str, KnobHandle[Any]] = {}
        self.units: dict[str, str] = {}
        self.headline = ""
        self.gpu_uuids: tuple[str, ...] = ()
        self.flops_declared: Flops | None = None
        self.checkpoint_handler: Callable[[], object] | None = None
        self.profile_handler: Callable[[int], object] | None = None
        self.declared = 0

    def knob(
        self,
        name: str,
        default: T,
        *,
        min: int | float | None = None,
        max: int | float | None = None,
        choices: Sequence[T] = (),
        scale: Scale = "linear",
        effect: Effect = "learning",
        cost: Cost = "free",
        keeps: str = "",
        unit: str = "",
        description: str = "",
        apply: Callable[[Any], object] | None = None,
        read: Callable[[], Any] | None = None,
    ) -> KnobHandle[T]:
        """Declare a knob; the loop reads `handle.value`, which only changes at a boundary.

        `apply(value)` puts a new value into effect and may raise: the command then fails and the old value is set
        back. `read()` returns the value that is in effect; without it that is the value applied last. A declaration
        that contradicts itself is logged and gives a handle that no one can change.
        """
        try:
            declaration = Knob(min, max, tuple(choices), scale, effect, cost, keeps, unit, description)
            spec = declaration.spec(name, default)
        except (KnobError, TypeError) as error:
            log.warning("hoptui: %s; this knob will not be live", error)
            return KnobHandle(KnobSpec(name=str(name), kind="str", default=""), default)
        return self._declare(KnobHandle(spec, default, apply, read))

    def knobs(
        self,
        config: object,
        *,
        apply: Mapping[str, Callable[[Any], object]] | None = None,
        read: Mapping[str, Callable[[], Any]] | None = None,
        without: Collection[str] = (),
    ) -> dict[str, KnobHandle[Any]]:
        """Declare every field of a dataclass instance that is `Annotated[..., hoptui.Knob(...)]`.

        Applying a value sets the field and then calls `apply[name](value)`; without `read[name]` the field is read. The
        field of a knob of cost `restart` stays as it is: `apply` may refuse the value, and a new process has it. Fields
        named in `without` are left out: nothing would come of a change in this run.
        """
        handles = {}
        for name, declaration, kind in annotated(config):
            if name in without:
                continue
            try:
                spec = declaration.spec(name, getattr(config, name), kind)
            except KnobError as error:
                log.warning("hoptui: %s; this knob will not be live", error)
                continue
            after = (apply or {}).get(name)
            reader = (read or {}).get(name)
            put = after if spec.cost == "restart" else field_setter(config, name, after)
            handle = KnobHandle(spec, spec.default, put, reader or field_reader(config, name))
            handles[name] = self._declare(handle)
        return handles

    def metric(self, name: str, *, unit: str = "", headline: bool = False) -> None:
        """Say a metric's unit, and whether it is the one that stands for throughput."""
        self.units[name] = unit
        if headline:
            self.headline = name
        self.declared += 1

    def gpus(self, uuids: Sequence[str]) -> None:
        """The GPUs that this process uses, as NVML writes their UUIDs (`GPU-…`). With several ranks each says its own."""
        self.gpu_uuids = tuple(map(plain_name, uuids))
        self.declared += 1

    def flops(
        self,
        per_unit: float,
        *,
        metric: str = "",
        precision: Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"] = "bf16",
    ) -> None:
        """Say what training costs, so that viewers can show MFU: model FLOPs utilization, as in PaLM (arXiv:2204.02311).

        Args:
            per_unit: floating-point operations, forward and backward, for each unit of the rate `metric`: 6 × parameters
                for each token of a dense transformer, plus attention.
            metric: the rate, e.g. `tokens_per_s` (default: the headline).
            precision: of the matrix products: the GPU's dense peak in it is what utilization is measured against.
        """
        try:
            cost = Flops(per_unit=float(per_unit), metric=plain_name(metric), precision=str(precision))
        except (TypeError, ValueError):
            log.warning("hoptui: %r is no number of FLOPs; MFU will be unknown", per_unit)
            return
        self.flops_declared = cost if cost.per_unit > 0 and math.isfinite(cost.per_unit) else None
        self.declared += 1

    def on_checkpoint(self, save: Callable[[], object]) -> None:
        """`save()` is called at a boundary when somebody asks for a checkpoint; it may return the path it wrote."""
        self.checkpoint_handler = save
        self.declared += 1

    def on_profile(self, start: Callable[[int], object]) -> None:
        """`start(steps)` is called at a boundary when somebody asks for a trace of the next `steps` iterations.

        It only begins the trace; say with `run.event` where it was written once it is.
        """
        self.profile_handler = start
        self.declared += 1

    def can(self) -> tuple[str, ...]:
        """The commands that this run carries out."""
        with_handler = {"checkpoint": self.checkpoint_handler, "profile": self.profile_handler}
        return (
            "set",
            "pause",
            "resume",
            "stop",
            *(verb for verb, handler in with_handler.items() if handler),
        )

    def objection(self, command: Command) -> str:
        """Why a command to set a knob, or to have the script do something, cannot be carried out here; "" if it can."""
        if command.verb != "set":
            there = self.checkpoint_handler if command.verb == "checkpoint" else self.profile_handler
            return "" if there else f"there is no {command.verb} handler"
        handle = self.knob_handles.get(command.knob)
        if handle is None:
            return f"there is no knob {command.knob!r}"
        try:
            check_value(handle.spec, command.value)
        except ValueError as error:
            return str(error)
        return ""

    def reverted(self, handle: KnobHandle[Any], before: KnobValue, reason: str) -> None:
        """A knob was set back by the training script."""
        self.declared += 1

    def _declare(self, handle: KnobHandle[V]) -> KnobHandle[V]:
        try:
            handle.refresh()
        except Exception as error:
            log.warning("hoptui: reading %s back raised %s; its declared value is shown", handle.name, error)
        handle.on_revert(self.reverted)
        self.knob_handles[handle.name] = handle
        self.declared += 1
        return handle
