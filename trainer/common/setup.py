"""Setting a run up: what fails there is told by the option that is to blame."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.common.errors import UsageError
from trainer.common.memory import is_out_of_memory


@contextmanager
def explained(resume: Path | None, sizes: str) -> Iterator[None]:
    """In here a run is set up.

    Args:
        resume: the checkpoint that it goes on from.
        sizes: the options that decide how much memory a step takes.

    Raises:
        UsageError: memory is too short, or the checkpoint is not one of this trainer's.
    """
    try:
        yield
    except MemoryError as error:
        raise UsageError(f"{sizes}: {error}") from None
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise UsageError("--preset: the model is too large for the memory that there is") from None
        if resume is None:
            raise
        raise UsageError(f"--resume {resume}: it does not fit this trainer ({error!r})") from None
