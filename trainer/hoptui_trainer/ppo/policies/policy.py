"""What every policy can be asked, and in which shapes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from hoptui_trainer.common.counter_rng import Counter
from hoptui_trainer.ppo.envs.physics import Task
from hoptui_trainer.ppo.policies.heads import Categorical, Gaussian, make_head
from hoptui_trainer.ppo.policies.memory import AttentionCache


class Batch(NamedTuple):
    """U pieces of a rollout: L steps each, and S = context − 1 + L observations to read them with.

    `first` marks the observations that begin an episode; nothing before one says anything about it.
    """

    obs: Tensor  # (U, S, O)
    first: Tensor  # (U, S) bool
    action: Tensor  # (U, L) int64 or (U, L, A)
    log_prob: Tensor  # (U, L)
    advantage: Tensor  # (U, L)
    target: Tensor  # (U, L): what the value should have been


class Choice(NamedTuple):
    """What a policy does now, and what it expects of it."""

    action: Tensor  # (N,) int64 or (N, A)
    log_prob: Tensor  # (N,)
    value: Tensor  # (N,)


class Judgement(NamedTuple):
    """What a policy says of actions taken: all of shape (U, L)."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


class Policy(nn.Module):
    """Maps observations to actions and values.

    A policy sees the last `context` observations of the episode in progress. While it acts, a memory holds
    what it has worked out of the earlier ones: static buffers, changed in place. A policy with a context of 1
    has none. Log-probabilities, entropies and values are float32, also under autocast.
    """

    context: int
    head: Categorical | Gaussian

    def __init__(self, task: Task, context: int) -> None:
        super().__init__()
        self.context = context
        self.head = make_head(task.actions)

    def noise(self, key: int, index: Tensor, counter: Counter) -> Tensor:
        """The random numbers with which environments `index` (N,) choose their actions at step `counter`."""
        return self.head.noise(key, index, counter)

    def memory(self, num_envs: int, before: AttentionCache | None = None) -> AttentionCache | None:
        """A memory for N environments in the dtype that the policy computes in here: `before` if it is one,
        or a new one.

        A new one is empty: of use where episodes begin, and to be refilled.
        """
        raise NotImplementedError

    def refill(self, memory: AttentionCache | None, obs: Tensor, first: Tensor) -> None:
        """Let the memory hold observations (context − 1, N, O) and `first` (context − 1, N), and nothing
        else."""
        raise NotImplementedError

    def act(self, obs: Tensor, first: Tensor, memory: AttentionCache | None, noise: Tensor | None) -> Choice:
        """Choose for observations (N, O) and remember them; without noise, the most probable actions.

        Where `first` (N,) is set the memory's earlier observations are of another episode, and are not looked
        at.
        """
        raise NotImplementedError

    def judge(self, batch: Batch) -> Judgement:
        """Judge the batch's actions, with gradients: as if its first S − L observations had refilled a
        memory."""
        raise NotImplementedError

    def value(self, obs: Tensor, first: Tensor) -> Tensor:
        """The expected discounted return (B,) after the last of observations (B, S, O), `first` (B, S)."""
        raise NotImplementedError
