from __future__ import annotations

import torch

from hoptui_trainer.common.attention import choose_attention, fastest, slowest
from hoptui_trainer.common.ranks import ALONE


def test_the_fastest_is_the_one_with_the_least_time() -> None:
    assert fastest({"cudnn": 0.7, "flash": 1.1, "efficient": None}) == "cudnn"
    assert fastest({"cudnn": None, "flash": 1.1, "efficient": 0.9}) == "efficient"
    assert fastest({"cudnn": None}) is None


def test_ranks_go_by_the_time_of_the_slowest_and_leave_what_does_not_work_on_all() -> None:
    first = {"cudnn": 0.7, "flash": 1.1, "efficient": 2.0}
    assert slowest([first]) == first
    second = {"cudnn": 1.3, "flash": 1.0, "efficient": None}
    assert slowest([first, second]) == {"cudnn": 1.3, "flash": 1.1, "efficient": None}


def test_a_cpu_has_no_choice() -> None:
    assert choose_attention((1, 1, 8, 8), torch.float32, torch.device("cpu"), ALONE, causal=True) == ""
