"""The training loop of the language model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.flops import conventions, mfu
from hoptui_trainer.common.launch import Launch, connected, launched
from hoptui_trainer.common.lr_schedule import learning_rate
from hoptui_trainer.common.memory import greatest_bytes
from hoptui_trainer.common.memory_budget import memory_line
from hoptui_trainer.common.metrics import Finished
from hoptui_trainer.common.options import KnobValues
from hoptui_trainer.common.report import SupervisedResult, amount, line_parts, model_size
from hoptui_trainer.common.session import SupervisedSession
from hoptui_trainer.lm.declarations import declare
from hoptui_trainer.lm.evaluate import HeldOut
from hoptui_trainer.lm.job import LMOptions, LMPlan, resolve_job
from hoptui_trainer.lm.preparation_progress import PreparationProgress
from hoptui_trainer.lm.state import LMState
from hoptui_trainer.lm.text import Text, prepare_text
from hoptui_trainer.lm.update import update

WORKLOAD = "lm"
CONVENTIONS = (
    "loss: cross-entropy in nats a token, of the step's batch or of held-out text; bpb: bits a byte of that",
    "tokens/s: since the line before, of all GPUs together, everything included",
)


@dataclass(frozen=True, kw_only=True)
class LMResult(SupervisedResult):
    """How a run ended.

    `tokens` counts the whole run. `tokens_per_s` is its steady rate on all GPUs together, without the first
    iteration, evaluations, checkpoints, and what is tried out for a knob.
    """

    workload = WORKLOAD

    batch_tokens: int
    tokens: int
    tokens_per_s: float | None
    lzma_bpb: float | None
    val_loss: float | None = None
    val_bpb: float | None = None
    best_val_loss: float | None = None
    best_val_bpb: float | None = None

    def sentence(self) -> str:
        """The result for users."""
        held_out = ""
        if self.val_loss is not None:
            bpb = "" if self.val_bpb is None else f", {self.val_bpb:.3f} bpb"
            lzma = "" if self.lzma_bpb is None else f" (lzma {self.lzma_bpb:.3f})"
            held_out = f", held out {self.val_loss:.4f} nats a token{bpb}{lzma}"
        return self.summary(f"{amount(self.tokens)} tokens{held_out}", self.tokens_per_s, "tokens")


def train(job: LMOptions, knobs: KnobValues, write: Callable[[str], None]) -> LMResult:
    """Train until `job.iterations` are done, the held-out text is predicted well enough or no better, or a
    stop is asked for.

    `write` takes the lines for users, or with `job.json` the result as one line, on rank 0 alone.

    Raises:
        UsageError: the job cannot be run as asked.
        ShortMemoryError: memory ran out, and nothing makes room.
    """
    with launched(WORKLOAD, job, write) as launch:
        plan = resolve(job, knobs, launch)
        with connected(launch, plan.name) as active:
            with active.preparing():
                plan, (text, state) = active.consent.fitted(plan, lambda plan: prepare(job, plan, launch))
            active.set_threads(plan.config.micro_batch * plan.config.seq_len, plan.config.d_model)
            meter = active.meter
            declare(active.run, state, meter)
            about = {"preset": plan.preset, "name": plan.name, "corpus": text.digest}
            session = SupervisedSession(active, state, about=about, progress=partial(progress, job, state))
            session.begin(introduction(plan, text, state, launch.saved))

            for iteration in session.iterations():
                lr = learning_rate(state.config, iteration - state.born, job.iterations - state.born)
                metrics = session.step(partial(update, state, lr, active.clock))
                if metrics is None:
                    break
                tokens = state.config.step_tokens
                ideal = utilization(state, tokens)
                session.learned(metrics, tokens, ideal, tokens=tokens, tokens_total=state.position, lr=lr)
                if job.evaluation_due(state.iteration):
                    with session.apart("evaluation"):
                        figures = state.evaluate()
                    bpb = f", {figures['val_bpb']:.4f} bpb" if "val_bpb" in figures else ""
                    session.console.say(
                        f"iteration {state.iteration:,}: held out {figures['val_loss']:.4f} nats a token{bpb}"
                    )
                    session.judge(figures, state.iteration)
                session.end_iteration()

            session.end()
            result = LMResult(
                **session.figures(),
                batch_tokens=state.config.step_tokens,
                tokens=state.position,
                tokens_per_s=meter.rate(),
                lzma_bpb=text.lzma_bpb,
            )
            session.announce(result, write)
    if session.replaced:
        session.restart.begin()
    return result


def resolve(job: LMOptions, knobs: KnobValues, launch: Launch) -> LMPlan:
    """The complete job.

    Raises:
        UsageError: it cannot be run as asked.
    """
    with launch.resolving():
        return resolve_job(job, knobs, launch.saved, world=launch.ranks.world, on_gpu=launch.on_gpu)


def prepare(job: LMOptions, plan: LMPlan, launch: Launch) -> tuple[Text, LMState]:
    """The text of a job, and the state to start from.

    Raises:
        UsageError: there is no such text, or the state cannot be built as asked.
    """
    saved, ranks = launch.saved, launch.ranks
    on_terminal = sys.stdout.isatty() and not job.json and ranks.rank == 0
    report = PreparationProgress(launch.console.say, sys.stdout if on_terminal else None)
    with closing(report):
        text = prepare_text(job, plan.config, ranks, launch.device, report)
    if saved and saved["corpus"] != text.digest:
        raise UsageError(f"--resume {job.resume}: its run learned from other text than {text.origin}")
    state = LMState(plan.config, plan.seed, launch.device, ranks, text.streams, job.shard)
    if saved and not state.load_state_dict(saved):
        state.notes.append(f"{state.kept}; the model before was {model_size(saved['shape'])}")
    return text, state


def introduction(plan: LMPlan, text: Text, state: LMState, saved: Mapping[str, Any] | None) -> list[str]:
    """What is run, where it goes on, the source of each knob that two sources disagree on, and what the
    lines mean."""
    config, world = state.config, state.ranks.world
    lines = [
        (
            f"{plan.name}: {amount(state.parameters)} parameters ({model_size(state.shape)}), "
            f"{state.computation}"
        ),
        corpus_line(text, state.held_out),
        *text.notes,
        f"a step: {config.step_tokens:,} tokens = {config.samples} sequences of {config.seq_len} = {world} × "
        f"{config.grad_accum} × {config.micro_batch} (ranks × pieces × sequences in one)",
        memory_line(state.device, state.ranks.local_world),
    ]
    if saved and state.iteration:
        lines.append(f"resumed after iteration {state.iteration:,} and {amount(state.position)} tokens")
    return [*lines, *plan.notes, *state.notes, *CONVENTIONS, *conventions(state.device)]


def corpus_line(text: Text, held_out: HeldOut) -> str:
    """The corpus in one line: what is not known of it is said to be unknown."""
    trained = f"{text.origin}: {amount(text.tokens)} tokens to learn from ({text.tokenizer})"
    if held_out.bytes is None:
        return f"{trained}, {amount(held_out.tokens)} held out; bits a byte are unknown (--bytes-per-token)"
    lzma = "" if text.lzma_bpb is None else f", for which lzma takes {text.lzma_bpb:.3f} bpb"
    return f"{trained}, {amount(held_out.bytes)}B held out{lzma}"


def progress(job: LMOptions, state: LMState, done: Finished, tokens_per_s: float) -> list[str]:
    """The parts of a progress line."""
    figures = (f"loss {float(done.metrics['loss']):.4f}", f"gradient {float(done.metrics['grad_norm']):.3g}")
    rate, used = f"{tokens_per_s:,.0f} tokens/s", utilization(state, tokens_per_s)
    return line_parts(done.iteration, job.iterations, figures, rate, used, greatest_bytes(state.device))


def utilization(state: LMState, tokens_per_s: float) -> float | None:
    """MFU at this rate of all GPUs together; None where it would mean nothing. Of a number of tokens: their
    seconds at the peak."""
    return mfu(state.cost, tokens_per_s, state.device, state.ranks.world)
