"""hoptui in `transformers.Trainer`: iterations, metrics, phases, live knobs, checkpoint, stop and pause.

An iteration of the run is one optimizer step. All ranks have the callback. The boundary is `on_step_end`, so
logging, evaluation and saving after step 7 belong to the iteration 7, which begins there.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import hoptui
from hoptui.integrations.micro_batches import (
    Rule,
    even_sizes,
    find_rule,
    row_count,
    weighted_parts,
)
from hoptui.integrations.torch_trace import TorchTrace
from hoptui.integrations.trainer_internals import (
    DecayGroups,
    obstacle,
    repeatable,
    replicas,
    scaled_loss,
    shifts_labels,
    without_sync,
)
from hoptui.integrations.versions import Supported

log = logging.getLogger("hoptui")
F = TypeVar("F", bound=Callable[..., Any])

SUPPORTED = Supported("transformers", "4.46", "5.23")
RESUME_FILE = "hoptui.json"
"""In a checkpoint: what makes the process that loads it the next restart of the same run."""
MEMORY_MARGIN = 0.95
"""A larger micro-batch is refused if its estimated memory is more than this part of the GPU's."""

ACCUMULATION_REASON = (
    "Trainer reads it at several places, so the ranks would train different weights, and a smaller value "
    "would cut the epoch; set micro_batch_split instead"
)


