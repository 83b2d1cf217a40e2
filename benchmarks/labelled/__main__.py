"""Train one labelled load until it is stopped: `python -m benchmarks.labelled NAME DEVICE`.

A load of one rank imports its packages, and begins once a line comes on its standard input.
"""

from __future__ import annotations

import importlib
import os
import sys

import torch
import torch.distributed as dist

import hoptui
from benchmarks.labelled.catalogue import AdapterRun, all_loads


def main() -> None:
    name, device = sys.argv[1:]
    load = all_loads()[name]
    if missing := load.missing():
        sys.exit(f"{name} needs {', '.join(missing)}")
    for package in load.needs:
        importlib.import_module(package)
    if load.ranks == 1:
        sys.stdin.readline()
    if load.ranks > 1 and device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if load.adapter:
        load.loop(AdapterRun(f"labelled-{name}"), device)
        return
    if load.ranks > 1:
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    run = hoptui.connect(f"labelled-{name}")
    load.loop(run, device)
    run.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
