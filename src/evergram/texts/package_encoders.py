"""Encoders of installed packages: sentence-transformers, model2vec and wordllama."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from evergram.errors import DataError
from evergram.texts.text_encoder import Prompts, TextEncoder, after_prompt, weights_fingerprint

BATCH = 64
# Names that models give to the prompt of a document.
_DOCUMENT = ("document", "passage", "corpus")


class SentenceTransformerEncoder(TextEncoder):
    """A model of sentence-transformers.

    Code from a model's repository is never run (`trust_remote_code` stays off).

    Args:
        place: a folder, or a name that the library finds in its cache or downloads.
        prompts: None takes the model's own "query" and "document" (or "passage") prompts.
    Raises: DataError: there is no such model. ModuleNotFoundError: the library is not installed.
    """

    def __init__(self, place: str, prompts: Prompts | None = None) -> None:
        from sentence_transformers import SentenceTransformer

        # It logs a line for each model that it loads.
        logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
        try:
            self._model = SentenceTransformer(place, trust_remote_code=False)
        except Exception as error:  # transformers, the hub and safetensors have theirs each
            why = " ".join(str(error).split())[:300].rstrip(".")
            what = "folder" if Path(place).exists() else "path or name"
            raise DataError(
                f"The {what} {place!r} is not a model that sentence-transformers can load: {why}."
            ) from error
        if prompts is None:
            own: dict[str, Any] = dict(self._model.prompts or {})
            document = next((str(own[name]) for name in _DOCUMENT if own.get(name)), "")
            prompts = Prompts(own.get("query") or "", document)
        super().__init__(f"sentence-transformers:{place}", prompts, BATCH)

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        # The library knows whether a prompt's tokens count in the mean; "" is no prompt at all.
        vectors: npt.ArrayLike = self._model.encode(
            list(texts), prompt=prompt, batch_size=self.batch, show_progress_bar=False
        )
        return vectors

    def modules(self) -> list[torch.nn.Module]:
        """Return the model's modules, in the order in which they are applied."""
        return list(self._model.children())

    def _fingerprint(self) -> str:
        settings: list[Any] = [
            [type(part).__name__, getattr(part, "get_config_dict", dict)()]
            for part in self._model.children()
        ]
        return weights_fingerprint(self._arrays(), settings, _tokenizer_json(self._model))

    def _arrays(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        for name, tensor in self._model.state_dict().items():
            dense = tensor.detach().cpu()
            # NumPy has no bfloat16.
            bits = dense.view(torch.int16) if dense.dtype == torch.bfloat16 else dense
            yield name, bits.numpy()


def _tokenizer_json(model: Any) -> str:
    """Return the rules of a model's tokenizer; "" of one that cannot write them."""
    tokenizer = getattr(model, "tokenizer", None)
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
    to_str = getattr(fast, "to_str", None)
    return "" if to_str is None else str(to_str())


STATIC_BATCH = 1024
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
            raise DataError(f"{place!r} is not a model that model2vec can load: {why}.") from error
        super().__init__(f"model2vec:{place}", prompts or Prompts(), STATIC_BATCH)

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
        super().__init__(f"wordllama:{dim}", prompts or Prompts(), STATIC_BATCH)

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        vectors: npt.ArrayLike = self._model.embed(after_prompt(texts, prompt), norm=False)
        return vectors

    def _fingerprint(self) -> str:
        table = [("embedding", self._model.embedding)]
        return weights_fingerprint(table, {}, self._model.tokenizer.to_str())
