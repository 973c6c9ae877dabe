"""Encoders of the packages sentence-transformers, model2vec and wordllama, where installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tests.support.optional import need

from evergram.errors import DataError
from evergram.texts.addresses import open_text_encoder
from evergram.texts.text_encoder import Prompts

WORDS = ["[UNK]", "red", "green", "ask", "tell"]
TABLE = np.arange(20, dtype=np.float32).reshape(5, 4) / 10


def static_model(
    folder: Path, table: np.ndarray = TABLE, prompts: dict[str, str] | None = None, kind: str = ""
) -> str:
    """Save a table of the vectors of words as a model; return its address."""
    kind = kind or "sentence-transformers"
    need(kind.replace("-", "_"))
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = {word: row for row, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    if kind == "model2vec":
        from model2vec import StaticModel

        tokenizer.add_special_tokens(["[PAD]"])
        StaticModel(np.concatenate([table, table[:1]]), tokenizer).save_pretrained(folder)
    else:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import StaticEmbedding

        module = StaticEmbedding(tokenizer, embedding_weights=table)
        model = SentenceTransformer(modules=[module], device="cpu", prompts=prompts or {})
        model.save(str(folder))
    return f"{kind}:{folder}"


@pytest.mark.parametrize("kind", ["sentence-transformers", "model2vec"])
def test_a_model_of_a_folder_has_the_means_of_words_and_a_fingerprint_of_its_weights(
    kind: str, tmp_path: Path
) -> None:
    one = open_text_encoder(static_model(tmp_path / "one", kind=kind))
    vectors = one.encode(["red green", "red", "red red green"])
    expected = np.stack([(TABLE[1] + TABLE[2]) / 2, TABLE[1], (2 * TABLE[1] + TABLE[2]) / 3])
    assert_allclose(vectors, expected, rtol=1e-5)
    assert one.dim == 4
    copy = open_text_encoder(static_model(tmp_path / "copy", kind=kind))
    other = open_text_encoder(static_model(tmp_path / "other", TABLE + 1e-3, kind=kind))
    assert one.fingerprint == copy.fingerprint != other.fingerprint
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "absent"):
        with pytest.raises(DataError, match=folder):
            open_text_encoder(f"{kind}:{tmp_path / folder}")


def test_the_models_own_prompts_are_taken_unless_others_are_named(tmp_path: Path) -> None:
    address = static_model(tmp_path / "m", prompts={"query": "ask ", "passage": "tell "})
    own = open_text_encoder(address)
    assert own.prompts == Prompts("ask ", "tell ")
    assert_allclose(own.encode(["red"], "query")[0], (TABLE[3] + TABLE[1]) / 2, rtol=1e-5)
    assert_allclose(own.encode(["red"])[0], (TABLE[4] + TABLE[1]) / 2, rtol=1e-5)
    none = open_text_encoder(address, Prompts())
    assert_allclose(none.encode(["red"], "query")[0], TABLE[1], rtol=1e-5)


@pytest.mark.long
def test_wordllama_is_the_model_in_its_package() -> None:
    need("wordllama")
    encoder = open_text_encoder("wordllama:")
    texts = ["a river in the mountains", "a stream that runs downhill", "the price of shares"]
    vectors = encoder.encode(texts)
    assert vectors.shape == (3, 256)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert unit[0] @ unit[1] > unit[0] @ unit[2]
    small = open_text_encoder("wordllama:64", Prompts("", ""))
    assert_allclose(small.encode(texts), vectors[:, :64], rtol=1e-4, atol=1e-5)
    assert small.fingerprint != encoder.fingerprint


def test_a_dim_that_wordllama_has_not_is_refused() -> None:
    with pytest.raises(DataError, match="wordllama:100"):
        open_text_encoder("wordllama:100")
