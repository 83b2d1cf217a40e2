"""The monkey on a live run: `python -m benchmarks.monkey_live [--seconds N] [--seed N]`, by default ten
minutes of it.

A real run of 40 metrics and seven knobs behind a real daemon with eight invented GPUs, while somebody else
turns the same knobs now and then. It sits down anew every half minute, in a terminal of another size. A
traceback, or anything sent that no gesture meant, ends it; at its end the daemon must have heard from the
dashboard what left it and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks import monkey
from benchmarks.eight_gpus import ALL, eight_gpus
from benchmarks.measure import Bench, machine, report, tell, until
from hoptui.client.client import Change, Client
from hoptui.domain.knobs import KnobState, KnobValue
from hoptui.protocol.messages import CommandRecord
from hoptui.settings import Config
from hoptui.tui.app import HoptuiApp

SECONDS, SEED = 600.0, 1
SITTING_S = 30.0
OTHER_S = 2.0
CLIENT = "monkey"
TRAIL = 12
RUN = """
import random, time, hoptui
run = hoptui.connect("monkeyed", total=100_000)
knobs = [
    run.knob("num_envs", 1024, min=1, max=65536, scale="log", cost="shape"),
    run.knob("minibatch_size", 256, min=32, max=4096, scale="pow2", effect="speed", cost="shape"),
    run.knob("grad_accum", 4, min=1, max=64, effect="speed", keeps="minibatch_size"),
    run.knob("lr", 3e-4, min=1e-6, max=0.1, scale="log"),
    run.knob("shuffle", True, effect="speed"),
    run.knob("precision", "bf16", choices=("fp32", "bf16"), effect="speed", cost="rebuild"),
    run.knob("note", "none"),
]
run.on_checkpoint(lambda: None)
for i in run.iterations():
    with run.phase("rollout"):
        with run.phase("env"): time.sleep(0.02)
        with run.phase("policy"): time.sleep(0.01)
    with run.phase("update"): time.sleep(0.01)
    run.log({f"metric_{k}": random.random() for k in range(38)}, env_steps=2048, loss=random.random())
"""


class Run:
    """The run that is played with, started again whenever the monkey has stopped it."""

    def __init__(self, node: Bench) -> None:
        self._node = node
        self._process: subprocess.Popen[str] | None = None
        self.started = 0

    def goes_on(self) -> None:
        """See to it that there is one, and that the daemon knows it."""
        if self._process is None or self._process.poll() is not None:
            self._process = self._node.python(RUN, CUDA_VISIBLE_DEVICES=ALL)
            self.started += 1
            pid = self._process.pid
            until(lambda: self._node.run("monkeyed").pid == pid, what="the next run")


@contextmanager
def somebody_else(node: Bench, seed: int) -> Iterator[Counter[str]]:
    """Another person at work on the runs that go on, until the end; counts what they did."""
    chosen, over, did = random.Random(seed), threading.Event(), Counter[str]()

    def work() -> None:
        with node.session() as session:
            while not over.wait(chosen.uniform(0, 2 * OTHER_S)):
                state = session.fetch(state=0).node
                live = [run for run in state.runs if not run.exit_reason and run.knobs] if state else []
                if not live:
                    continue
                run = live[-1]
                did["set"] += 1
                knob = chosen.choice(run.knobs)
                session.submit(run, "set", knob=knob.spec.name, value=another(knob, chosen))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield did
    finally:
        over.set()
        thread.join(10)


def another(knob: KnobState, chosen: random.Random) -> KnobValue:
    """A value that the knob may have."""
    spec = knob.spec
    match spec.kind:
        case "bool":
            return not knob.value
        case "str":
            return chosen.choice(spec.choices or ("none", "some"))
        case "int":
            return 1 << chosen.randrange(5, 7)
    return chosen.choice((1e-4, 3e-4, 1e-3))


async def sit(watch: monkey.Watch, hand: Iterator[monkey.Gesture], chosen: random.Random, end: float) -> int:
    """Use one dashboard until `end`. Returns the number of gestures."""

    def connect(on_change: Callable[[Change], None]) -> Client:
        client: Client = watch.over(Client(on_change=on_change, client=CLIENT))
        return client

    app = HoptuiApp(connect, chosen.choice(("monkeyed", None)), config=Config())
    last: deque[monkey.Gesture] = deque(maxlen=TRAIL)
    try:
        async with app.run_test(size=chosen.choice(monkey.SIZES), notifications=True) as pilot:
            return await monkey.play(app, pilot, watch, _kept(hand, last), lambda: time.monotonic() < end)
    except Exception:
        print("the last gestures:", *last, sep="\n  ", file=sys.stderr)
        raise


def _kept(hand: Iterator[monkey.Gesture], last: deque[monkey.Gesture]) -> Iterator[monkey.Gesture]:
    """The same gestures; the newest are kept."""
    for gesture in hand:
        last.append(gesture)
        yield gesture


def heard(node: Bench) -> list[CommandRecord]:
    """What the daemon has heard from the monkey's dashboards."""
    with node.session() as session:
        return [record for record in session.fetch().commands if record.origin.client == CLIENT]


def measure(seconds: float, seed: int) -> dict[str, Any]:
    """Play for so long.

    Raises:
        monkey.UnmeantError: something left the dashboard, or reached the daemon, that no gesture meant.
    """
    chosen, watch = random.Random(seed), monkey.Watch()
    hand = monkey.gestures(chosen)
    signals: list[object] = []
    made, sittings, known = 0, 0, dict[str, CommandRecord]()
    with eight_gpus() as node, no_signals(signals), somebody_else(node, seed) as others:
        run = Run(node)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            run.goes_on()
            made += asyncio.run(sit(watch, hand, chosen, min(end, time.monotonic() + SITTING_S)))
            sittings += 1
            tell(f"sitting {sittings}", {"gestures": made, "left_the_dashboard": dict(watch.count)})
            known |= {record.id: record for record in heard(node)}
    strange = known.keys() - watch.ids
    if strange or signals:
        raise monkey.UnmeantError(f"the daemon heard {strange}, processes got {signals}")
    return {
        "seconds": seconds,
        "seed": seed,
        "gestures": made,
        "sittings": sittings,
        "runs": run.started,
        "left_the_dashboard": dict(watch.count),
        "reached_the_daemon": dict(Counter(f"{one.verb}: {one.stage}" for one in known.values())),
        "somebody_else": dict(others),
    }


@contextmanager
def no_signals(sent: list[object]) -> Iterator[None]:
    """Keep the signals that this process would send to others, instead of sending them."""
    real = signal.pidfd_send_signal
    signal.pidfd_send_signal = lambda *given: sent.append(given)
    try:
        yield
    finally:
        signal.pidfd_send_signal = real


def main() -> None:
    """Play for ten minutes, and report."""
    report("monkey", measure(SECONDS, SEED))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.monkey_live", description="A monkey at the dashboard."
    )
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--seed", type=int, default=SEED)
    return parser.parse_args()


if __name__ == "__main__":
    asked = _options()
    if (asked.seconds, asked.seed) == (SECONDS, SEED):
        main()
    else:  # a shorter game is no result to keep
        print(json.dumps({"benchmark": "monkey", "machine": machine(), **measure(asked.seconds, asked.seed)}))
