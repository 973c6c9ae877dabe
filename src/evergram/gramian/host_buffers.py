"""Buffers that stay in the host's memory, so that a step can branch on them without waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class HostBuffers(nn.Module):
    """A module some of whose buffers stay where they are when it moves to a device.

    A step counter on a GPU would stop the processor at each `if`, until the GPU has done all that
    was asked of it before.

    Attributes:
        on_host: names of these buffers; numbers of no dims, which a device takes as arguments.
    """

    on_host: tuple[str, ...] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        kept = {name: getattr(self, name) for name in self.on_host}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in kept.items():
            setattr(self, name, buffer)
        return self
