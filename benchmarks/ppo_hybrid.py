"""H1–H3: what hybrid PPO and each optimisation of PPO are worth, on one GPU.

`python -m benchmarks.ppo_hybrid [PART …]`, in one process without the daemon; without a part all of them:

- `memory`: peak memory and speed of the policy h100-after with and without checkpointing of activations.
- `places`: rollout and update on the CPU, rollout on the CPU and update on the GPU (hybrid), both on the GPU;
  with the seconds of rollout, update and both transfers.
- `ladder`: from fp32, eager, to all optimisations, everything on the GPU; each case changes one thing of the
  case before.

Rates are in windows of a second or more, after compilation and capture. Cases for which the time does not
suffice are left out, and say so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from benchmarks.measure import BEGAN, report, spread, tell
from hoptui_trainer.common.cuda_graphs import WARM_UPS
from hoptui_trainer.common.device import wait_for
from hoptui_trainer.common.memory import greatest_bytes, release, reset_peak
from hoptui_trainer.common.phases import NO_CLOCK, PhaseClock
from hoptui_trainer.common.ranks import ALONE
from hoptui_trainer.ppo import collector, evaluate, update
from hoptui_trainer.ppo import state as states
from hoptui_trainer.ppo.collector import HybridCollector
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.declarations import set_threads
from hoptui_trainer.ppo.envs.gym import GymTask
from hoptui_trainer.ppo.envs.registry import find_task, make_env
from hoptui_trainer.ppo.job import PPOOptions
from hoptui_trainer.ppo.state import PPOState
from hoptui_trainer.ppo.train import learned

CPU = torch.device("cpu")
WINDOWS, WINDOW_S = 5, 1.0
PHASED = 3
"""Iterations whose phases are measured: apart from the rates, because each phase waits for the device."""
TIME_S = 165.0
"""No case begins later than so many seconds after the start."""
QUICK = {"num_envs": 4, "rollout_len": 8, "minibatch_size": 16, "precision": "fp32", "compile": "off"}

Figures = dict[str, Any]
Fields = Mapping[str, Any]

LARGE_MLP: Fields = {"policy": "mlp", "hidden": 256}
TRANSFORMER: Fields = {"policy": "h100-before", "context": 32}
WORKLOADS: Mapping[str, tuple[str, Fields]] = {
    "Gymnasium's CartPole, MLP of 256": (
        "gymnasium:CartPole-v1",
        {**LARGE_MLP, "num_envs": 64, "rollout_len": 256, "minibatch_size": 4096, "epochs": 10},
    ),
    "own CartPole, MLP of 256": (
        "CartPole-v1",
        {**LARGE_MLP, "num_envs": 4096, "rollout_len": 32, "minibatch_size": 32_768, "epochs": 4},
    ),
    "own CartPole, transformer of 3 M": (
        "CartPole-v1",
        {**TRANSFORMER, "num_envs": 256, "rollout_len": 64, "minibatch_size": 8192, "epochs": 2},
    ),
}
"""Environment and settings of `places`. Gymnasium's environments have no place on a GPU."""
LADDERS: Mapping[str, Fields] = {
    "MLP of 64, 16,384 environments": {
        "num_envs": 16_384,
        "rollout_len": 32,
        "minibatch_size": 32_768,
        "epochs": 4,
        "grad_accum": 1,
    },
    "transformer of 3 M, 1,024 environments": {
        **TRANSFORMER,
        "num_envs": 1024,
        "rollout_len": 64,
        "minibatch_size": 16_384,
        "epochs": 2,
        "grad_accum": 1,
    },
}
LADDER: Sequence[tuple[str, Fields]] = (
    (
        "fp32, eager, AdamW not fused",
        {"precision": "fp32", "fused": False, "graphs": False, "compile": "off"},
    ),
    ("tf32", {"precision": "tf32"}),
    ("bf16", {"precision": "bf16"}),
    ("fused AdamW", {"fused": True}),
    ("CUDA graphs", {"graphs": True}),
    ("torch.compile", {"compile": "default"}),
    ("without CUDA graphs again", {"graphs": False}),
)
"""Each case has the changes of all before it."""
LARGE: Fields = {
    "policy": "h100-after",
    "context": 32,
    "sequence_len": 128,
    "num_envs": 256,
    "rollout_len": 128,
    "minibatch_size": 32_768,
    "epochs": 1,
    "grad_accum": 1,
}
PEAK = 0.6
"""What checkpointing may leave of the peak."""


