"""Real encoders: a pinned OpenAI client through two changes, and a replaced model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.optional import need
from tests.support.real_text_encoders import minilm, real_sentences, static_minilm
from tests.support.text_clients import through_changes

from evergram.releasing.align import AlignSettings
from evergram.texts.text_encoder import Vectors

# Share of the texts whose vector of version 0 is the nearest to what the client gets later, of 60:
# chance is 1/60. 1,500 sentences are few for a map between 256 and 384 dims.
LEAST_KEPT = 0.4


@pytest.mark.long
@pytest.mark.parametrize("oldest", ["static", "wordllama"])
def test_a_pinned_client_runs_unchanged_through_two_changes_of_real_encoders(
    oldest: str, tmp_path: Path
) -> None:
    if oldest == "wordllama":
        need("wordllama")
    static = static_minilm(tmp_path / "static")
    addresses = ["wordllama:", static, minilm()] if oldest == "wordllama" else None
    if addresses is None:
        addresses = [static, minilm(), "python:tests.support.real_text_encoders:half_minilm"]
    sentences = real_sentences(1560)
    corpus, queries = sentences[:1500], sentences[1500:]
    settings = AlignSettings("low_rank", rank=48, allow_small_overlap=True)
    before, *later = through_changes(tmp_path, addresses, corpus, queries, settings)
    for answer in later:
        cosines = unit(answer) @ unit(before).T
        assert (cosines.argmax(1) == np.arange(len(queries))).mean() >= LEAST_KEPT


def unit(vectors: Vectors) -> Vectors:
    unit_rows: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit_rows
