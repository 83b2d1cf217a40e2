"""TorchTitan: its `Trainer` as one run.

`install()` comes before the trainer is built, such as in the module of your config:

Example:
    ```python
    from hoptui.integrations import torchtitan

    torchtitan.install("llama3-8b")
    ```

An iteration is one step of the trainer. The boundary is where the trainer asks whether to go on. Tokens are
those of all ranks. The loss and the gradient norm come as often as TorchTitan logs them.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from torchtitan.trainer import Trainer

import hoptui
from hoptui.integrations.error_guard import harmless
from hoptui.integrations.versions import Supported

SUPPORTED = Supported("torchtitan", "0.3", "0.3")
_MARK = "__hoptui__"
_RUN = "_hoptui_run"


def install(name: str | None = None) -> None:
    """From now on each `Trainer` of this process trains as a run.

    Args:
        name: The name of the run. None: the name of the model, such as `llama3`.

    Example:
        ```python
        install("llama3-8b")
        ```
    """
    if getattr(Trainer.train, _MARK, False):
        return
    SUPPORTED.warn()
    train, go_on = Trainer.train, Trainer.should_continue_training

    @functools.wraps(train)
    def observed(self: Any) -> Any:
        run = TitanRun(self, name)
        setattr(self, _RUN, run)
        run.begin()
        try:
            found = train(self)
        except BaseException as error:
            run.close(error)
            raise
        run.close()
        return found

    @functools.wraps(go_on)
    def should_continue_training(self: Any) -> bool:
        run: TitanRun | None = getattr(self, _RUN, None)
        # All ranks ask at the same step, and get the same answer from TorchTitan.
        return bool(go_on(self)) and (run is None or run.boundary() is not False)

    setattr(observed, _MARK, True)
    Trainer.train = observed
    Trainer.should_continue_training = should_continue_training


class TitanRun:
    """The run of one trainer, on each of its ranks.

    Args:
        trainer: A trainer that has been built.
        name: See `install`.
    """

    def __init__(self, trainer: Any, name: str | None) -> None:
        self._trainer, self._name = trainer, name
        self._run: hoptui.Run | None = None
        self._tokens: int | None = None
        self._log: Any = None

    @harmless
    def begin(self) -> None:
        """Training begins. TorchTitan loads a checkpoint next, if there is one."""
        config = self._trainer.config
        self._run = hoptui.connect(self._name or _model_name(config), total=config.training.steps)

    @harmless
    def boundary(self) -> bool | None:
        """Pass the boundary before the next step. Return False if training stops here."""
        run, trainer = self._run, self._trainer
        if run is None:
            return None
        if self._tokens is None:
            self._tokens = trainer.ntokens_seen
            self._offer(run)
        self._count_tokens(run, self._tokens)
        return run.boundary(trainer.step)

    def close(self, error: BaseException | None = None) -> None:
        """End the run, with the error that ended training."""
        run, self._run = self._run, None
        if self._log is not None:
            self._trainer.metrics_processor.log = self._log
        if run is None:
            return
        if error is None:
            self._end_last_step(run)
            run.close()
        else:
            run.close("exception", f"{type(error).__name__}: {error}")

    def give_up(self) -> None:
        """End the run after an error of this class."""
        self._tokens = None  # counting them could raise again
        self.close()

    def _offer(self, run: hoptui.Run) -> None:
        """Offer the knobs and commands. A checkpoint that was loaded before has put new parameter groups into
        the optimizers."""
        trainer, metrics = self._trainer, self._trainer.metrics_processor
        # Under pipeline parallelism a rank has several optimizers, and only some ranks know the loss.
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        run.optimizer(SimpleNamespace(param_groups=groups), list(trainer.lr_schedulers))
        run.bind(trainer.config.training, max_norm=(0.0, 1000.0))
        run.bind(metrics.config, log_freq=hoptui.Knob(1, 100_000, effect="speed"))
        if trainer.checkpointer.enable:
            run.bind(trainer.checkpointer, interval=hoptui.Knob(1, 10_000_000, effect="speed", unit="steps"))
            run.on_checkpoint(self._save)
        run.metric("tokens_per_s", unit="tokens/s", headline=True)
        if metrics.num_flops_per_token > 0 and not metrics.has_quantization:
            run.flops(metrics.num_flops_per_token, metric="tokens_per_s")
        self._log = metrics.log
        metrics.log = self._log_both

    @harmless
    def _end_last_step(self, run: hoptui.Run) -> None:
        if self._tokens is not None:  # no boundary follows the last step
            self._count_tokens(run, self._tokens)

    def _count_tokens(self, run: hoptui.Run, before: int) -> None:
        parallel, trainer = self._trainer.parallel_dims, self._trainer
        seen, self._tokens = trainer.ntokens_seen - before, trainer.ntokens_seen
        if seen > 0:
            # Ranks of tensor and pipeline parallelism see the same tokens.
            run.log(tokens=seen * parallel.dp_replicate * parallel.dp_shard * parallel.cp)

    def _log_both(self, step: int, *losses: Any, **options: Any) -> None:
        self._log(step, *losses, **options)
        self._logged(*losses, **options)

    @harmless
    def _logged(self, *losses: Any, **options: Any) -> None:
        run = self._run
        if run is None:
            return
        average, largest, norm = (*losses, *(options.get(name) for name in _LOSSES[len(losses) :]))[:3]
        if not self._trainer.parallel_dims.pp_enabled:  # else rank 0 may not know the loss
            run.log(loss=average, max_loss=largest)
        run.log({"grad_norm": norm} | (options.get("extra_metrics") or {}))

    def _save(self) -> str:
        checkpointer, step = self._trainer.checkpointer, self._trainer.step
        if step == 0:
            raise ValueError("no step has been trained yet")
        before = checkpointer.interval
        checkpointer.interval = step  # TorchTitan saves at multiples of it
        try:
            saved = checkpointer.save(step)
        finally:
            checkpointer.interval = before
        if not saved:
            raise ValueError("TorchTitan saves no checkpoints here: see checkpoint.enable and load_only")
        checkpointer.maybe_wait_for_saving()
        path = getattr(checkpointer, "_create_checkpoint_id", None)
        return str(path(step)) if path is not None else ""


_LOSSES = ("global_avg_loss", "global_max_loss", "grad_norm")


def _model_name(config: Any) -> str:
    return str(getattr(getattr(config, "model_spec", None), "name", "") or "torchtitan")