class Stopwatch:
    """The seconds of the outer phases and of the transfers, each until the device has done its work."""

    NAMES = ("rollout", "update", "transfer/weights", "transfer/batch")

    def __init__(self, device: torch.device) -> None:
        self.seconds = dict.fromkeys(self.NAMES, 0.0)
        self._device, self._path = device, list[str]()

    @contextmanager
    def queued(self, name: str) -> Iterator[None]:
        self._path.append(name)
        path = "/".join(self._path)
        if path not in self.seconds:
            yield
        else:
            wait_for(self._device)
            began = time.monotonic()
            yield
            wait_for(self._device)
            self.seconds[path] += time.monotonic() - began
        self._path.pop()

    waited = queued

    def end_iteration(self) -> None:
        pass


class Machine:
    """Where it is measured; with `quick` the mechanics alone are tried, on a CPU."""

    def __init__(self, *, quick: bool) -> None:
        self.quick = quick
        self.device = CPU if quick else torch.device("cuda", 0)
        self.windows, self.window_s = (2, 0.0) if quick else (WINDOWS, WINDOW_S)
        self._threads = torch.get_num_threads()

    @contextmanager
    def state(
        self, env: str, device: torch.device, fields: Fields, *, apart: bool = False
    ) -> Iterator[PPOState]:
        """A state that trains on `device`; `apart`: environments and a copy of the policy are on the CPU."""
        config = PPOConfig(**{**fields, **(QUICK if self.quick else {})})
        if self.quick and config.policy != "mlp":
            config.policy = "tiny"
        task = find_task(env)
        torch.set_num_threads(self._threads)
        set_threads(PPOOptions(), config, device, ALONE)
        where = CPU if apart or isinstance(task, GymTask) else device
        # On a CPU, where a quick try is, the two places are one.
        split = patch.object(states, "make_collector", HybridCollector) if apart else nullcontext()
        with split:
            state = PPOState(make_env(task, config.num_envs, 0, where, staggered=True), config, 0, device)
        try:
            yield state
        finally:
            state.close()
            torch.set_num_threads(self._threads)

    def ended(self) -> None:
        """Give back what the last case has used: its state must be unknown by now."""
        torch.compiler.reset()
        release(self.device)

    def late(self) -> Figures | None:
        """What stands for a case that is not begun any more."""
        return None if time.monotonic() - BEGAN < TIME_S else {"left_out": f"after {TIME_S:g} s"}


def iterate(state: PPOState, clock: PhaseClock) -> None:
    """One iteration, as the loop of the trainer makes it.

    Raises:
        MemoryError: memory ran out.
    """
    if learned(state, clock) is None:
        raise MemoryError("memory ran out")
    state.epoch += state.config.epochs
    state.since += 1


def measured(machine: Machine, state: PPOState) -> Figures:
    """Environment steps a second and seconds of an iteration, in windows, and the greatest memory."""
    steps = state.collector.rollout.size
    reset_peak(machine.device)
    began = time.monotonic()
    for _ in range(WARM_UPS + 2):
        iterate(state, NO_CLOCK)
    wait_for(machine.device)
    start_s = time.monotonic() - began
    seconds: list[float] = []
    for _ in range(machine.windows):
        begun, done = time.monotonic(), 0
        while not done or time.monotonic() - begun < machine.window_s:
            iterate(state, NO_CLOCK)
            done += 1
        wait_for(machine.device)
        seconds.append((time.monotonic() - begun) / done)
    return {
        "steps_per_s": spread([steps / s for s in seconds], 1),
        "iteration_s": spread(seconds, 5),
        "start_s": round(start_s, 1),
        "pieces": state.grad_accum,
        "peak_memory_gb": round((greatest_bytes(machine.device) or 0) / 1e9, 2),
    }


def phases(machine: Machine, state: PPOState) -> dict[str, float]:
    """The mean seconds of each phase in an iteration, over `PHASED` of them."""
    clock = Stopwatch(machine.device)
    for _ in range(PHASED):
        iterate(state, clock)
    return {name: round(seconds / PHASED, 5) for name, seconds in clock.seconds.items()}


def versus(case: Figures, base: Figures) -> float | None:
    """How many times the median rate of `base` a case has; None if one of them was left out."""
    if "steps_per_s" not in case or "steps_per_s" not in base:
        return None
    return round(float(case["steps_per_s"]["median"]) / float(base["steps_per_s"]["median"]), 3)


# places -----------------------------------------------------------------------------------------------------


def places(machine: Machine) -> Figures:
    """Where rollout and update run best, for three workloads."""
    return {name: _places(machine, name, *workload) for name, workload in WORKLOADS.items()}


