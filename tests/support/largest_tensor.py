"""The largest tensor that any operation makes inside a block, seen by torch's dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Attributes: bytes: of the largest tensor that was made; views are not counted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        taken = {t.untyped_storage().data_ptr() for t in tree_leaves(args) if _is_tensor(t)}
        for tensor in tree_leaves(result):
            if _is_tensor(tensor) and tensor.untyped_storage().data_ptr() not in taken:
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return result


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided
