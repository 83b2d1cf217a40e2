"""hoptui in `transformers.Trainer`: iterations, metrics, phases, live knobs, checkpoint, stop and pause.

An iteration of the run is one optimizer step. All ranks have the callback. The boundary is `on_step_end`, so
logging, evaluation and saving after step 7 belong to the iteration 7, which begins there.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import hoptui
from hoptui.integrations.activation_recomputation import NAME as GRADIENT_CHECKPOINTING
from hoptui.integrations.compilation import NAME as COMPILE
from hoptui.integrations.compilation import Compilation
from hoptui.integrations.data_loaders import LoaderKnobs
from hoptui.integrations.error_guard import harmless
from hoptui.integrations.gradient_buckets import decline_buckets
from hoptui.integrations.micro_batch_split import MicroBatchSplit
from hoptui.integrations.micro_batches import row_count, token_count
from hoptui.integrations.recomputation import GradientCheckpointing
from hoptui.integrations.recomputation import obstacle as recomputation_obstacle
from hoptui.integrations.torch_trace import TorchTrace, rank
from hoptui.integrations.trainer_callbacks import EventTimer
from hoptui.integrations.trainer_internals import replicas
from hoptui.integrations.trainer_settings import offer_compilation, offer_loader, offer_settings
from hoptui.integrations.versions import Supported

log = logging.getLogger("hoptui")

SUPPORTED = Supported("transformers", "4.46", "5.23")
RESUME_FILE = "hoptui.json"
"""In a checkpoint: what makes the process that loads it the next restart of the same run."""
OWNER = "_hoptui_callback"
"""The attribute of a trainer that trains: its callback."""
ASKED: Any = 1
"""`control.should_save` if hoptui alone has asked for a checkpoint: true, and not `True`."""


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
        self._split: MicroBatchSplit | None = None
        self._recomputing: GradientCheckpointing | None = None
        self._compilation: Compilation | None = None
        self._loader: LoaderKnobs | None = None
        self._new_epoch = False
        self._replicas = 1
        self._samples = self._tokens = 0
        self._save_wanted = False
        self._save_error: Exception | None = None  # of the save that hoptui alone asked for
        self._computing: AbstractContextManager[None] | None = None  # the phase of each micro-batch
        self._callbacks: EventTimer | None = None
        self._trace: TorchTrace | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process has the settings alone."""
        return {"name": self._name, "merge_accumulation": self._merge}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._name, self._merge = state["name"], state["merge_accumulation"]
        self._clear()

    # of Trainer ---------------------------------------------------------------------------------------------

    @harmless
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
            self._replicas = replicas(trainer)
            self._wrap("get_batch_samples", "data", after=self._count)
            self._wrap("evaluate", "eval")
            self._wrap("_save_checkpoint", "save", instead=self._save)
            self._callbacks = EventTimer(run)
            self._callbacks.start(trainer.callback_handler)
        optimizer, scheduler = kwargs.get("optimizer"), kwargs.get("lr_scheduler")
        offer_settings(run, trainer, args, state, optimizer, scheduler)
        self._loader = offer_loader(run, kwargs.get("train_dataloader"), args, state)
        if self._split is not None:
            self._split.offer(run)
            self._recomputing = GradientCheckpointing(trainer, self._split)
            self._recomputing.offer(run, recomputation_obstacle(trainer))
            self._compilation = offer_compilation(run, trainer)
            decline_buckets(run, trainer.model_wrapped, "ddp_bucket_cap_mb")
        else:
            for name in ("micro_batch_split", GRADIENT_CHECKPOINTING, COMPILE):
                run.decline(name, "the trainer is unknown")
        self._computing = run.phase("forward_backward")
        run.on_checkpoint(self._ask_for_checkpoint)
        self._trace = TorchTrace(run, rank=rank(), others=False)
        run.on_profile(self._trace.start)
        run.boundary(state.global_step)

    @harmless
    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._new_epoch = True  # the data workers of this epoch are made behind this call

    @harmless
    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._new_epoch:
            self._new_epoch = False
            if self._loader is not None:
                self._loader.begin_epoch()

    @harmless
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        run = self._run
        if run is None:
            return
        if self._samples:
            counts = {"samples": self._samples, "tokens": self._tokens}
            run.log(counts if self._tokens else {"samples": self._samples})
            self._samples = self._tokens = 0
        if self._trace is not None:
            self._trace.end_iteration()
        if self._compilation is not None:
            self._compilation.end_step()
        step = state.global_step
        if self._loader is not None and self._split is not None:
            self._loader.batch = self._split.seen
        if step < state.max_steps and not self._end_iteration(run, step):
            control.should_training_stop = True  # after the last step there is no iteration to begin
        if self._loader is not None:
            self._loader.batch = None
        if self._split is not None:
            self._split.end_step()
        if self._save_wanted and not control.should_save:
            control.should_save = ASKED

    @harmless
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

    @harmless
    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._run is None:
            return
        if self._save_error is not None:
            self._save_wanted, error, self._save_error = False, self._save_error, None
            self._run.checkpointed(error=error)
            return
        path = _checkpoint_path(args, state)
        if state.is_world_process_zero and path.is_dir():
            (path / RESUME_FILE).write_text(json.dumps(self._run.state_dict()))
        if self._save_wanted:
            self._save_wanted = False
            self._run.checkpointed(str(path))

    @harmless
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._trace is not None:
            self._trace.close()
        if self._run is not None:
            self._run.close()

    # of the wrapped methods of Trainer ----------------------------------------------------------------------

    @harmless
    def begin(self, trainer: Any, resume_from_checkpoint: object) -> None:
        """`trainer.train()` begins. Trainer passes no reference to itself to callbacks."""
        self._clear()
        self._trainer, self._split = trainer, MicroBatchSplit(trainer)
        setattr(trainer, OWNER, self)
        path = resume_from_checkpoint
        if path is True:
            path = get_last_checkpoint(trainer.args.output_dir)
        if isinstance(path, str):
            file = Path(path) / RESUME_FILE
            self._resume = json.loads(file.read_text()) if file.is_file() else None
        if self._merge:
            self._split.merge_accumulation()

    def end(self, error: BaseException | None) -> None:
        """`trainer.train()` ends, perhaps with an exception."""
        trainer, run = self._trainer, self._run
        for name in (*self._wrapped, OWNER):
            trainer.__dict__.pop(name, None)
        if self._recomputing is not None:
            self._recomputing.restore()
        if self._compilation is not None:
            self._compilation.restore()
        self._wrapped, self._trainer, self._split, self._run = [], None, None, None
        self._recomputing = self._loader = self._compilation = self._computing = None
        if self._callbacks is not None:
            self._callbacks.stop()
        self._callbacks = None
        if self._trace is not None:
            self._trace.close()
        if run is not None and error is not None:
            run.__exit__(type(error), error, error.__traceback__)

    def training_step(
        self, trainer: Any, step: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Train on one batch, in parts if it was asked for."""
        split, phase = self._split, self._computing
        if split is None or phase is None:
            return step(trainer, model, inputs, *args, **kwargs)
        with phase:
            return split.training_step(step, model, inputs, *args, **kwargs)

    # inside -------------------------------------------------------------------------------------------------

    def _wrap(
        self,
        method: str,
        phase: str,
        *,
        instead: Callable[..., Any] | None = None,
        after: Callable[[Any], None] | None = None,
    ) -> None:
        """Time a method of this trainer as a phase.

        Args:
            method: Its name.
            phase: The name of the phase.
            instead: Called with the method and its arguments.
            after: Called with what the method returned.
        """
        original, run = getattr(self._trainer, method, None), self._run
        if original is None or run is None:
            return
        called = original if instead is None else functools.partial(instead, original)
        timer = run.phase(phase)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with timer:
                found = called(*args, **kwargs)
            if after is not None and self._run is not None:
                after(found)
            return found

        setattr(self._trainer, method, timed)
        self._wrapped.append(method)

    def _save(self, save: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Save a checkpoint. One that hoptui alone asked for may fail without an end of the training.

        With several ranks the error is raised: the others may wait for this rank in the same save.
        """
        trainer = self._trainer
        control, path = trainer.control, _checkpoint_path(trainer.args, trainer.state)
        existed = path.exists()
        alone, self._save_error = control.should_save is ASKED, None
        if alone:
            control.should_save = True  # it is written into the checkpoint
        try:
            return save(*args, **kwargs)
        except Exception as error:
            if not alone or trainer.args.world_size > 1:
                raise
            self._save_error = error
            if not existed:  # a later process would take it for the last checkpoint
                shutil.rmtree(path, ignore_errors=True)
            return None

    @harmless
    def _count(self, found: Any) -> None:
        """Count the batches of the next optimizer step, for all ranks."""
        samples = tokens = 0
        for inputs in found[0]:
            samples += row_count(inputs) or 0
            tokens += token_count(inputs)
        self._samples += samples * self._replicas
        self._tokens += tokens * self._replicas

    def give_up(self) -> None:
        """End the run after an error of this class."""
        run, self._run = self._run, None
        self._computing = None
        if run is not None:
            run.close()

    def _end_iteration(self, run: hoptui.Run, step: int) -> bool:
        """Return whether the training goes on. The phase of the callbacks belongs to one iteration each."""
        with self._callbacks.aside() if self._callbacks is not None else nullcontext():
            return run.boundary(step)

    def _ask_for_checkpoint(self) -> object:
        self._save_wanted = True
        return hoptui.LATER


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
        callback = self.__dict__.get(OWNER)
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


def _checkpoint_path(args: TrainingArguments, state: TrainerState) -> Path:
    folder = Path(str(args.output_dir)).absolute()
    return folder / f"{transformers.trainer_utils.PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _uuid(device: torch.device) -> str:
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


_wrap_trainer()