def _places(machine: Machine, name: str, env: str, fields: Fields) -> Figures:
    cases: dict[str, Figures] = {}
    ours = not env.startswith("gymnasium:")
    where = {
        "CPU": (CPU, False),
        "hybrid": (machine.device, True),
        **({"GPU": (machine.device, False)} if ours else {}),
    }
    for place, (device, apart) in where.items():
        found = machine.late()
        if found is None:
            with machine.state(env, device, fields, apart=apart) as state:
                found = {**measured(machine, state), "phases_s": phases(machine, state)}
            del state
        found["times_the_cpu"] = versus(found, cases.get("CPU", found))
        cases[place] = tell(f"{name}: {place}", found)
        machine.ended()
    return cases


# ladder -----------------------------------------------------------------------------------------------------


def ladder(machine: Machine) -> Figures:
    """What each optimisation adds to those before it, for two networks."""
    return {name: _ladder(machine, name, fields) for name, fields in LADDERS.items()}


def _ladder(machine: Machine, name: str, fields: Fields) -> Figures:
    cases: dict[str, Figures] = {}
    now: dict[str, Any] = {}
    first = before = ""
    for case, change in LADDER:
        now |= change
        found = machine.late() or _ladder_case(machine, fields, now)
        if first:
            found["times_the_first"] = versus(found, cases[first])
            found["times_the_case_before"] = versus(found, cases[before])
        cases[case] = tell(f"{name}: {case}", found)
        first, before = first or case, case
        machine.ended()
    return cases


def _ladder_case(machine: Machine, fields: Fields, now: Fields) -> Figures:
    modes = {"precision": now["precision"], "compile": "default" if now["graphs"] else now["compile"]}
    with ExitStack() as stack:
        if now["compile"] == "off":
            for module in (collector, update, evaluate):
                stack.enter_context(patch.object(module, "compiled", _as_written))
        if not now["fused"]:
            stack.enter_context(patch.object(states, "make_optimizer", foreach_adamw))
        state = stack.enter_context(machine.state("CartPole-v1", machine.device, {**fields, **modes}))
        state.graphs.wanted = now["graphs"]
        return measured(machine, state)


def _as_written(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    return function


class ForeachAdamW(torch.optim.AdamW):
    """AdamW that is not fused. It takes no note of `found_inf`, by which the update skips steps for which
    memory was short: a benchmark has no such steps."""

    @property
    def found_inf(self) -> None:
        return None

    @found_inf.setter
    def found_inf(self, _: object) -> None:
        pass


def foreach_adamw(policy: nn.Module, lr: float, device: torch.device) -> torch.optim.AdamW:
    """AdamW as torch takes it by default on a GPU: not fused."""
    gpu = device.type == "cuda"
    return ForeachAdamW(
        policy.parameters(),
        lr=torch.tensor(lr, device=device),
        eps=1e-5,
        weight_decay=0.0,
        foreach=gpu,
        capturable=gpu,
    )


# memory -----------------------------------------------------------------------------------------------------


def memory(machine: Machine) -> Figures:
    """What checkpointing of activations saves, and what it costs."""
    cases: dict[str, Figures] = {}
    for checkpointing in (False, True):
        found = machine.late()
        if found is None:
            asked = {**LARGE, "checkpointing": checkpointing}
            with machine.state("CartPole-v1", machine.device, asked) as state:
                found = measured(machine, state)
            del state
        name = "checkpointing" if checkpointing else "plain"
        cases[name] = tell(f"h100-after: {name}", found)
        machine.ended()
    peaks = [case.get("peak_memory_gb", 0.0) for case in cases.values()]
    return {
        "cases": cases,
        "peak_ratio": round(peaks[1] / peaks[0], 3) if all(peaks) else None,
        "speed_ratio": versus(cases["checkpointing"], cases["plain"]),
    }


PARTS: Mapping[str, Callable[[Machine], Figures]] = {"memory": memory, "places": places, "ladder": ladder}


def main(arguments: Sequence[str] = ()) -> Figures:
    """Measure the parts and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} [default: all]")
    parser.add_argument(
        "--quick", action="store_true", help="try the mechanics on a CPU in seconds; keeps no result"
    )
    given = parser.parse_args(list(arguments))
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    machine = Machine(quick=given.quick)
    asked = [name for name in PARTS if name in given.parts or not given.parts]
    figures: Figures = {"unit": "env steps/s", **{name: PARTS[name](machine) for name in asked}}
    if given.quick:
        print(json.dumps(figures), flush=True)
        return figures
    met = {}
    if (ratio := figures.get("memory", {}).get("peak_ratio")) is not None:
        met[f"checkpointing: at most {PEAK:g} of the peak"] = ratio <= PEAK
    return report("ppo_hybrid", {**figures, "met": met})


if __name__ == "__main__":
    main(sys.argv[1:])
