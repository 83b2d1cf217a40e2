"""What torch computes in a block of code: its operations, and the memory of their results."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Knows the `names` of the operations in here, and the storages that they make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()
        self._storages: dict[int, tuple[Any, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                weak: Any = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._storages[storage.data_ptr()] = weak, storage.nbytes()
        return found

    def kept_bytes(self) -> int:
        """The bytes of the storages that are still in memory."""
        return sum(size for storage, size in self._storages.values() if not storage.expired())
