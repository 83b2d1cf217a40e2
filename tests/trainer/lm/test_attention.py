from __future__ import annotations

import torch

from trainer.lm.attention import choose_attention, fastest


def test_the_fastest_is_the_one_with_the_least_time() -> None:
    assert fastest({"cudnn": 0.7, "flash": 1.1, "efficient": None}) == "cudnn"
    assert fastest({"cudnn": None, "flash": 1.1, "efficient": 0.9}) == "efficient"
    assert fastest({"cudnn": None}) is None


def test_a_cpu_has_no_choice() -> None:
    assert choose_attention((1, 1, 8, 8), torch.float32, torch.device("cpu")) == ""
