from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainer.common.errors import UsageError
from trainer.common.setup import explained


def test_a_set_up_that_fails_names_the_option_to_blame() -> None:
    with pytest.raises(UsageError, match=r"^--micro-batch: not one fits"), explained(None, "--micro-batch"):
        raise MemoryError("not one fits")
    foreign = pytest.raises(UsageError, match=r"^--resume old\.ckpt: it does not fit this trainer")
    with foreign, explained(Path("old.ckpt"), "--micro-batch"):
        raise KeyError("weights")
    with pytest.raises(KeyError), explained(None, "--micro-batch"):
        raise KeyError("a fault of ours")
    with (
        pytest.raises(UsageError, match=r"^--preset: the model is too large"),
        explained(None, "--micro-batch"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")
