"""The command line that all loops share, and what they print at their end."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import NamedTuple

import torch


class Script(NamedTuple):
    """Where a loop trains, and its name in hoptui."""

    device: str
    name: str


def options(main: Callable[[Script], None]) -> None:
    """Read the command line, train, and say that the loop was stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--name", default="loop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    if given.threads:
        torch.set_num_threads(given.threads)
    main(Script(given.device, given.name))
    print(json.dumps({"ending": "stopped"}), flush=True)
