"""Static encoders of the packages model2vec and wordllama, where these are installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tests.support.real_text_encoders import need

from evergram.errors import DataError
from evergram.texts.addresses import open_text_encoder
from evergram.texts.text_encoder import Prompts


def model2vec_model(folder: Path, shift: float = 0.0) -> str:
    need("model2vec")
    from model2vec import StaticModel
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    vocabulary = {"[UNK]": 0, "[PAD]": 1, "red": 2, "green": 3}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    table = np.arange(12, dtype=np.float32).reshape(4, 3) + shift
    StaticModel(table, tokenizer).save_pretrained(folder)
    return f"model2vec:{folder}"


def test_a_model_of_model2vec_is_read_from_a_folder(tmp_path: Path) -> None:
    encoder = open_text_encoder(model2vec_model(tmp_path / "m"))
    assert_allclose(encoder.encode(["red green", "red"]), np.array([[7.5, 8.5, 9.5], [6, 7, 8]]))
    again = open_text_encoder(model2vec_model(tmp_path / "again"))
    other = open_text_encoder(model2vec_model(tmp_path / "other", 0.5))
    assert encoder.fingerprint == again.fingerprint != other.fingerprint
    with pytest.raises(DataError, match="is no model that model2vec can load"):
        open_text_encoder(f"model2vec:{tmp_path / 'absent'}")


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
    with pytest.raises(DataError, match="names no dim that the package has"):
        open_text_encoder("wordllama:100")
