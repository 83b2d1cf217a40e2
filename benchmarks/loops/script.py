"""The command line that all loops share, the group of ranks, and what loops print at their end."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist


class Script(NamedTuple):
    """Where a loop trains, its name in hoptui, its seed, and the folder of its data ("" if it needs none).

    `workload` is what a loop trains that has several.
    """

    device: str
    name: str
    seed: int = 0
    data: str = ""
    workload: str = ""


def options(main: Callable[[Script], None]) -> None:
    """Read the command line, train, and say that the loop was stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--name", default="loop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--data", default="", help="a folder of images in one folder for each class")
    parser.add_argument("--workload", default="", help="of a loop that trains several")
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    if given.threads:
        torch.set_num_threads(given.threads)
    main(Script(given.device, given.name, given.seed, given.data, given.workload))
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps({"ending": "stopped"}), flush=True)


@contextmanager
def ranks(script: Script) -> Iterator[tuple[int, int, torch.device]]:
    """Join the ranks that torchrun has started. Yield the rank, the number of ranks, and the device."""
    dist.init_process_group("nccl" if script.device == "cuda" else "gloo")
    device = torch.device(script.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    yield dist.get_rank(), dist.get_world_size(), device
    dist.destroy_process_group()