def _guarded(method: F) -> F:
    """Let no error of the adapter reach the training loop. The callback then does nothing any more."""

    @functools.wraps(method)
    def call(self: HoptuiCallback, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            log.warning("hoptui is off in this training: %s: %s", type(error).__name__, error)
            self._run = None
        return None

    return call  # type: ignore[return-value]


class HoptuiCallback(TrainerCallback):  # type: ignore[misc]
    """A callback that makes each `trainer.train()` a run of hoptui.

    Counts are of all ranks. `samples` are rows of the inputs. `tokens` are the elements of `input_ids`, with
    padding.

    Args:
        name: The name of the run. None: `args.run_name`, or the name of `args.output_dir`.
        merge_accumulation: Whether micro-batches that would be accumulated are loaded as one batch, and cut
            again. The effective batch stays the same, and every micro-batch size up to it can be tried. It
            has no effect with a `gradient_accumulation_steps` of 1, or where a batch cannot be cut.

    Example:
        ```python
        from hoptui.integrations.transformers import HoptuiCallback

        trainer = Trainer(model=model, args=args, train_dataset=dataset, callbacks=[HoptuiCallback()])
        trainer.train()
        ```
    """

    def __init__(self, name: str | None = None, *, merge_accumulation: bool = False) -> None:
        SUPPORTED.warn()
        self._name = name
        self._merge = merge_accumulation
        self._clear()

    def _clear(self) -> None:
        self._run: hoptui.Run | None = None
        self._trainer: Any = None
        self._resume: dict[str, Any] | None = None
        self._wrapped: list[str] = []
        self._parts = 1
        self._largest = 0  # rows of the largest micro-batch so far
        self._rule: Rule | None = None
        self._whole = ""  # why batches are not cut although they should be
        self._seen: tuple[Mapping[str, Any], Any] | None = None
        self._reached = False  # whether the last iteration called Trainer.training_step
        self._counts = {"samples": 0, "tokens": 0}
        self._save_wanted = False
        self._passed = -1
        self._profiler: TorchTrace | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process has the settings alone."""
        return {"name": self._name, "merge_accumulation": self._merge}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._name, self._merge = state["name"], state["merge_accumulation"]
        self._clear()

    # of Trainer ---------------------------------------------------------------------------------------------

    @_guarded
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        run = self._run = hoptui.connect(
            self._name or _name_of(args, state),
            total=state.max_steps if state.max_steps > 0 else None,
            resume=self._resume,
            **_details(args),
        )
        run.metric("samples_per_s", unit="samples/s", headline=True)
        run.metric("tokens_per_s", unit="tokens/s")
        if args.device.type == "cuda":
            run.gpus([_uuid(args.device)])
        trainer = self._trainer
        if trainer is not None:
            self._wrap("get_batch_samples", "data", self._count)
            self._wrap("evaluate", "eval")
            self._wrap("_save_checkpoint", "save")
        self._offer(run, args, state, kwargs.get("optimizer"), kwargs.get("lr_scheduler"))
        run.on_checkpoint(self._ask_for_checkpoint)
        self._profiler = TorchTrace(run)
        run.on_profile(self._profiler.start)
        self._passed = state.global_step
        run.boundary(state.global_step)

    @_guarded
    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._run is not None:
            self._run.enter("optimizer")

    @_guarded
    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._run is not None:
            self._run.leave("optimizer")

    @_guarded
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        run = self._run
        if run is None:
            return
        run.log({name: count for name, count in self._counts.items() if count})
        self._counts = dict.fromkeys(self._counts, 0)
        if self._profiler is not None:
            self._profiler.step()
        if state.global_step < state.max_steps:  # after the last step there is no iteration to begin
            self._passed = state.global_step
            if not run.boundary(state.global_step):
                control.should_training_stop = True
        self._seen, self._reached = None, False
        if self._save_wanted:
            control.should_save = True

    @_guarded
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if self._run is None or not logs or "train_runtime" in logs:  # the summary at the end
            return
        values = {name: value for name, value in logs.items() if isinstance(value, int | float)}
        self._run.log(values, step=max(0, state.global_step - 1))

    @_guarded
    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._run is None:
            return
        path = _checkpoint_path(self._trainer, args, state)
        if state.is_world_process_zero and path.is_dir():
            (path / RESUME_FILE).write_text(json.dumps(self._run.state_dict()))
        if self._save_wanted:
            self._save_wanted = False
            self._run.checkpointed(str(path))

    @_guarded
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._run is not None:
            self._run.close()

    # of the wrapped methods of Trainer ----------------------------------------------------------------------

    @_guarded
    def begin(self, trainer: Any, resume_from_checkpoint: object) -> None:
        """`trainer.train()` begins. Trainer passes no reference to itself to callbacks."""
        self._clear()
        self._trainer = trainer
        path = resume_from_checkpoint
        if path is True:
            path = get_last_checkpoint(trainer.args.output_dir)
        if isinstance(path, str):
            file = Path(path) / RESUME_FILE
            self._resume = json.loads(file.read_text()) if file.is_file() else None
        if self._merge:
            self._merge_accumulation(trainer)

    def end(self, error: BaseException | None) -> None:
        """`trainer.train()` ends, perhaps with an exception."""
        trainer, run = self._trainer, self._run
        for name in self._wrapped:
            trainer.__dict__.pop(name, None)
        self._wrapped, self._trainer, self._seen, self._run = [], None, None, None
        if self._profiler is not None:
            self._profiler.finish()
        if run is not None and error is not None:
            run.__exit__(type(error), error, error.__traceback__)

    def training_step(
        self, trainer: Any, step: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Train on one batch, in parts if it was asked for."""
        run, self._reached = self._run, True
        if run is None:
            return step(trainer, model, inputs, *args, **kwargs)
        items = args[0] if args else kwargs.get("num_items_in_batch")
        self._seen = inputs, items
        with run.phase("forward_backward"):
            parts = self._cut(inputs) if self._parts > 1 else None
            if parts is None:
                self._largest = max(self._largest, row_count(inputs) or 0)
                return step(trainer, model, inputs, *args, **kwargs)
            self._largest = max(self._largest, *(row_count(part) or 0 for part, _ in parts))
            compute_loss = trainer.compute_loss
            total = None
            try:
                for index, (part, share) in enumerate(parts):
                    trainer.compute_loss = scaled_loss(compute_loss, share)
                    last = index == len(parts) - 1
                    with nullcontext() if last else without_sync(trainer, model):
                        loss = step(trainer, model, part, *args, **kwargs)
                    total = loss if total is None else total + loss
            finally:
                del trainer.compute_loss
            return total

    # inside -------------------------------------------------------------------------------------------------

    def _wrap(self, method: str, phase: str, after: Callable[[Any], None] | None = None) -> None:
        """Time a method of this trainer as a phase."""
        original, run = getattr(self._trainer, method, None), self._run
        if original is None or run is None:
            return

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with run.phase(phase):
                found = original(*args, **kwargs)
            if after is not None:
                after(found)
            return found

        setattr(self._trainer, method, timed)
        self._wrapped.append(method)

    @_guarded
    def _count(self, found: Any) -> None:
        """Count the batches of the next optimizer step, for all ranks."""
        ranks = replicas(self._trainer)
        for inputs in found[0]:
            self._counts["samples"] += (row_count(inputs) or 0) * ranks
            tokens = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
            if isinstance(tokens, torch.Tensor):
                self._counts["tokens"] += tokens.numel() * ranks

    def _ask_for_checkpoint(self) -> object:
        self._save_wanted = True
        return hoptui.LATER

    def _offer(
        self, run: hoptui.Run, args: TrainingArguments, state: TrainerState, optimizer: Any, scheduler: Any
    ) -> None:
        """Declare the knobs that are safe, and the reasons of those that are not."""
        deepspeed = bool(getattr(self._trainer, "is_deepspeed_enabled", False))
        if optimizer is not None:
            run.optimizer(DecayGroups(getattr(optimizer, "optimizer", optimizer)), scheduler)
        if deepspeed:
            run.decline("max_grad_norm", "DeepSpeed's engine clips with the value of its configuration")
        else:
            run.bind(args, max_grad_norm=hoptui.Knob(0.0, 1e6, description="0 does not clip"))
        best = getattr(args, "load_best_model_at_end", False)
        for name, strategy in (
            ("logging_steps", args.logging_strategy),
            ("save_steps", args.save_strategy),
            ("eval_steps", getattr(args, "eval_strategy", "no")),
        ):
            if str(getattr(strategy, "value", strategy)) != "steps":
                run.decline(name, f"{name.removesuffix('_steps')}_strategy is not steps")
            elif best and name != "logging_steps":
                run.decline(name, "load_best_model_at_end needs the values that training began with")
            else:
                bounds: dict[str, Any] = {
                    name: hoptui.Knob(1, 10**6, scale="log", effect="speed", unit="steps")
                }
                run.bind(state, **bounds)
        self._offer_split(run, args)
        run.decline("gradient_accumulation_steps", ACCUMULATION_REASON)
        for name in ("per_device_train_batch_size", "max_steps", "dataloader_num_workers"):
            run.decline(name, "Trainer reads it once, before the first step")

    def _offer_split(self, run: hoptui.Run, args: TrainingArguments) -> None:
        rows = int(getattr(self._trainer, "_train_batch_size", None) or args.train_batch_size)
        reason = obstacle(self._trainer)
        if not reason and rows < 2:
            reason = "a micro-batch has one row"
        if reason:
            run.decline("micro_batch_split", reason)
            return
        run.knob(
            "micro_batch_split",
            self._parts,
            choices=[parts for parts in range(1, rows + 1) if rows % parts == 0],
            effect="speed",
            cost="shape",
            keeps="per_device_train_batch_size",
            description=f"parts of a batch of {rows} rows that are computed one after another",
            apply=self._set_split,
            read=lambda: self._parts,
        )

    def _set_split(self, parts: int) -> None:
        if parts == self._parts:
            return
        if self._seen is None or not self._reached:
            raise ValueError(self._unreached())
        if self._whole:
            raise ValueError(self._whole)
        inputs, items = self._seen
        if parts > 1 and self._rule is None:
            self._rule = self._find_rule(inputs, items)
        self._check_memory(parts, row_count(inputs) or 0)
        self._parts = parts

    def _unreached(self) -> str:
        if type(self._trainer).training_step is not Trainer.training_step and self._passed > 0:
            return f"{type(self._trainer).__name__}.training_step does not call Trainer.training_step"
        return "no batch has been seen yet: set it again after the first iteration"

    def _cut(self, inputs: Any) -> list[tuple[dict[str, Any], float]] | None:
        """Return the parts of a batch with their shares, None if it has to stay whole."""
        if self._whole:
            return None
        try:
            if self._rule is None:  # the batches were merged before the first step
                assert self._seen is not None
                self._rule = self._find_rule(*self._seen)
            return weighted_parts(inputs, self._parts, self._rule)
        except Exception as error:
            self._whole = f"batches are not cut: {error}"
            if self._run is not None:
                self._run.event(self._whole, level="warning")
            return None

    def _find_rule(self, inputs: Any, items: Any) -> Rule:
        """Find how Trainer normalises the loss, and show that cutting a batch does not change it."""
        trainer, rows = self._trainer, row_count(inputs) or 0
        prepared = trainer._prepare_inputs(inputs)
        rules: list[Rule] = ["sum"] if items is not None else []
        rules += ["shifted labels", "labels"] if shifts_labels(trainer) else ["labels"]
        args = trainer.args
        exact = args.device.type == "cpu" and not (args.bf16 or args.fp16)
        with repeatable(trainer):
            return find_rule(
                lambda part: float(trainer.compute_loss(trainer.model, dict(part), num_items_in_batch=items)),
                prepared,
                max(2, math.ceil(rows / self._parts)),
                [*rules, "rows"],
                1e-4 if exact else 5e-3,
            )

    def _check_memory(self, parts: int, rows: int) -> None:
        """Refuse a micro-batch that would not fit, from the memory that the largest so far took."""
        device, largest = self._trainer.args.device, even_sizes(rows, parts)[0]
        if device.type != "cuda" or largest <= self._largest or not self._largest:
            return
        kept, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
        total = torch.cuda.get_device_properties(device).total_memory
        needed = kept + (peak - kept) * largest / self._largest
        if needed > MEMORY_MARGIN * total:
            gib = 1 << 30
            raise ValueError(
                f"a micro-batch of {largest} rows would need about {needed / gib:.1f} GiB, and the GPU has "
                f"{total / gib:.1f} GiB"
            )

    def _merge_accumulation(self, trainer: Any) -> None:
        args = trainer.args
        steps = args.gradient_accumulation_steps
        if steps <= 1 or self._rows_are_decided(trainer) or obstacle(trainer):
            return
        args.per_device_train_batch_size *= steps
        args.gradient_accumulation_steps = 1
        trainer._train_batch_size = args.train_batch_size
        self._parts = steps

    @staticmethod
    def _rows_are_decided(trainer: Any) -> bool:
        """Whether something else has decided the batches already, such as an override of the data loader."""
        return type(trainer).get_train_dataloader is not Trainer.get_train_dataloader


def install(name: str | None = None) -> None:
    """From now on, every Trainer of this process gets a `HoptuiCallback`, unless it has one already.

    Args:
        name: The name of the runs. None: see `HoptuiCallback`.

    Example:
        ```python
        import hoptui.integrations.transformers

        hoptui.integrations.transformers.install()
        ```
    """
    _installed[:] = [name]


_installed: list[str | None] = []
"""The name for trainers without a callback of their own, empty if there is none for them."""


def _callback_of(trainer: Any) -> HoptuiCallback | None:
    callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
    return next((each for each in callbacks if isinstance(each, HoptuiCallback)), None)


def _wrap_trainer() -> None:
    """Tell the callback of a trainer which trainer it is, and let it cut batches.

    The methods of the base class are wrapped, so a subclass may override them and call them as before.
    """
    train, training_step = Trainer.train, Trainer.training_step
    if hasattr(train, "_hoptui"):
        return

    @functools.wraps(train)
    def train_with_callback(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _installed and _callback_of(self) is None:
            self.add_callback(HoptuiCallback(_installed[0]))
        callback = _callback_of(self)
        if callback is None:
            return train(self, *args, **kwargs)
        callback.begin(self, args[0] if args else kwargs.get("resume_from_checkpoint"))
        error: BaseException | None = None
        try:
            return train(self, *args, **kwargs)
        except BaseException as raised:
            error = raised
            raise
        finally:
            callback.end(error)

    @functools.wraps(training_step)
    def step_with_callback(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        callback = _callback_of(self)
        if callback is None:
            return training_step(self, model, inputs, *args, **kwargs)
        return callback.training_step(self, training_step, model, inputs, *args, **kwargs)

    train_with_callback._hoptui = True  # type: ignore[attr-defined]
    Trainer.train, Trainer.training_step = train_with_callback, step_with_callback


def _name_of(args: TrainingArguments, state: TrainerState) -> str:
    folder = str(args.output_dir or "trainer")
    name = args.run_name if args.run_name and args.run_name != folder else Path(folder).absolute().name
    return f"{name} {state.trial_name}" if state.trial_name else str(name)


def _details(args: TrainingArguments) -> dict[str, Any]:
    """The configuration, as far as this version of hoptui records it."""
    recorded = "config" in inspect.signature(hoptui.connect).parameters
    return {"config": args.to_sanitized_dict()} if recorded else {}


def _checkpoint_path(trainer: Any, args: TrainingArguments, state: TrainerState) -> Path:
    folder = Path(str(args.output_dir)).absolute()
    return folder / f"{transformers.trainer_utils.PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _uuid(device: torch.device) -> str:
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


_wrap_trainer()
