"""The training loop of the language model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from trainer.common.setup import check_resumed, explained, preparing
from trainer.common.stop import StopOnSignal
from trainer.lm.config import LMConfig
from trainer.lm.job import LMOptions, Plan, settle_job
from trainer.lm.live import declare
from trainer.lm.state import TrainingState
from trainer.lm.text import Text, prepare_text
from trainer.lm.update import learning_rate, update

WORKLOAD = "lm"
SIZES = "--micro-batch"
"""The option that decides how much memory a step takes."""
CONVENTIONS = (
    "loss: cross-entropy of the step's batch in nats a token; bpb: bits a byte of held-out text",
    "tokens/s: since the line before, of all GPUs together, everything included",
)


@dataclass(frozen=True, kw_only=True)
class Result(Figures):
    """How a run ended.

    `tokens` counts the whole run. `tokens_per_s` is its steady rate on all GPUs together, without the first iteration,
    evaluations, checkpoints, and what is tried out for a knob.
    """

    workload = WORKLOAD

    tokens: int
    tokens_per_s: float | None
    val_bpb: float | None
    lzma_bpb: float

    def sentence(self) -> str:
        """The same for people."""
        held_out = f", held out {self.val_bpb:.3f} bpb (lzma {self.lzma_bpb:.3f})" if self.val_bpb else ""
        return self.told(f"{amount(self.tokens)} tokens{held_out}", self.tokens_per_s, "tokens")


def train(job: LMOptions, knobs: KnobValues, write: Callable[[str], None]) -> Result:
    """Train until `job.iterations` are done, the held-out text is predicted well enough, or a stop is asked for.

    `write` takes the lines for people, or with `job.json` the result as one line, on rank 0 alone.

    Raises:
        UsageError: the job cannot be run as asked.
    """
    began = time.monotonic()
    job.check()
    saved = read_checkpoint(job.resume, WORKLOAD) if job.resume else None
    with join(job.device) as ranks:
        console = Console(silent if job.json or ranks.rank else write)
        device = choose_device(job.device)
        plan = settle(job, knobs, saved, ranks, device)
        ending: Ending = "finished"
        meter, metrics = Meter(device), None

        run = hoptui.connect(
            plan.name, total=job.iterations, resume=saved["run"] if saved else None, ranks=ranks
        )
        console.unread = run.stop
        clock = phase_clock(run, device)
        with StopOnSignal(run) as signals, run, ranks.guard(run):
            with preparing(run, signals, device), explained(job.resume, SIZES):
                text, state = prepare(job, plan, saved, ranks, device)
            threads = choose_threads(plan.config.micro_batch * plan.config.seq_len, plan.config.d_model)
            set_threads(device, job.threads or threads // ranks.local_world)
            declare(run, state, meter)
            about = {"preset": plan.preset, "name": plan.name, "corpus": text.digest}
            saver = Saver(
                run,
                ranks,
                WORKLOAD,
                job.checkpoint_dir,
                lambda: (state.iteration, {**state.state_dict(), **about}),
                console.say,
            )
            restart = Restart(run, ranks, saver, LMConfig, job.checkpoint_dir, console.say)
            tracer = Tracer(run, WORKLOAD, job.trace_folder, device, ranks.rank)
            console.begin(introduction(plan, text, state, saved))
            beforehand(ranks, state.rehearse)
            reset_peak(device)
            teller, told = Teller(device), state.position

            for iteration in run.iterations(job.iterations, start=state.iteration):
                if restart.due():
                    break
                lr = learning_rate(state.config, iteration - state.born, job.iterations - state.born)
                metrics = update(state, lr, clock)
                state.iteration = iteration + 1
                meter.add(state.config.step_tokens, utilization(state, state.config.step_tokens))
                run.log(
                    measured(metrics, device),
                    tokens=state.config.step_tokens,
                    tokens_total=state.position,
                    lr=lr,
                )
                meter.begin()  # the first iteration is over, and with it what had to be compiled
                if job.evaluation_due(state.iteration):
                    with meter.apart(), clock.waited("evaluation"):
                        bpb = state.evaluate()
                    run.log(val_bpb=bpb, val_loss=state.held_out.nats_per_token(bpb))
                    console.say(f"iteration {state.iteration:,}: held out {bpb:.4f} bpb")
                    if job.until_bpb is not None and bpb <= job.until_bpb:
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
                if job.patience and state.evaluations_since_best >= job.patience:
                    console.say(f"no better for {job.patience} evaluations: the end")
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
                iterations=state.iteration,
                restarts=restarts(os.environ),
                tokens=state.position,
                seconds=time.monotonic() - began,
                tokens_per_s=meter.rate(),
                mfu=meter.mfu(),
                peak_memory_bytes=greatest_bytes(device),
                loss=float(metrics["loss"]) if metrics else None,
                val_bpb=state.val_bpb,
                lzma_bpb=text.lzma_bpb,
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
    job: LMOptions, knobs: KnobValues, saved: Mapping[str, Any] | None, ranks: Ranks, device: torch.device
) -> Plan:
    """The settled job.

    Raises:
        UsageError: it cannot be run as asked.
    """
    with explained(job.resume, SIZES):
        if saved:
            check_resumed(ranks, job.resume, saved)
        return settle_job(job, knobs, saved, world=ranks.world, on_gpu=device.type == "cuda")


def prepare(
    job: LMOptions, plan: Plan, saved: Mapping[str, Any] | None, ranks: Ranks, device: torch.device
) -> tuple[Text, TrainingState]:
    """The text of a job, and the state to start from.

    Raises:
        UsageError: there is no such text, or the state cannot be built as asked.
    """
    text = prepare_text(job.corpus, plan.config, ranks)
    if saved and saved["corpus"] != text.digest:
        raise UsageError(f"--resume {job.resume}: its run learned from other text than {text.origin}")
    state = TrainingState(plan.config, plan.seed, device, ranks, text.streams)
    if saved and not state.load_state_dict(saved):
        state.notes.append(f"weights start anew: the model before was {model_size(saved['shape'])}")
    return text, state


def introduction(plan: Plan, text: Text, state: TrainingState, saved: Mapping[str, Any] | None) -> list[str]:
    """What is run, where it goes on, which source won for each knob that two disagree on, and what the lines mean."""
    config, world = state.config, state.ranks.world
    where = describe_device(state.device) + (f", {world} ranks" if world > 1 else "")
    parameters = sum(parameter.numel() for parameter in state.model.parameters())
    lines = [
        f"{plan.name}: {amount(parameters)} parameters ({model_size(state.shape)}), seed {plan.seed}, {state.precision}, "
        f"compile {state.compile_mode}, {where}",
        f"{text.origin}: {amount(len(text.streams.train))} tokens to learn from ({config.tokenizer}), "
        f"{amount(state.held_out.bytes)}B held out, for which lzma takes {text.lzma_bpb:.3f} bpb",
        f"a step: {config.step_tokens:,} tokens = {config.samples} sequences of {config.seq_len} = {world} × "
        f"{config.grad_accum} × {config.micro_batch} (ranks × pieces × sequences in one)",
    ]
    if saved and state.iteration:
        lines.append(f"resumed after iteration {state.iteration:,} and {amount(state.position)} tokens")
    return [*lines, *plan.notes, *state.notes, *CONVENTIONS, *conventions(state.device)]


def progress(job: LMOptions, state: TrainingState, done: Finished, tokens_per_s: float) -> list[str]:
    """The parts of a line for people."""
    figures = (f"loss {float(done.metrics['loss']):.4f}", f"gradient {float(done.metrics['grad_norm']):.3g}")
    rate, used = f"{tokens_per_s:,.0f} tokens/s", utilization(state, tokens_per_s)
    return line_parts(done.iteration, job.iterations, figures, rate, used, greatest_bytes(state.device))


def utilization(state: TrainingState, tokens_per_s: float) -> float | None:
    """MFU at this rate of all GPUs together; None where it would mean nothing. Of a number of tokens: their seconds at the peak."""
    cost = state.model.flops_per_token(state.config.seq_len)
    return mfu(cost, tokens_per_s, state.device, state.precision, state.ranks.world)
