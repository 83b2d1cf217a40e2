"""Two processes that are the ranks of several trainings in turn, and a viewer that steers them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hoptui.protocol import messages
from tests.conftest import RawViewer, TestNode, until

LIMIT_S = 200.0


LEFT_BEHIND = ("ACCELERATE_", "FSDP_")
"""Arguments of a Trainer in this process set such variables, for a number format for example."""
ON_CPU = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}


def free_port() -> str:
    """A port of this machine that nothing listens at, and that the kernel gives to nobody by itself."""
    while True:
        port = random.randint(10_000, 30_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("localhost", port))
            return str(port)


class RankPair:
    """Two ranks that carry out a list of trainings: `python -m module folder trainings`.

    They meet through gloo, on the CPU. With `gpus` each has a GPU, and they meet through NCCL.
    """

    def __init__(
        self,
        node: TestNode,
        folder: Path,
        module: str,
        trainings: Sequence[Mapping[str, Any]],
        ranks: int = 2,
        gpus: bool = False,
    ) -> None:
        self.folder = folder
        self.viewer: RawViewer = node.viewer()
        port = free_port()
        self._children = []
        for rank in range(ranks):
            environment = {k: v for k, v in node.environment.items() if not k.startswith(LEFT_BEHIND)} | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": port,
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
            }
            environment |= {} if gpus else ON_CPU
            with (folder / f"output.{rank}").open("w") as output:
                self._children.append(
                    subprocess.Popen(
                        [sys.executable, "-m", module, str(folder), json.dumps(trainings)],
                        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )

    def steer(self, name: str, *commands: tuple[str, Any]) -> dict[str, list[messages.CommandRecord]]:
        """Give a training these commands one after the other, and let it go on to its end.

        A command is a knob and its value, or a verb and its value. Returns the outcomes by knob or verb.
        """
        outcomes: dict[str, list[messages.CommandRecord]] = {}
        try:
            run = self._when(lambda: self._began(name), f"the first iteration of {name}")
            for what, value in commands:
                sent = self._send(run, what, value)
                outcomes.setdefault(what, []).append(self.viewer.outcome(sent, LIMIT_S))
        finally:
            (self.folder / f"{name}.gate").touch()
        return outcomes

    def results(self, name: str) -> list[dict[str, Any]]:
        """Wait for the end of a training, and return what the ranks found."""
        files = [self.folder / f"{name}.{rank}.json" for rank in range(len(self._children))]
        self._when(lambda: all(file.exists() for file in files), f"the end of {name}")
        return [json.loads(file.read_text()) for file in files]

    def close(self) -> None:
        """End the ranks."""
        for child in self._children:
            child.kill()
            child.wait(10.0)

    def _send(self, run: messages.RunState, what: str, value: Any) -> str:
        if what in ("checkpoint", "stop", "pause", "resume", "profile"):
            return self.viewer.command(run, what, **({"value": value} if value is not None else {}))
        return self.viewer.command(run, knob=what, value=value)

    def _began(self, name: str) -> messages.RunState | None:
        found = next((run for run in self.viewer.state().runs if run.name == name), None)
        vital = self.viewer.fetch().vitals.get(found.run) if found is not None else None
        return found if vital is not None and (vital.step or 0) > 0 else None

    def _when(self, check: Any, what: str) -> Any:
        def checked() -> Any:
            if found := check():
                return found
            dead = [child.poll() for child in self._children]
            assert not any(dead), f"{what}: a rank ended with {dead}: {self._output()}"
            return None

        return until(checked, seconds=LIMIT_S, what=what)

    def _output(self) -> str:
        files = [self.folder / f"output.{rank}" for rank in range(len(self._children))]
        return "\n".join(file.read_text()[-3000:] for file in files)


@contextmanager
def rank_pair(
    node: TestNode,
    folder: Path,
    module: str,
    trainings: Sequence[Mapping[str, Any]],
    ranks: int = 2,
    gpus: bool = False,
) -> Iterator[RankPair]:
    """Two ranks that are gone afterwards."""
    pair = RankPair(node, folder, module, trainings, ranks, gpus)
    try:
        yield pair
    finally:
        pair.close()
