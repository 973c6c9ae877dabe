"""Static encoders: the mean of a table's rows, one row a token. They need no GPU, and no torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy.typing as npt

from evergram.errors import DataError
from evergram.texts.text_encoder import Prompts, TextEncoder, after_prompt
from evergram.texts.weights import weights_fingerprint

BATCH = 1024
# The dims that the table in the package wordllama is cut to.
WORDLLAMA_DIMS = (64, 128, 256)


class Model2VecEncoder(TextEncoder):
    """A static model of the package model2vec, by path or name.

    Raises: DataError: there is no such model. ModuleNotFoundError: model2vec is not installed.
    """

    def __init__(self, place: str, prompts: Prompts | None = None) -> None:
        from model2vec import StaticModel

        try:
            self._model = StaticModel.from_pretrained(place)
        except Exception as error:  # the hub and safetensors have theirs each
            why = " ".join(str(error).split())[:300].rstrip(".")
            raise DataError(f"{place!r} is no model that model2vec can load: {why}.") from error
        super().__init__(f"model2vec:{place}", prompts or Prompts(), BATCH)

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        vectors: npt.ArrayLike = self._model.encode(
            after_prompt(texts, prompt), show_progress_bar=False, use_multiprocessing=False
        )
        return vectors

    def _fingerprint(self) -> str:
        model = self._model
        arrays = {"embedding": model.embedding, "weights": model.weights}
        arrays["mapping"] = model.token_mapping
        known = [(name, array) for name, array in arrays.items() if array is not None]
        settings = {"normalize": model.normalize, "max_length": model.max_length}
        return weights_fingerprint(known, settings, model.tokenizer.to_str())


class WordLlamaEncoder(TextEncoder):
    """The static model whose weights are in the package wordllama; nothing is downloaded.

    Args:
        dim: 64, 128 or 256; "" is 256.
    Raises: DataError: another dim. ModuleNotFoundError: wordllama is not installed.
    """

    def __init__(self, dim: str = "", prompts: Prompts | None = None) -> None:
        dims = {str(d): d for d in WORDLLAMA_DIMS} | {"": WORDLLAMA_DIMS[-1]}
        if dim not in dims:
            raise DataError(
                f"wordllama:{dim} names no dim that the package has; give wordllama: or one of "
                f"{', '.join(f'wordllama:{d}' for d in WORDLLAMA_DIMS)}."
            )
        root = logging.getLogger()
        handlers = list(root.handlers)
        import wordllama

        # Its import configures the logging of the whole program.
        root.handlers = handlers
        self._model = wordllama.WordLlama.load(
            # It looks for its own tokenizer in the cache alone.
            cache_dir=Path(wordllama.__file__).parent,
            dim=WORDLLAMA_DIMS[-1],
            trunc_dim=dims[dim],
            disable_download=True,
        )
        super().__init__(f"wordllama:{dim}", prompts or Prompts(), BATCH)

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        vectors: npt.ArrayLike = self._model.embed(after_prompt(texts, prompt), norm=False)
        return vectors

    def _fingerprint(self) -> str:
        table = [("embedding", self._model.embedding)]
        return weights_fingerprint(table, {}, self._model.tokenizer.to_str())
