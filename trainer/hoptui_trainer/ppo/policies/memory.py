"""What a transformer remembers while it acts: the keys and values of its last observations, in static
buffers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch._dynamo import mark_static


class Layer(NamedTuple):
    """The part of a memory that one layer reads and writes."""

    keys: Tensor  # (N, heads, context, d_head)
    values: Tensor  # the same
    slots: Tensor  # (S,) int64: where the keys and values of new observations go


class AttentionCache:
    """A ring of `context` slots for each of N environments, changed in place so that a CUDA graph can hold
    it.

    The observation of position p is in slot p mod context. `keys` and `values` hold for each layer a tensor
    (N, heads, context, d_head) of its own: a compiled function would copy all of one that it changes through
    views. `position` (0-d int64) is that of the next observation; `age` (N,) int64 counts the observations of
    the episode in progress before the newest one.
    """

    def __init__(
        self,
        layers: int,
        num_envs: int,
        heads: int,
        context: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_envs, heads, context, head_size)
        self.context, self.dtype = context, dtype
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self.age = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._slots = torch.arange(context, device=device)
        # Acting is compiled for any number of environments, but for one context: to divide indices by what
        # the compiler does not know made two thirds of the instructions of attention. The keys' size is found
        # equal to that of this.
        mark_static(self._slots, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values."""
        return sum(held.nbytes for held in (*self.keys, *self.values))

    def advance(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """Make room for one more observation, which begins an episode where `first` (N,).

        Returns its slot (1,) and which slots it may look at (N, 1, 1, context): its own, and those of its
        episode.
        """
        self.age.add_(1).masked_fill_(first, 0)
        slot = (self.position % self.context)[None]
        seen = (slot - self._slots) % self.context <= self.age[:, None]
        return slot, seen[:, None, None]

    def restart(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """Begin anew with the observations of `first` (P, N), P below the context, in slots 0 … P − 1.

        Returns those slots (P,) and which slots each may look at (N, 1, P, context).
        """
        count = len(first)
        self.position.fill_(count)
        since = self._slots[:count, None].masked_fill(~first, -1).cummax(0).values  # where its episode began
        if count:
            self.age.copy_(count - 1 - since[-1].clamp(min=0))
        else:
            self.age.zero_()
        order = self._slots[:count]
        earlier = self._slots <= order[:, None]
        same_episode = self._slots >= since.T[..., None]
        return order, (earlier & same_episode)[:, None]

    def layers(self, slots: Tensor, envs: slice | None = None) -> list[Layer]:
        """What each layer of all or some environments holds, for new observations that go to `slots`."""
        held = zip(self.keys, self.values, strict=True)
        if envs is None:
            return [Layer(keys, values, slots) for keys, values in held]
        return [Layer(keys[envs], values[envs], slots) for keys, values in held]
