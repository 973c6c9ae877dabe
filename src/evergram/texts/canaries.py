"""Texts whose vectors show whether an encoder is still the one that it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from evergram.texts.text_encoder import Vectors

# Of several lengths, scripts and subjects, so that another tokenizer, another pooling and another
# model show; none is anybody's data.
TEXTS = (
    "The river flows from the mountains to the sea.",
    "query: how do I change my password?",
    "def mean(values):\n    return sum(values) / len(values)",
    "Die Sitzung beginnt um neun Uhr im großen Saal.",
    "今日は雨が降っています。",
    "Gene expression in mice after 12 weeks of treatment (n = 24)",
    "3.14159",
    "A contract is binding once both parties have signed it; oral amendments are void.",
)
# ‖now − then‖ over ‖then‖ of a canary, at most. Hosted models and other machines round by up to
# about 0.01; 0.03 is a cosine of 0.9995, and another model is far beyond it.
SAME = 0.03


def distance(now: Vectors, then: Vectors) -> float:
    """Return the largest of the `distances`; infinite if the dims differ."""
    return float("inf") if now.shape != then.shape else float(distances(now, then).max())


def distances(now: Vectors, then: Vectors) -> npt.NDArray[np.floating]:
    """Return ‖now − then‖ / ‖then‖ of each text, [n], of vectors [n, D]."""
    length = np.linalg.norm(then, axis=1)
    apart = np.linalg.norm(now - then, axis=1)
    # A zero vector, which a static model gives to a text of unknown tokens, must stay zero.
    far = np.where(length > 0, apart / np.where(length > 0, length, 1), np.where(apart > 0, 2, 0))
    return cast("npt.NDArray[np.floating]", far)


def letters(texts: Sequence[str]) -> Vectors:
    """Return how often each letter of a to z occurs in each text, [n, 26]: the smallest encoder
    there is, for examples."""
    rows = [[text.lower().count(chr(97 + i)) for i in range(26)] for text in texts]
    return np.array(rows, dtype=np.float32)
