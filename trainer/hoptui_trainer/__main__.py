"""The `hoptui train` command: `hoptui train ppo --env CartPole-v1 --until-return 475`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import cyclopts

from hoptui_trainer import __version__
from hoptui_trainer.check.command import check
from hoptui_trainer.common.errors import LostRankError, ShardMemoryError, ShortMemoryError, UsageError
from hoptui_trainer.lm.command import lm
from hoptui_trainer.ppo.command import ppo
from hoptui_trainer.slurm.command import slurm
from hoptui_trainer.vision.command import vision

BAD_USAGE = 2
FAILED = 1
INTERRUPTED = 130

app = cyclopts.App(
    name="hoptui train",
    version=__version__,
    help="Training workloads that hoptui can steer.",
    suppress_keyboard_interrupt=False,
)
for command in (ppo, lm, vision, slurm, check):
    app.command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # its name before torch 2.9, still read
        # Before torch is imported, which reads it once: sizes change while a run goes on, and fixed segments
        # fragment.
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except (cyclopts.CycloptsError, UsageError) as error:
        words = sys.argv[1:] if arguments is None else arguments
        unmarked = (
            isinstance(error, cyclopts.UnknownOptionError) and words[0] == "slurm" and "--" not in words
        )
        hint = " The training command follows a --." if unmarked else ""
        print(f"hoptui train: {error}{hint}", file=sys.stderr)
        return BAD_USAGE
    except (LostRankError, ShardMemoryError, ShortMemoryError) as error:
        print(f"hoptui train: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("hoptui train: ended at once", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the lines has gone. Without this, Python would complain once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
