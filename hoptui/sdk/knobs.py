"""Knobs that run: the handle of a script (`KnobHandle`) and the run's knob (`LiveKnob`)."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from hoptui.domain import knobs as wire
from hoptui.domain.facts import Fact, clean_text, exception_text, fact, refusal_text
from hoptui.domain.knobs import KnobError, KnobSpec, KnobState, KnobValue
from hoptui.domain.tuning import TUNER

log = logging.getLogger("hoptui")
T = TypeVar("T", bound=KnobValue)


class Later:
    """The type of `hoptui.LATER`: the answer of a setter or a checkpoint handler that finishes later.

    An `apply` that returns it has taken the value, but the value is not in effect yet: it takes effect at the
    next rollout, the next epoch, the next aligned step. The command stays *scheduled* until the script calls
    `KnobHandle.holds`. A handler of `Run.on_checkpoint` that returns it has asked a framework for a
    checkpoint; `Run.checkpointed` ends that command. With several ranks, all return it or none.

    Example:
        ```python
        wanted = {}

        def at_the_next_epoch(size):
            wanted["batch_size"] = size
            return hoptui.LATER

        batch = run.knob("batch_size", 32, min=1, max=512, apply=at_the_next_epoch)
        # where an epoch begins:
        if wanted:
            wanted.clear()
            batch.holds()
        ```
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "hoptui.LATER"


LATER = Later()


