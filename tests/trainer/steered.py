"""Training jobs whose knobs are turned between iterations as the link thread would do it: here, or in one of
several ranks.

Run as a module it is a rank: it trains the jobs of its first argument one after the other and prints what
became of each.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import hoptui
from hoptui.protocol.messages import Command
from hoptui_trainer.__main__ import main
from hoptui_trainer.common import ranks as common
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.lm import state as lm_state
from hoptui_trainer.lm import train as lm
from hoptui_trainer.lm.job import LMOptions
from hoptui_trainer.vision import state as vision_state
from hoptui_trainer.vision import train as vision
from hoptui_trainer.vision.job import VisionOptions
from tests.run_state import run_state
from tests.sdk.two_ranks import meet_always

Job = Mapping[str, Any]
"""`workload`, `options` and `knobs`, or `command` alone: its arguments; `after` an iteration, the knobs to
turn."""
Told = dict[str, Any]
"""`values` of all knobs and `position` in the data at each iteration; `stages` of all commands; sums of the
weights; `turns`: the steps in which it was this rank's turn to compile."""

LOOPS: Mapping[str, Any] = {"lm": lm, "vision": vision}
OPTIONS: Mapping[str, Any] = {"lm": LMOptions, "vision": VisionOptions}


@contextlib.contextmanager
def steered(after: Mapping[str, Mapping[str, Any]]) -> Iterator[Told]:
    """Whatever is trained in here is steered and watched."""
    connect, runs, told = hoptui.connect, [], Told(values=[], positions=[], rank=None, turns=[])
    turn = RankGroup.turn

    def seen_connect(*arguments: Any, **fields: Any) -> hoptui.Run:
        runs.append(connect(*arguments, **fields))
        return runs[-1]

    def seen_update(update: Any, state: Any, *arguments: Any) -> dict[str, Tensor]:
        run = runs[-1]
        told["rank"] = run_state(run).rank
        told["values"].append(
            {name: handle.value for name, handle in run_state(run).declarations.knobs.items()}
        )
        told["positions"].append(state.position)
        for knob, value in after.get(str(run.step), {}).items() if run_state(run).rank == 0 else ():
            name = f"{run.step} {knob}"
            command = Command(
                id=name, run=run.id, epoch=run_state(run).epoch, verb="set", knob=knob, value=value
            )
            run_state(run).inbox.receive(command, time.monotonic(), run.step + 1)
        metrics: dict[str, Tensor] = update(state, *arguments)
        told["weights"] = [float(p.detach().double().sum()) for p in state.model.parameters()]
        return metrics

    def seen_turn(self: RankGroup, *, compiles: bool) -> contextlib.AbstractContextManager[None]:
        if compiles:
            told["turns"].append(runs[-1].step if runs else None)
        return turn(self, compiles=compiles)

    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(RankGroup, "turn", seen_turn))
        patches.enter_context(mock.patch.object(hoptui, "connect", seen_connect))
        for loop in LOOPS.values():
            update = loop.update
            patches.enter_context(
                mock.patch.object(loop, "update", lambda *given, update=update: seen_update(update, *given))
            )
        yield told
    told["stages"] = [outcome.stage for outcome in run_state(runs[-1]).inbox.collect_outcomes()]


def trained(job: Job) -> Told:
    """What became of a job."""
    with steered(job.get("after", {})) as told:
        if "command" in job:
            sys.argv[1:] = job["command"]  # what a new process is started with
            assert main(job["command"]) == 0
        else:
            workload, options = job["workload"], {**job["options"]}
            places = ("checkpoint_dir", "corpus", "resume")
            folders = {name: Path(value) for name, value in options.items() if name in places}
            LOOPS[workload].train(OPTIONS[workload](**options | folders), job["knobs"], lambda _: None)
    return told


def ranks(jobs: Sequence[Job]) -> None:
    """Be one of them, which take turns as on GPUs. What they compile in them are the plain functions."""
    torch.set_num_threads(1)
    meet_always()
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(common, "kernel_cache", return_value=("here",)))
        for state in (lm_state, vision_state):
            patches.enter_context(mock.patch.object(state, "compiled", lambda function, *_, **__: function))
        for job in jobs:
            print(json.dumps(trained(job)), flush=True)


if __name__ == "__main__":
    ranks(json.loads(sys.argv[1]))
