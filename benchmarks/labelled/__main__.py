"""Train one labelled load until it is stopped: `python -m benchmarks.labelled NAME DEVICE`."""

from __future__ import annotations

import sys

import torch.distributed as dist

import hoptui
from benchmarks.labelled.catalogue import all_loads


def main() -> None:
    name, device = sys.argv[1:]
    load = all_loads()[name]
    if load.ranks > 1:
        dist.init_process_group("gloo")
    run = hoptui.connect(f"labelled-{name}")
    load.loop(run, device)
    run.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
