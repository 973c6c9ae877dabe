"""Whether a device multiplies matrices in bfloat16."""

from __future__ import annotations

import logging
from functools import lru_cache
from platform import machine

import torch

log: logging.Logger = logging.getLogger(__name__)


def multiplies_bfloat16(device: str) -> bool:
    """Return whether float32 matrices may be multiplied in bfloat16 on a kind of device, "cpu" or
    "cuda"; on a processor that has no such instructions they stay float32."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if machine().lower() in ("x86_64", "amd64"):
        checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(bool(getattr(torch.cpu, check, bool)()) for check in checks)
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@lru_cache
def warn_without_bfloat16(device: str) -> None:
    """Log a warning, once for a kind of device, if it multiplies nothing in bfloat16."""
    if not multiplies_bfloat16(device):
        log.warning(
            "training.precision = 'bfloat16' has no effect on the softmax over all candidates: "
            "this %s cannot multiply matrices in bfloat16, so they are multiplied in float32.",
            "graphics processor" if device == "cuda" else "processor",
        )
