"""The bytes of tensors that operations make inside a block, seen by torch's dispatcher."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Views are not counted.

    Attributes:
        largest: bytes of the largest tensor that was made.
        peak: the most bytes of tensors made inside the block that were alive at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest = self.peak = 0
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        taken = {s.data_ptr() for s in _storages((args, kwargs))}
        for storage in _storages(result):
            place = storage.data_ptr()
            if place and place not in taken:
                self.largest = max(self.largest, storage.nbytes())
                if place not in self._alive:
                    self._alive[place] = storage.nbytes()
                    weakref.finalize(storage, self._alive.pop, place, None)
        self.peak = max(self.peak, sum(self._alive.values()))
        return result


def _storages(values: Any) -> list[torch.UntypedStorage]:
    tensors = [t for t in tree_leaves(values) if isinstance(t, Tensor)]
    return [t.untyped_storage() for t in tensors if t.layout == torch.strided]
