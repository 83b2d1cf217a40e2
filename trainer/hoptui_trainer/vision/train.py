"""The training loop of the vision transformer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.flops import Cost, conventions, mfu
from hoptui_trainer.common.launch import Launch, connected, launched
from hoptui_trainer.common.lr_schedule import learning_rate
from hoptui_trainer.common.memory import greatest_bytes
from hoptui_trainer.common.memory_budget import memory_line
from hoptui_trainer.common.metrics import Finished
from hoptui_trainer.common.options import KnobValues
from hoptui_trainer.common.report import SupervisedResult, amount, line_parts, model_size, rate_text
from hoptui_trainer.common.session import SupervisedSession
from hoptui_trainer.common.setup import check_alike
from hoptui_trainer.vision.config import many_patches
from hoptui_trainer.vision.declarations import declare
from hoptui_trainer.vision.images import Source, digits, synthetic
from hoptui_trainer.vision.job import VisionOptions, VisionPlan, resolve_job
from hoptui_trainer.vision.loader import Folder
from hoptui_trainer.vision.state import VisionState
from hoptui_trainer.vision.update import evaluate, update

WORKLOAD = "vision"


@dataclass(frozen=True, kw_only=True)
class VisionResult(SupervisedResult):
    """How a run ended.

    `samples` counts the whole run: images, or clips of `frames`. `samples_per_s` is its steady
    rate on all GPUs together, without the first iteration, evaluations, checkpoints, and what is tried out
    for a knob.
    """

    workload = WORKLOAD

    data: str
    batch_size: int
    frames: int
    samples: int
    samples_per_s: float | None
    val_loss: float | None = None
    accuracy: float | None = None
    best_val_loss: float | None = None
    best_accuracy: float | None = None

    def sentence(self) -> str:
        """The result for users."""
        unit = "clips" if self.frames > 1 else "images"
        judged = (
            f", held out loss {self.val_loss:.4f}, accuracy {self.accuracy:.1%}"
            if self.val_loss is not None
            else ""
        )
        return self.summary(f"{amount(self.samples)} {unit} ({self.data}){judged}", self.samples_per_s, unit)


def train(job: VisionOptions, knobs: KnobValues, write: Callable[[str], None]) -> VisionResult:
    """Train until `job.iterations` are done, held-out images are classified well enough or no better, or a
    stop is asked for.

    `write` takes the lines for users, or with `job.json` the result as one line, on rank 0 alone.

    Raises:
        UsageError: the job cannot be run as asked, or an image cannot be read.
        ShortMemoryError: memory ran out, and nothing makes room.
    """
    with launched(WORKLOAD, job, write) as launch:
        plan, source = resolve(job, knobs, launch)
        if warning := many_patches(plan.config):
            launch.console.say(warning)  # Now: measuring sizes takes long with so many.
        with connected(launch, plan.name) as active, ExitStack() as stack:
            with active.preparing():
                plan, state = active.consent.fitted(plan, lambda plan: prepare(plan, source, launch))
            stack.enter_context(state)
            active.set_threads(plan.config.micro_batch * state.model.shape.tokens, plan.config.d_model)
            meter = active.meter
            declare(active.run, state, meter)
            about = {"preset": plan.preset, "data": plan.data, "name": plan.name}
            session = SupervisedSession(active, state, about=about, progress=partial(progress, job, state))
            session.begin(introduction(plan, state, launch.saved))

            for iteration in session.iterations():
                lr = learning_rate(state.config, iteration - state.born, job.iterations - state.born)
                metrics = session.step(partial(update, state, lr, active.clock))
                if metrics is None:
                    break
                count = state.config.batch_size
                ideal = utilization(state, count)
                session.learned(metrics, count, ideal, samples=count, samples_total=state.position, lr=lr)
                if job.evaluation_due(state.iteration) and state.source.judged:
                    with session.apart("evaluation"):
                        figures = evaluate(state)
                    session.console.say(
                        f"iteration {state.iteration:,}: held out loss {figures['val_loss']:.4f}, "
                        f"accuracy {figures['accuracy']:.2%}"
                    )
                    session.judge(figures, state.iteration)
                session.end_iteration()

            session.end()
            result = VisionResult(
                **session.figures(),
                data=state.source.name,
                batch_size=state.config.batch_size,
                frames=state.source.frames,
                samples=state.position,
                samples_per_s=meter.rate(),
            )
            session.announce(result, write)
    if session.replaced:
        session.restart.begin()
    return result


def resolve(job: VisionOptions, knobs: KnobValues, launch: Launch) -> tuple[VisionPlan, Source]:
    """The complete job, and its images.

    Raises:
        UsageError: the job cannot be run as asked.
    """
    saved, ranks = launch.saved, launch.ranks
    with launch.resolving():
        plan = resolve_job(job, knobs, saved, world=ranks.world, on_gpu=launch.on_gpu)
        source, unit = find_source(plan, launch.device), plan.config.unit
        check_alike(ranks, (source.count, source.classes), f"--data {plan.data}", unit)
        asked = (*job.judging, *(["--evaluate-every"] if job.evaluations_asked else []))
        if asked and not source.judged:
            raise UsageError(f"{asked[0]}: there are no held-out {unit} in {source.name}")
        if saved and saved["images"] != source.count:
            raise UsageError(
                f"--resume {job.resume}: its run has {saved['images']} {unit}, and now there are "
                f"{source.count}"
            )
    return plan, source


def prepare(plan: VisionPlan, source: Source, launch: Launch) -> VisionState:
    """The state to start from.

    Raises:
        UsageError: it cannot be built as asked.
    """
    try:
        state = VisionState(plan.config, plan.seed, launch.device, launch.ranks, source)
    except ValueError as error:
        raise UsageError(f"--preset {plan.preset}: {error}") from None
    if launch.saved and not state.load_state_dict(launch.saved):
        state.notes.append(f"{state.kept}; the model before was {model_size(launch.saved['shape'])}")
    return state


def find_source(plan: VisionPlan, device: torch.device) -> Source:
    """The images or clips that the plan names."""
    config = plan.config
    match plan.data:
        case "digits":
            return digits()
        case "synthetic":
            return synthetic(config.image_size, device, config.frames)
        case folder:
            return Folder(Path(folder), config.image_size, config.frames)


def introduction(plan: VisionPlan, state: VisionState, saved: Mapping[str, Any] | None) -> list[str]:
    """What is run, where it goes on, the source of each knob that two sources disagree on, and what the
    lines mean."""
    config, source, world, unit = state.config, state.source, state.ranks.world, state.config.unit
    patch, each = f"{config.patch_size}²", f"{source.channels} × {source.image_size}²"
    if source.frames > 1:
        patch, each = f"{config.tubelet} × {patch}", f"{source.frames} × {each}"
    patches = f"{state.model.shape.tokens:,} patches of {patch}"
    lines = [
        f"{plan.name}: ViT of {amount(state.parameters)} parameters ({model_size(state.shape)}, {patches}), "
        f"{state.computation}",
        f"{unit}: {source.name}, {each}, {source.classes:,} classes",
        f"a step: {config.batch_size:,} {unit} = {world} × {config.grad_accum} × {config.micro_batch} "
        f"(ranks × pieces × {unit} in one)",
        memory_line(state.device, state.ranks.local_world),
    ]
    if saved:
        lines.append(f"resumed after iteration {state.iteration:,} and {amount(state.position)} {unit}")
    means = (
        f"loss: cross-entropy in nats {config.one}, of the step's batch or of all held-out {unit}; "
        "accuracy: of these",
        f"{unit}/s: since the line before, of all GPUs together, everything included",
        *conventions(state.device, f"; {config.one} is its patches"),
    )
    return [*lines, *plan.notes, *state.notes, *means]


def progress(job: VisionOptions, state: VisionState, done: Finished, samples_per_s: float) -> list[str]:
    """The parts of a progress line."""
    figures = (
        f"loss {float(done.metrics['loss']):.4f}",
        f"accuracy in training {float(done.metrics['train_accuracy']):.1%}" if state.source.judged else "",
        f"gradient {float(done.metrics['grad_norm']):.3g}",
    )
    rate = f"{rate_text(samples_per_s, state.config.unit)} ({state.source.name})"
    used = utilization(state, samples_per_s)
    return line_parts(done.iteration, job.iterations, figures, rate, used, greatest_bytes(state.device))


def utilization(state: VisionState, samples_per_s: float) -> float | None:
    """MFU at this rate of all GPUs together; None where it would mean nothing. Of a number of images or
    clips: their seconds at the peak."""
    cost = Cost(state.model.flops_per_sample(), state.precision)
    return mfu(cost, samples_per_s, state.device, state.ranks.world)
