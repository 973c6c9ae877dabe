"""The fingerprint of an encoder whose weights are at hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

# Settings of a tokenizer that its last call left behind.
_PASSING = ("padding", "truncation")


def weights_fingerprint(
    arrays: Iterable[tuple[str, npt.NDArray[Any]]], settings: object, tokenizer: str
) -> str:
    """Return "weights:" and the SHA-256 of all that a local model's vectors depend on.

    Args:
        arrays: names and tensors; bfloat16 ones as the integers of the same bits.
        settings: as JSON, such as the pooling and the longest input.
        tokenizer: as JSON text, of `tokenizers.Tokenizer.to_str`.
    """
    digest = hashlib.sha256()
    for name, array in sorted(arrays, key=lambda pair: pair[0]):
        dense = np.ascontiguousarray(array)
        digest.update(f"{name} {dense.dtype.str} {dense.shape}\n".encode())
        digest.update(dense.data if dense.size else b"")
    rules = json.loads(tokenizer) if tokenizer else {}
    kept = {key: value for key, value in rules.items() if key not in _PASSING}
    digest.update(json.dumps([settings, kept], sort_keys=True, default=str).encode())
    return f"weights:{digest.hexdigest()}"