class LiveKnob(Generic[T]):
    """A declared knob inside the run. Only the boundary and `revert` change its value.

    `command` is the id of the command that set it last, "" if that command was reverted. `took_s` is how long
    the last change paused the run. `later`: the script has taken `wanted`, which is not in effect yet.
    """

    __slots__ = (
        "_adopt",
        "_apply",
        "_before",
        "_on_hold",
        "_on_revert",
        "_read",
        "_seen",
        "by",
        "command",
        "handles",
        "in_effect",
        "later",
        "reason",
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
        self.handles: weakref.WeakSet[KnobHandle[Any]] = weakref.WeakSet()
        self.value = wire.plain(value)
        self.wanted: KnobValue = self.value
        self.version = 0
        self.by = ""
        self.in_effect = True
        self.later = False
        self.command = ""
        self.took_s: float | None = None
        self.reason = ""
        self._apply = apply
        self._read = read
        self._before: tuple[KnobValue, int, str] = (self.value, 0, "")
        self._adopt = False
        self._seen: T | None = None  # by `look`, until it is read back for the loop too
        self._on_hold: Callable[[LiveKnob[Any], Fact | None], object] | None = None
        self._on_revert: Callable[[LiveKnob[Any], KnobValue, Fact], object] | None = None

    def succeed(self, former: LiveKnob[Any]) -> None:
        """Take the place of an earlier knob of the same name, also in the handles that the script holds."""
        self.version, self.by = former.version, former.by
        for handle in list(former.handles):
            handle._knob = self
            self.handles.add(handle)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def awaits_restart(self) -> bool:
        """Whether a value was requested that only a new process can have."""
        return self.spec.cost == "restart" and not self.in_effect

    def state(self) -> KnobState:
        """Return the knob as it is sent to the daemon. A value that is awaited is not in effect yet."""
        return KnobState(
            spec=self.spec,
            value=self.value if self._seen is None else self._seen,
            version=self.version,
            in_effect=self.in_effect or self.awaits_restart or self.later,
            by=self.by,
            took_s=self.took_s,
        )

    def on_revert(self, report: Callable[[LiveKnob[Any], KnobValue, Fact], object]) -> None:
        """Call `report(knob, value before, why)` after each `revert`."""
        self._on_revert = report

    def on_hold(self, report: Callable[[LiveKnob[Any], Fact | None], object]) -> None:
        """Call `report(knob, problem)` after each `holds`. The problem is None if the value was read back."""
        self._on_hold = report

    def holds(self) -> None:
        """Read back a value that takes effect now, because the setter returned `LATER`. Never raises."""
        if not self.later:
            return
        problem = None
        try:
            self.later = False
            self._accept(self.wanted if self._read is None else self._read(), self.wanted)
        except Exception as error:
            self.in_effect = False
            problem = fact("raised", error=exception_text(error))
        if self._on_hold is not None:
            self._on_hold(self, problem)

    def revert(self, value: T, reason: str) -> None:
        """Set a value that the script chose because the last one did not hold. Never raises."""
        before, waited = self.value, self.awaits_restart or self.later
        why = fact("reverted", reason=clean_text(reason, 300))
        try:
            self._put(wire.check_value(self.spec, value))
        except Exception as error:
            self.in_effect = False
            failed = fact(
                "undo_failed", knob=self.name, value=clean_text(value, 40), error=exception_text(error)
            )
            why = fact("several", facts=[why, failed])
        self.version += not waited  # a value that only awaited a restart was no change
        if self._on_revert is not None:
            self._on_revert(self, before, why)
        self.command = ""

    def adopt(self) -> None:
        """Take the next value that is read back as the wanted one. Never raises."""
        self._adopt = True

    def explain(self, reason: object) -> None:
        """Keep why the next value that is read back is not the wanted one. Never raises."""
        self.reason = clean_text(reason, 300)

    def set(self, wanted: KnobValue, by: str) -> None:
        """Apply a checked value and read back what is in effect.

        Raises:
            SetterError: the setter or the reader raised. The old value is in effect again, or the fact has
                the reason.
        """
        before = self.wanted
        self._before = (before, self.version, self.by)
        try:
            self._put(wanted)
        except Exception as error:
            failed = fact("setter_failed", knob=self.name, value=wanted, error=refusal_text(error))
            try:
                self._put(before)
            except Exception as second:
                self.in_effect = False
                undo = fact("undo_failed", knob=self.name, value=before, error=exception_text(second))
                failed = fact("several", facts=[failed, undo])
            raise SetterError(failed) from error
        if not self.awaits_restart and not self.later:
            self.confirm(by)

    def confirm(self, by: str) -> None:
        """Count a change that is in effect, with its author."""
        self.version += 1
        self.by = by

    def confirm_restart(self, wanted: KnobValue, by: str, command: str, took_s: float) -> bool:
        """In a new process: record and return whether the knob has the value that the restart was for."""
        value, same = self._compare(self.value, wanted)
        if same:
            self.wanted, self.version, self.by = value, self.version + 1, by
            self.command, self.took_s = command, took_s
        return same

    def undo(self, value: KnobValue | None = None) -> None:
        """Undo the last `set`, because it failed on another rank.

        Args:
            value: The value to apply. None: the one that was wanted before.

        Raises:
            SetterError: the setter or the reader raised.
        """
        before, version, by = self._before
        before = before if value is None else value
        try:
            self._put(before)
        except Exception as error:
            self.in_effect = False
            failed = fact("undo_failed", knob=self.name, value=before, error=exception_text(error))
            raise SetterError(failed) from error
        self.version, self.by = version, by

    def refresh(self) -> bool:
        """Read back the value in effect, which may depend on another knob. Return whether it changed."""
        if self._read is None or self.later:
            return False
        before = self.value, self.in_effect
        self._accept(self._read(), self.wanted)
        return before[1] != self.in_effect or not wire.same(before[0], self.value)

    def follow(self) -> bool:
        """Read back a value that the script itself may have changed, such as a schedule's. Return whether it
        changed.

        The script's own value is the wanted one from then on, unless one that was asked for has not come into
        effect.
        """
        if self._read is None or self.later:
            return False
        was, before = self.in_effect, self.value
        self._accept(self._read(), self.wanted)
        if was:
            self.wanted, self.in_effect = self.value, True
        return was != self.in_effect or not wire.same(before, self.value)

    def look(self) -> bool:
        """Read back a value for viewers alone: the loop does not see it. Return whether it changed."""
        if self._read is None or self.later:
            return False
        before = self.value if self._seen is None else self._seen
        self._seen = self._compare(self._read(), self.wanted)[0]
        return not wire.same(before, self._seen)

    def _put(self, wanted: KnobValue) -> None:
        self._adopt, self.reason = False, ""
        answer = self._apply(wanted) if self._apply is not None else None
        self.later = answer is LATER and self.spec.cost != "restart"
        if self.later:
            self.wanted, self.in_effect = wanted, False
            return
        self._accept(wanted if self._read is None else self._read(), wanted)

    def _accept(self, effective: object, wanted: KnobValue) -> None:
        self.value, self.in_effect = self._compare(effective, wanted)
        self.wanted, self._seen = wanted, None
        if self._adopt:
            self.wanted, self.in_effect, self._adopt = self.value, True, False

    def _compare(self, effective: object, wanted: KnobValue) -> tuple[T, bool]:
        """Return the effective value in the knob's type, and whether it is the wanted one."""
        if self.spec.kind == "float" and hasattr(effective, "__float__"):
            effective = float(effective)
        elif self.spec.kind == "int" and hasattr(effective, "__index__") and not isinstance(effective, bool):
            effective = effective.__index__()
        if wire.kind_of(effective) != self.spec.kind:
            raise KnobError(f"{self.name} reads back {wire.shown(effective)}, which is no {self.spec.kind}")
        same = effective == wanted
        if isinstance(effective, float) and isinstance(wanted, int | float) and math.isfinite(effective):
            same = abs(effective - wanted) <= 1e-6 * max(abs(effective), abs(wanted))
        found = wire.plain(cast(T, effective))
        wire.check_transport(f"the value of {self.name} that is read back", found)
        return found, same


class ReadOnlyProperties:
    """Base of objects that a script holds. Assigning to a property logs a warning and has no effect."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers report such an assignment themselves

        def __setattr__(self, name: str, value: object) -> None:
            kind = type(self)
            if isinstance(getattr(kind, name, None), property):
                text = "hoptui: %s.%s cannot be assigned; the assignment has no effect"
                log.warning(text, kind.__name__, name)
            else:
                super().__setattr__(name, value)


class KnobHandle(ReadOnlyProperties, Generic[T]):
    """A declared knob, as the training script reads it. `Run.knob` and `Run.knobs` return it.

    The value changes between two iterations only, and in `revert`. Assigning to a property, such as
    `handle.value = 8`, has no effect and logs a warning: nothing raises into the training loop.

    Example:
        ```python
        accum = run.knob("grad_accum", 4, min=1, max=64, effect="speed")
        for step in run.iterations(2):
            micro_batches = accum.value
        ```
    """

    __slots__ = ("__dict__", "__weakref__", "_knob")
    _knob: LiveKnob[T]

    def __init__(self, knob: LiveKnob[T]) -> None:
        self._knob = knob
        knob.handles.add(self)

    def __repr__(self) -> str:
        return f"<hoptui knob {self._knob.name} = {self._knob.value!r}>"

    @property
    def name(self) -> str:
        """The name of the knob.

        Example:
            ```python
            assert run.knob("grad_accum", 4).name == "grad_accum"
            ```
        """
        return self._knob.spec.name

    @property
    def value(self) -> T:
        """The value in effect: what `read` returned last, or without `read` the value that was applied last.

        Example:
            ```python
            assert run.knob("grad_accum", 4).value == 4
            ```
        """
        return self._knob.value

    @property
    def version(self) -> int:
        """The number of changes since the knob was declared, from 0.

        Example:
            ```python
            assert run.knob("grad_accum", 4).version == 0
            ```
        """
        return self._knob.version

    @property
    def by(self) -> str:
        """Who changed the knob last: a user name with a pid, or the tuner. "" if no command has changed it.

        Example:
            ```python
            assert run.knob("grad_accum", 4).by == ""
            ```
        """
        return self._knob.by

    @property
    def tuned(self) -> bool:
        """Whether the tuner, and not a user, changed the knob last.

        Example:
            ```python
            assert not run.knob("grad_accum", 4).tuned
            ```
        """
        return self._knob.by == TUNER

    @property
    def in_effect(self) -> bool:
        """Whether the value in effect is the value that was asked for.

        It is False if `read` returned another value than `apply` was given, and while a value awaits a
        restart.

        Example:
            ```python
            largest = 32
            batch = run.knob("batch", 64, min=1, max=512, read=lambda: largest)
            assert (batch.value, batch.in_effect) == (32, False)
            ```
        """
        return self._knob.in_effect

    def revert(self, value: T, reason: str) -> None:
        """Set the knob to a value that works, because the one that was set did not hold.

        The command that set the knob becomes `reverted`, and every viewer shows the reason. If no command set
        it, an event shows the change. With several ranks, call it on all of them at the same point.

        Nothing is raised. If `value` is not allowed or `apply` raises, the error is added to the reason and
        `in_effect` becomes False.

        Args:
            value: The value to apply, of the type of the knob.
            reason: Why the change did not hold, in a few words. At most 300 characters are shown.

        Example:
            ```python
            batch = run.knob("micro_batch", 32, min=1, max=512)
            batch.revert(16, "out of memory")
            assert batch.value == 16
            ```
        """
        self._knob.revert(value, reason)

    def adopt(self) -> None:
        """Accept the value that is read back next as the wanted one.

        Use it for a knob that depends on another knob, or that the script chooses itself. Call it in the
        `apply` of the knob that changes, on all ranks alike. The boundary then reads the value back and
        reports it without a command. It needs `read`. Never raises.

        Example:
            ```python
            batch = {"size": 64}

            def resize(size):
                batch["size"] = size
                pieces.adopt()

            run.knob("batch", 64, min=16, max=256, apply=resize)
            pieces = run.knob("pieces", 4, min=1, max=16, read=lambda: batch["size"] // 16)
            ```
        """
        self._knob.adopt()

    def holds(self) -> None:
        """The value that `apply` answered with `hoptui.LATER` is in effect now.

        The value is read back, and the command becomes *applied*. With several ranks, call it on all of them
        at the same point: the outcome is reported once the value holds on all. Without a value that waits, it
        does nothing. Never raises.

        Example:
            ```python
            rollout = run.knob("n_steps", 128, min=8, max=4096, apply=lambda n: hoptui.LATER)
            for step in run.iterations(2):
                rollout.holds()  # where a rollout begins
            ```
        """
        self._knob.holds()

    def explain(self, reason: str) -> None:
        """Say why the value in effect is another one than was asked for.

        Call it in the `apply` of this knob, if `read` will return another value than `apply` was given. The
        outcome of the command then has the reason. Without it, viewers only show that the values differ.
        Never raises.

        Args:
            reason: Why, in a few words. At most 300 characters are shown.

        Example:
            ```python
            def resize(size):
                if size > 32:
                    batch.explain("the data has 32 samples")

            batch = run.knob("batch", 32, min=1, max=512, apply=resize, read=lambda: 32)
            ```
        """
        self._knob.explain(reason)


class SetterError(Exception):
    """A knob could not be set. `fact` has the reason."""

    def __init__(self, fact: Fact) -> None:
        super().__init__(fact.code, fact.fields)
        self.fact = fact
