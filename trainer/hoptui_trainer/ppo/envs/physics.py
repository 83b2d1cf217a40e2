"""What an environment is: its spaces, how an episode begins, and one step of it. Without time limits and
resets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor


@dataclass(frozen=True)
class Discrete:
    """Actions 0 … `choices` − 1, as int64 of shape (N,)."""

    choices: int


@dataclass(frozen=True)
class Continuous:
    """Actions of `size` float32 numbers, shape (N, size); the environment clips them to its own limits."""

    size: int


class Task(Protocol):
    """What is known of an environment, whichever way it is simulated."""

    @property
    def id(self) -> str:
        """Its name on the command line."""
        ...

    @property
    def observation_size(self) -> int:
        """Numbers in what the policy sees."""
        ...

    @property
    def actions(self) -> Discrete | Continuous:
        """What the policy chooses from."""
        ...

    @property
    def max_episode_steps(self) -> int:
        """Steps after which an episode is cut off."""
        ...

    @property
    def cut_spacing(self) -> int:
        """Two cut-offs of one environment are at least so many steps apart; 1 is a promise of nothing."""
        ...


class Transition(NamedTuple):
    """What one step of the physics leads to, before any reset."""

    state: Tensor  # (N, S)
    reward: Tensor  # (N,)
    terminated: Tensor  # (N,) bool


class Physics(Task, Protocol):
    """One environment, for any number of copies; it holds no state, and makes no tensor from numbers of the
    host."""

    state_size: int

    def initial(self, unit: Tensor) -> Tensor:
        """First states (N, S) from uniform numbers (N, S) in [0, 1)."""
        ...

    def observe(self, state: Tensor) -> Tensor:
        """What the policy sees of a state: (N, S) → (N, observation_size)."""
        ...

    def move(self, state: Tensor, action: Tensor) -> Transition:
        """One step from `state` (N, S)."""
        ...
