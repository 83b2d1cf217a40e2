"""The training loop of the vision transformer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import hoptui
from trainer.common.checkpoint import read_checkpoint
from trainer.common.device import choose_device, choose_threads, describe_device, set_threads, wait_for
from trainer.common.errors import UsageError
from trainer.common.flops import conventions, mfu
from trainer.common.memory import beforehand, greatest_bytes, pressure, reset_peak
from trainer.common.meter import Meter
from trainer.common.metrics import Finished, Teller, measured
from trainer.common.options import KnobValues
from trainer.common.phases import phase_clock
from trainer.common.profile import Tracer
from trainer.common.ranks import Ranks, join, restarts
from trainer.common.report import Console, Ending, Figures, amount, line_parts, model_size, silent
from trainer.common.restart import Restart
from trainer.common.saving import Saver
from trainer.common.schedule import scale
from trainer.common.setup import check_alike, check_resumed, explained, preparing
from trainer.common.stop import StopOnSignal
from trainer.vision.config import VisionConfig
from trainer.vision.images import Source, digits, synthetic
from trainer.vision.job import Plan, VisionOptions, settle_job
from trainer.vision.live import declare
from trainer.vision.loader import Folder
from trainer.vision.state import TrainingState
from trainer.vision.update import evaluate, update

WORKLOAD = "vision"
SIZES = "--micro-batch"
"""The option that decides how much memory a step takes."""
CONVENTIONS = (
    "loss: cross-entropy of the step's batch in nats an image; accuracy: of all held-out images",
    "images/s: since the line before, of all GPUs together, everything included",
)


@dataclass(frozen=True, kw_only=True)
class Result(Figures):
    """How a run ended.

    `samples` counts the whole run. `samples_per_s` is its steady rate on all GPUs together, without the first iteration,
    evaluations, checkpoints, and what is tried out for a knob.
    """

    workload = WORKLOAD

    data: str
    samples: int
    samples_per_s: float | None
    accuracy: float | None

    def sentence(self) -> str:
        """The same for people."""
        accuracy = f", accuracy {self.accuracy:.1%}" if self.accuracy is not None else ""
        return self.told(
            f"{amount(self.samples)} images ({self.data}){accuracy}", self.samples_per_s, "images"
        )


def train(job: VisionOptions, knobs: KnobValues, write: Callable[[str], None]) -> Result:
    """Train until `job.iterations` are done, enough held-out images are classified right, or a stop is asked for.

    `write` takes the lines for people, or with `job.json` the result as one line, on rank 0 alone.

    Raises:
        UsageError: the job cannot be run as asked, or an image cannot be read.
    """
    began = time.monotonic()
    job.check()
    saved = read_checkpoint(job.resume, WORKLOAD) if job.resume else None
    with join(job.device) as ranks:
        console = Console(silent if job.json or ranks.rank else write)
        device = choose_device(job.device)
        plan, source = settle(job, knobs, saved, ranks, device)
        ending: Ending = "finished"
        meter, metrics = Meter(device), None

        run = hoptui.connect(
            plan.name, total=job.iterations, resume=saved["run"] if saved else None, ranks=ranks
        )
        console.unread = run.stop
        clock = phase_clock(run, device)
        with StopOnSignal(run) as signals, run, ranks.guard(run), ExitStack() as stack:
            with preparing(run, signals, device), explained(job.resume, SIZES):
                state = prepare(plan, source, saved, ranks, device)
            stack.enter_context(state)
            threads = choose_threads(plan.config.micro_batch * state.model.shape.tokens, plan.config.d_model)
            set_threads(device, job.threads or threads // ranks.local_world)
            declare(run, state, meter)
            about = {"preset": plan.preset, "data": plan.data, "name": plan.name}
            saver = Saver(
                run,
                ranks,
                WORKLOAD,
                job.checkpoint_dir,
                lambda: (state.iteration, {**state.state_dict(), **about}),
                console.say,
            )
            restart = Restart(run, ranks, saver, VisionConfig, job.checkpoint_dir, console.say)
            tracer = Tracer(run, WORKLOAD, job.trace_folder, device, ranks.rank)
            console.begin(introduction(plan, state, saved))
            beforehand(ranks, state.rehearse)
            reset_peak(device)
            teller, told = Teller(device), state.position

            for iteration in run.iterations(job.iterations, start=state.iteration):
                if restart.due():
                    break
                config = state.config
                part = scale(
                    "cosine",
                    iteration - state.born,
                    job.iterations - state.born,
                    warmup=config.warmup,
                    cooldown=0,
                    final=config.final_lr,
                )
                metrics = update(state, config.lr * part, clock)
                state.iteration = iteration + 1
                meter.add(config.batch_size, utilization(state, config.batch_size))
                run.log(
                    measured(metrics, device),
                    samples=config.batch_size,
                    samples_total=state.position,
                    lr=config.lr * part,
                )
                meter.begin()  # the first iteration is over, and with it what had to be compiled
                if job.evaluation_due(state.iteration) and state.source.judged:
                    with meter.apart(), clock.waited("evaluation"):
                        accuracy = evaluate(state)
                    run.log(accuracy=accuracy)
                    console.say(f"iteration {state.iteration:,}: accuracy {accuracy:.2%}")
                    if job.until_accuracy is not None and accuracy >= job.until_accuracy:
                        ending = "passed"
                if job.checkpoint_due(state.iteration):
                    with meter.apart(), clock.waited("checkpoint"):
                        saver.attempt()
                clock.end_iteration()
                if (seconds := console.due()) > 0:
                    run.log(pressure(device))
                if done := teller.ready(Finished(state.iteration, state.position, metrics), due=seconds > 0):
                    console.line(progress(job, state, done, (done.work - told) / seconds))
                    told = done.work
                tracer.end_iteration()
                if ending == "passed":
                    break

            wait_for(device)
            meter.pause()
            tracer.close()
            if run.stopping and ending == "finished":
                ending = "stopped"
            replaced = restart.leave()
            if not replaced:
                saver.attempt()
            result = Result(
                ending=ending,
                data=state.source.name,
                iterations=state.iteration,
                restarts=restarts(os.environ),
                samples=state.position,
                seconds=time.monotonic() - began,
                samples_per_s=meter.rate(),
                mfu=meter.mfu(),
                peak_memory_bytes=greatest_bytes(device),
                loss=float(metrics["loss"]) if metrics else None,
                accuracy=state.accuracy,
                micro_batch=state.config.micro_batch,
            )
            if not replaced:
                console.say(result.sentence())
                if job.json and ranks.rank == 0:
                    write(result.json())
    if replaced:
        restart.begin()
    return result


def settle(
    job: VisionOptions, knobs: KnobValues, saved: Mapping[str, Any] | None, ranks: Ranks, device: torch.device
) -> tuple[Plan, Source]:
    """The settled job, and its images.

    Raises:
        UsageError: the job cannot be run as asked.
    """
    with explained(job.resume, SIZES):
        if saved:
            check_resumed(ranks, job.resume, saved)
        plan = settle_job(job, knobs, saved, world=ranks.world, on_gpu=device.type == "cuda")
        source = find_source(plan, device)
        check_alike(ranks, (source.count, source.classes), f"--data {plan.data}", "images")
        if job.until_accuracy is not None and not source.judged:
            raise UsageError(f"--until-accuracy: there are no held-out images in {source.name}")
        if saved and saved["images"] != source.count:
            raise UsageError(
                f"--resume {job.resume}: its run has {saved['images']} images, and now there are {source.count}"
            )
    return plan, source


def prepare(
    plan: Plan, source: Source, saved: Mapping[str, Any] | None, ranks: Ranks, device: torch.device
) -> TrainingState:
    """The state to start from.

    Raises:
        UsageError: it cannot be built as asked.
    """
    try:
        state = TrainingState(plan.config, plan.seed, device, ranks, source)
    except ValueError as error:
        raise UsageError(f"--preset {plan.preset}: {error}") from None
    if saved and not state.load_state_dict(saved):
        state.notes.append(f"weights start anew: the model before was {model_size(saved['shape'])}")
    return state


def find_source(plan: Plan, device: torch.device) -> Source:
    """The images that the plan names."""
    match plan.data:
        case "digits":
            return digits()
        case "synthetic":
            return synthetic(plan.config.image_size, device)
        case folder:
            return Folder(Path(folder), plan.config.image_size)


def introduction(plan: Plan, state: TrainingState, saved: Mapping[str, Any] | None) -> list[str]:
    """What is run, where it goes on, which source won for each knob that two disagree on, and what the lines mean."""
    config, source, world = state.config, state.source, state.ranks.world
    where = describe_device(state.device) + (f", {world} ranks" if world > 1 else "")
    parameters = sum(parameter.numel() for parameter in state.model.parameters())
    lines = [
        f"{plan.name}: ViT of {amount(parameters)} parameters ({model_size(state.shape)}, "
        f"{state.model.shape.tokens} patches of {config.patch_size}), seed {plan.seed}, {state.precision}, "
        f"compile {state.compile_mode}, {where}",
        f"images: {source.name}, {source.channels} × {source.image_size}², {source.classes:,} classes",
        f"a step: {config.batch_size:,} images = {world} × {config.grad_accum} × {config.micro_batch} "
        "(ranks × pieces × images in one)",
    ]
    if saved:
        lines.append(f"resumed after iteration {state.iteration:,} and {amount(state.position)} images")
    means = conventions(state.device, "; an image is its patches")
    return [*lines, *plan.notes, *state.notes, *CONVENTIONS, *means]


def progress(job: VisionOptions, state: TrainingState, done: Finished, samples_per_s: float) -> list[str]:
    """The parts of a line for people."""
    figures = (
        f"loss {float(done.metrics['loss']):.4f}",
        f"accuracy in training {float(done.metrics['train_accuracy']):.1%}" if state.source.judged else "",
        f"gradient {float(done.metrics['grad_norm']):.3g}",
    )
    rate = f"{samples_per_s:,.0f} images/s ({state.source.name})"
    used = utilization(state, samples_per_s)
    return line_parts(done.iteration, job.iterations, figures, rate, used, greatest_bytes(state.device))


def utilization(state: TrainingState, samples_per_s: float) -> float | None:
    """MFU at this rate of all GPUs together; None where it would mean nothing. Of a number of images: their seconds at the peak."""
    return mfu(state.model.flops_per_image(), samples_per_s, state.device, state.precision, state.ranks.world)
