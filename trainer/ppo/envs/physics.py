"""What an environment is: its spaces, how an episode begins, and one step of it. Without time limits and resets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Discrete:
    """Actions 0 … `choices` − 1, as int64 of shape (N,)."""

    choices: int


@dataclass(frozen=True)
class Continuous:
    """Actions of `size` float32 numbers, shape (N, size); the environment clips them to its own limits."""

    size: int


class Move(NamedTuple):
    """What one step of the physics leads to, before any reset."""

    state: Tensor  # (N, S)
    reward: Tensor  # (N,)
    terminated: Tensor  # (N,) bool


class Physics(Protocol):
    """One environment, for any number of copies; it holds no state."""

    id: str
    observation_size: int
    max_episode_steps: int

    @property
    def actions(self) -> Discrete | Continuous:
        """What `move` takes."""
        ...

    def initial(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` first states (count, S) on the generator's device."""
        ...

    def observe(self, state: Tensor) -> Tensor:
        """What the policy sees of a state: (N, S) → (N, observation_size)."""
        ...

    def move(self, state: Tensor, action: Tensor) -> Move:
        """One step from `state` (N, S)."""
        ...
