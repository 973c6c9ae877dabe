"""The most bytes of tensors that are alive at once inside a block, seen by torch's dispatcher."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakTensorBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Attributes: bytes: at the most, of tensors that operations inside the block have made and
    that are not freed yet; views are not counted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        passed = tree_leaves((args, kwargs))
        taken = {t.untyped_storage().data_ptr() for t in passed if _is_tensor(t)}
        for tensor in tree_leaves(result):
            if _is_tensor(tensor):
                storage = tensor.untyped_storage()
                place = storage.data_ptr()
                if place and place not in taken and place not in self._alive:
                    self._alive[place] = storage.nbytes()
                    weakref.finalize(storage, self._alive.pop, place, None)
        self.bytes = max(self.bytes, sum(self._alive.values()))
        return result


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
