"""Whether `hoptui run` changes what the examples learn: the weights at the end, to the bit.

`python -m benchmarks.example_weights [NAME ...]`. Each script in `examples/` runs twice: with `HOPTUI=off`,
and by `hoptui run` beside a daemon. The weights of all optimizers are hashed on each rank when the script has
ended. Random numbers are seeded before it begins: not every example does so. Examples whose framework is not
installed are left out. The workers of Ray Train are processes of Ray: the function that they run hashes its
weights itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import Bench, bench, report, tell

EXAMPLES = Path(__file__).parents[1] / "examples"
RANKS = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "--standalone")
SCRIPTS = {
    "accelerate_loop": ("accelerate", ()),
    "cleanrl_ppo": ("gymnasium", ()),
    "ddp": ("torch", RANKS),
    "fsdp2": ("torch", RANKS),
    "lightning_trainer": ("lightning", ()),
    "nanogpt": ("torch", ()),
    "plain_loop": ("torch", ()),
    "ray_train": ("ray.train", ()),
    "sb3_ppo": ("stable_baselines3", ()),
    "transformers_trainer": ("transformers", ()),
}
"""What each needs, and how it is started."""
LIMIT_S = 300.0
LONGER = {"fsdp2": ("steps=100", "steps=400")}
"""What is changed in a copy of a script, so that it makes as many steps as the others."""
HASHED = """
import functools, json, os, runpy, sys

def watched():
    import random
    import numpy, torch
    random.seed(0), numpy.random.seed(0), torch.manual_seed(0)
    from torch.optim.optimizer import register_optimizer_step_post_hook
    steps, optimizers = {}, {}
    def stepped(optimizer, *_):
        optimizers[id(optimizer)] = optimizer
        steps[id(optimizer)] = steps.get(id(optimizer), 0) + 1
    register_optimizer_step_post_hook(stepped)
    return steps, optimizers

def write(report, rank, steps, optimizers):
    import hashlib
    import torch
    digest = hashlib.sha256()
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight = weight.to_local() if hasattr(weight, "to_local") else weight
                digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    with open(f"{report}.{rank}", "w") as file:
        json.dump({"steps": sum(steps.values()), "weights": digest.hexdigest()}, file)

def on_workers(report):
    # The workers of Ray get their function by value: it takes the hash along.
    from ray.train.torch import TorchTrainer
    init = TorchTrainer.__init__
    def hashed(loop):
        @functools.wraps(loop)
        def train(*arguments):
            import ray.train
            found = watched()
            loop(*arguments)
            write(report, ray.train.get_context().get_world_rank(), *found)
        return train
    def init_hashed(self, loop, *rest, **options):
        init(self, hashed(loop), *rest, **options)
    TorchTrainer.__init__ = init_hashed

report, script = sys.argv[1:3]
sys.argv = sys.argv[2:]
if os.path.basename(script) == "ray_train.py":
    on_workers(report)
    runpy.run_path(script, run_name="__main__")
else:
    found = watched()
    runpy.run_path(script, run_name="__main__")
    write(report, os.environ.get("RANK", 0), *found)
"""


def weights(node: Bench, name: str, folder: Path, *, with_hoptui: bool) -> list[dict[str, Any]]:
    """Return the number of steps and the hash of the weights, of each rank."""
    folder.mkdir()
    wrapper = folder / "hashed.py"
    wrapper.write_text(HASHED)
    _, launcher = SCRIPTS[name]
    script = folder / f"{name}.py"
    script.write_text(_longer(name, (EXAMPLES / script.name).read_text()))
    command = [sys.executable, *launcher, str(wrapper), str(folder / "found"), str(script)]
    if with_hoptui:
        command = [sys.executable, "-m", "hoptui", "run", "--", *command]
    more = {
        "OMP_NUM_THREADS": "1",
        "RAY_raylet_start_wait_time_s": "200",
        "PYTHONPATH": os.pathsep.join(sys.path),
    } | ({} if with_hoptui else {"HOPTUI": "off"})
    done = subprocess.run(
        command,
        cwd=folder,
        env=node.environment | more,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("found.*"))]
    if not found or not all(rank["steps"] for rank in found):
        raise RuntimeError(f"{name} made no step that was seen: {found}")
    return found


def _longer(name: str, source: str) -> str:
    old, new = LONGER.get(name, ("", ""))
    if old not in source:
        raise ValueError(f"{name} has no {old!r}: change LONGER")
    return source.replace(old, new) if old else source


def main(words: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="examples (default: all whose framework is installed)")
    given = parser.parse_args([] if words is None else words)
    figures: dict[str, Any] = {}
    with bench() as node, tempfile.TemporaryDirectory() as place, node.session():
        for name in given.names or SCRIPTS:
            if subprocess.run(
                [sys.executable, "-c", f"import {SCRIPTS[name][0]}"], capture_output=True, check=False
            ).returncode:
                figures[name] = f"{SCRIPTS[name][0]} is not installed"
                continue
            plain = weights(node, name, Path(place) / f"{name}-plain", with_hoptui=False)
            shown = weights(node, name, Path(place) / f"{name}-shown", with_hoptui=True)
            figures[name] = {"ranks": len(plain), "steps": plain[0]["steps"], "equal": plain == shown}
            tell(name, figures[name])
    report("example_weights", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
