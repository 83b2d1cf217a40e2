"""How a supervised workload applies changes of its knobs between two iterations.

A change that needs a compilation or other memory is tried before it counts as applied. Training pauses for
that time, and the time is reported with the change. A change that does not fit is refused here, not in the
next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import hoptui
from hoptui.sdk import KnobHandle
from hoptui_trainer.common.applicability import (
    Apply,
    Circumstances,
    Rules,
    knob_setters,
    without_effect,
)
from hoptui_trainer.common.batch import piece_for, pieces
from hoptui_trainer.common.flat_gradient import WITHOUT_BUCKETS
from hoptui_trainer.common.meter import Meter
from hoptui_trainer.common.notes import NoteEvents
from hoptui_trainer.common.optimizer import set_weight_decay, weight_decay
from hoptui_trainer.common.options import declared
from hoptui_trainer.common.supervised_state import SupervisedState


class KnobChanges:
    """Applies the knobs of a supervised run, with `meter` paused meanwhile. `costs` declares what a unit of
    work costs now."""

    def __init__(
        self, run: hoptui.Run, state: SupervisedState[Any, Any], meter: Meter, costs: Callable[[], None]
    ) -> None:
        self._run, self._state, self._meter, self._costs = run, state, meter, costs
        self._notes = NoteEvents(run, state.notes)
        self._handles: Mapping[str, KnobHandle[Any]] = {}

    def declare(
        self,
        rules: Rules,
        where: Callable[[], Circumstances],
        apply: Mapping[str, Apply],
        read: Mapping[str, Callable[[], Any]],
    ) -> None:
        """Declare the run's knobs.

        Args:
            rules: when knobs have an effect.
            where: the circumstances at the time of a change.
            apply: what applies the knobs that only this workload has, by name.
            read: what reads back values of these that `config` does not have.
        """
        state = self._state
        self._run.decline("ddp_bucket_mb", WITHOUT_BUCKETS)
        handles = self._run.knobs(
            state.config,
            apply=knob_setters(rules, where, {**self._apply(), **apply}),
            read={"weight_decay": lambda: weight_decay(state.optimizer), **read},
            without=without_effect(rules, where()),
        )
        self._follow(handles)

    def _apply(self) -> dict[str, Apply]:
        """What applies the knobs that all supervised workloads have, by name."""
        state = self._state
        return {
            "micro_batch": self.chosen("micro_batch", self.cut),
            "grad_accum": self._accumulate,
            "precision": self.chosen("precision", self.rebuild),
            "compile": self.chosen("compile", self.rebuild),
            "checkpointing": lambda _: self.rebuild(),
            "optimizer": lambda _: self.renew(state.choose_optimizer),
            "weight_decay": lambda value: set_weight_decay(state.optimizer, value),
            "warmup": self._warm_up_by_part,
            **{
                name: self._anew(name)
                for name, _, knob in declared(type(state.config))
                if knob.cost == "restart"
            },
        }

    def chosen(self, name: str, then: Callable[[], None]) -> Apply:
        """What follows a choice by a user or the tuner: checkpoints keep it, unless it was left open
        again."""

        def apply(value: object) -> None:
            then()
            self._state.automatic.choose(name, value)
            self._adopt("grad_accum")
            self._costs()

        return apply

    def cut(self) -> None:
        """Micro-batches are to be of another size."""
        state = self._state
        in_use = state.pieces.micro_batch
        with self._meter.apart():
            state.fit()
            self._notes.report()
            # Else memory has just run out, and they were halved already.
            if state.pieces.micro_batch != in_use:
                state.prove_sizes()

    def batch(self, name: str) -> Apply:
        """What applies the knob for the size of a batch: 0 chooses one, and that is then the value."""

        def apply(value: object) -> None:
            self.resize(*(() if value else (name,)))

        return apply

    def resize(self, *follow: str) -> None:
        """A batch is to have another number of samples, or samples of another size; the knobs that `follow`
        do as well.

        Where that cannot be, micro-batches are to have the size again that they had before.
        """
        with self._meter.apart(), self._kept_size():
            self._state.choose_batch()
            self._reopen()
            self._state.fit()
            self._notes.report()
            self._state.prove_sizes()
        self._adopt("grad_accum", *follow)
        self._costs()

    def _reopen(self) -> None:
        """Leave a micro-batch open again that no person has chosen and that was the whole batch, which now is
        larger."""
        config = self._state.config
        whole = config.grad_accum == 1 < pieces(config, self._state.ranks.world)
        left_open = "micro_batch" in self._state.automatic.names
        if whole and (left_open or self._handles["micro_batch"].tuned):
            config.micro_batch = 0

    def rebuild(self) -> None:
        """The model is to be computed in another way."""
        self.renew(self._state.rebuild)

    def renew(self, change: Callable[[], None]) -> None:
        """Something that takes memory is to be another one: `change` brings it to what `config` now has."""
        with self._meter.apart():
            change()
            self.resize()

    def _warm_up_by_part(self, _: float) -> None:
        """`warmup` wins over the steps that were given before."""
        self._state.config.warmup_steps = 0
        self._handles["warmup_steps"].adopt()

    def _follow(self, handles: Mapping[str, KnobHandle[Any]]) -> None:
        """Report values that these knobs take by themselves: micro-batches halved because memory ran out,
        pieces that follow."""
        self._handles = handles

        def smaller(before: int, now: int) -> None:
            with self._state.automatic.kept():
                handles["micro_batch"].revert(
                    now,
                    f"out of memory with micro-batches of {before}: the same batch is computed again in "
                    f"pieces of {now}",
                )

        self._state.on_smaller = smaller
        self._state.pieces.on_exhausted = self._checkpointed
        self._notes.report()

    def _checkpointed(self) -> bool:
        """Keep no activations any more, because memory ran out with single samples. False if that was so
        before."""
        state = self._state
        config = state.config
        if config.checkpointing:
            return False
        if "micro_batch" in state.automatic.names:
            config.micro_batch = 0  # more fit then
        state.own_checkpointing = True
        self._handles["checkpointing"].revert(True, "out of memory with a single sample in a piece")
        if not config.micro_batch:  # there was no memory to choose it
            config.micro_batch = state.pieces.micro_batch
            config.grad_accum = pieces(config, state.ranks.world)
        return True

    def _anew(self, name: str) -> Apply:
        """What refuses a model that cannot be, together with what else waits for a new process."""

        def check(value: object) -> None:
            config = self._state.config
            replace(config, **self._run.restart_wanted | {name: value}).check(self._state.ranks.world)

        return check

    def _accumulate(self, grad_accum: int) -> None:
        config, world = self._state.config, self._state.ranks.world
        with self._kept_size():
            if grad_accum and grad_accum != pieces(config, world):
                config.micro_batch = piece_for(config, grad_accum, world)
            self.cut()
        if grad_accum:
            self._state.automatic.choose("micro_batch", config.micro_batch)
            self._adopt("micro_batch")
        else:
            self._adopt("grad_accum")

    @contextmanager
    def _kept_size(self) -> Iterator[None]:
        """If what is done in here fails, micro-batches get their previous size in `config`."""
        config = self._state.config
        before = config.micro_batch
        try:
            yield
        except Exception:
            config.micro_batch = before
            raise

    def _adopt(self, *follow: str) -> None:
        """Adopt the values of knobs that `follow` from the changed one, and of those left open."""
        for name in {*follow, *self._state.automatic.names}:
            self._handles[name].adopt()
