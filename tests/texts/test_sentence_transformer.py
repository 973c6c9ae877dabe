"""Models of sentence-transformers: a `StaticEmbedding` of a few words, made here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tests.support.optional import need

from evergram.errors import DataError
from evergram.texts.addresses import open_text_encoder
from evergram.texts.text_encoder import Prompts

need("sentence_transformers")

VOCABULARY = {"[UNK]": 0, "red": 1, "green": 2, "ask": 3, "tell": 4}
TABLE = np.arange(20, dtype=np.float32).reshape(5, 4) / 10


def static_model(
    folder: Path, table: np.ndarray = TABLE, prompts: dict[str, str] | None = None
) -> str:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    module = StaticEmbedding(tokenizer, embedding_weights=table)
    model = SentenceTransformer(modules=[module], device="cpu", prompts=prompts or {})
    model.save(str(folder))
    return f"sentence-transformers:{folder}"


def test_vectors_are_the_means_of_the_words(tmp_path: Path) -> None:
    encoder = open_text_encoder(static_model(tmp_path / "m"))
    vectors = encoder.encode(["red green", "red", "red red green"])
    expected = np.stack([(TABLE[1] + TABLE[2]) / 2, TABLE[1], (2 * TABLE[1] + TABLE[2]) / 3])
    assert_allclose(vectors, expected, rtol=1e-5)
    assert encoder.dim == 4


def test_the_models_own_prompts_are_taken_unless_others_are_named(tmp_path: Path) -> None:
    address = static_model(tmp_path / "m", prompts={"query": "ask ", "passage": "tell "})
    own = open_text_encoder(address)
    assert own.prompts == Prompts("ask ", "tell ")
    assert_allclose(own.encode(["red"], "query")[0], (TABLE[3] + TABLE[1]) / 2, rtol=1e-5)
    assert_allclose(own.encode(["red"])[0], (TABLE[4] + TABLE[1]) / 2, rtol=1e-5)
    none = open_text_encoder(address, Prompts())
    assert_allclose(none.encode(["red"], "query")[0], TABLE[1], rtol=1e-5)


def test_the_fingerprint_is_of_the_weights_wherever_they_lie(tmp_path: Path) -> None:
    one = open_text_encoder(static_model(tmp_path / "one"))
    one.encode(["red", "red green red"])
    copy = open_text_encoder(static_model(tmp_path / "copy"))
    other = open_text_encoder(static_model(tmp_path / "other", TABLE + 1e-3))
    assert one.fingerprint == copy.fingerprint
    assert one.fingerprint != other.fingerprint


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="is no model that sentence-transformers can load"):
        open_text_encoder(f"sentence-transformers:{tmp_path / 'empty'}")
