"""The contents of one version before it is published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.compatibility.certificate import StepError
from evergram.compatibility.transforms import Transform
from evergram.data.corpus import Vocabulary
from evergram.data.pair_hash import TrainedPairs
from evergram.errors import DataError, ShapeError
from evergram.gramian.new_queries.query_form import QueryForm
from evergram.ids import first_missing, missing_sentence
from evergram.texts.record import TextEncoderRecord

Block = tuple[pa.Array, Tensor]
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
# Ids and vectors as they may be given, see `Artefact`.
AnyBlock = tuple[Any, Any]


def checked_block(ids: Any, vectors: Any, side: str, dim: int) -> Block:
    """Return ids as int64 or string [N], and vectors as a tensor of floats [N, D].

    Args:
        ids: an Arrow or NumPy array or a list, of integers or texts.
        vectors: a torch tensor or a NumPy array.
        side: to call them in an error.
        dim: D.
    Raises: DataError: an id is missing or of another type, or the vectors are no floats.
        ShapeError: they are not [N, D].
    """
    keys = _ids(ids, side)
    if (row := first_missing(keys)) >= 0:
        where = f"Row {row} of the {side} embeddings"
        raise DataError(missing_sentence(where, "its id", keys[row].as_py()))
    rows = torch.from_numpy(_native(vectors)) if _is_floats(vectors) else vectors
    dense = isinstance(rows, Tensor) and rows.layout == torch.strided
    if not dense or not rows.is_floating_point():
        kind = getattr(rows, "dtype", type(rows).__name__)
        raise DataError(
            f"The {side} embeddings are of {kind}; they must be floats in a dense torch tensor or "
            "a NumPy array."
        )
    if rows.ndim != 2 or rows.shape != (len(keys), dim):
        raise ShapeError(
            f"The {side} embeddings are {list(rows.shape)} for {len(keys)} ids; with dim {dim} "
            f"they must be [{len(keys)}, {dim}]."
        )
    return keys, rows.detach()


def checked_blocks(blocks: Iterable[tuple[Any, Any]], side: str, dim: int) -> Iterator[Block]:
    """Yield each block as `checked_block` returns it. The ids of a side are held in memory.

    Raises: as it; DataError: also if an id occurs twice, if blocks have ids of different types, or
        if there is no row.
    """
    seen: list[pa.Array] = []
    for ids, vectors in blocks:
        keys, rows = checked_block(ids, vectors, side, dim)
        if seen and keys.type != seen[0].type:
            raise DataError(
                f"The {side} ids are {seen[0].type} in one block and {keys.type} in another; give "
                "all as integers or all as texts."
            )
        seen.append(keys)
        yield keys, rows
    everything = pa.chunked_array(seen) if seen else pa.chunked_array([], pa.int64())
    if not len(everything):
        raise DataError(f"There are no {side} embeddings to publish; a side has at least one row.")
    if pc.count_distinct(everything).as_py() < len(everything):
        counts = pc.value_counts(everything)
        twice = counts.filter(pc.greater(counts.field("counts"), 1))[0].as_py()
        raise DataError(
            f"The {side} id {twice['values']!r} occurs {twice['counts']} times; an id has one "
            "vector a version."
        )


def _is_floats(vectors: Any) -> bool:
    return isinstance(vectors, np.ndarray) and vectors.dtype.kind == "f" and vectors.itemsize <= 8


def _native(vectors: np.ndarray) -> np.ndarray:
    """Return an array as torch takes it: of native byte order, and not read backwards."""
    return np.ascontiguousarray(vectors, vectors.dtype.newbyteorder("="))


def _ids(ids: Any, side: str) -> pa.Array:
    try:
        keys = ids if isinstance(ids, pa.Array | pa.ChunkedArray) else pa.array(ids)
        keys = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
        keys = keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys
        if pa.types.is_integer(keys.type):
            return keys.cast(pa.int64())
        if any(is_kind(keys.type) for is_kind in _TEXTS):
            return keys.cast(pa.string())
        kind = str(keys.type)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        kind = " ".join(str(error).split()).rstrip(".")
    raise DataError(
        f"The {side} ids cannot be published ({kind}); they must be integers below 2⁶³ or texts, "
        "all of one type."
    )


@dataclass(frozen=True)
class EncoderParts:
    """An encoder, taken apart.

    Args:
        kind, options: how to build it.
        state: its tensors.
        inputs, vocabularies: its schema.
    """

    kind: str
    options: Mapping[str, Any]
    state: Mapping[str, Tensor]
    inputs: Mapping[str, Mapping[str, str]]
    vocabularies: Mapping[str, Vocabulary]


@dataclass(frozen=True, repr=False)
class Artefact:
    """A version that is ready to be published.

    Args:
        dim: D.
        embeddings: for each side, ids [N], each once, and vectors [N, D] of floats; or a function
            that returns them block by block, for more than memory holds. A model has the sides
            "query" and "candidate". Ids are integers or texts, in an Arrow or NumPy array or a
            list; vectors are a torch tensor or a NumPy array.
        transform: B_k; None for version 0 alone.
        metrics: what was measured, as JSON.
        recipe: the recipe, as JSON.
        encoder: None if the embeddings came from a file.
        canaries: for each side, ids and vectors [n, D] of a few objects that are kept for ever.
        error: the error of B_k, for the certificate.
        trained: the salt of the hashes of the model's training pairs, and these; None if no model
            was trained.
        follows: fingerprint of the version that `transform` leads to; None for version 0 alone.
        query_form: how new queries get a vector from their candidates'; None if they cannot.
        text_encoder: the encoder that made the embeddings from texts; None if it is not known.
        unknown: for each side, how many of the embeddings are zeros because the model does not know
            the object; as many zeros more than usual are published.
    """

    dim: int
    embeddings: Mapping[str, AnyBlock | Callable[[], Iterable[AnyBlock]]]
    transform: Transform | None
    metrics: Mapping[str, Any]
    recipe: Mapping[str, Any]
    encoder: EncoderParts | None = None
    canaries: Mapping[str, Block] = field(default_factory=dict)
    error: StepError | None = None
    trained: tuple[str, TrainedPairs] | None = None
    follows: str | None = None
    query_form: QueryForm | None = None
    text_encoder: TextEncoderRecord | None = None
    unknown: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        model = "no encoder" if self.encoder is None else self.encoder.kind
        back = "no transform" if self.transform is None else f"{self.transform.kind} transform"
        return f"Artefact(dim {self.dim}, {model}, {back}, sides {', '.join(self.embeddings)})"

    def blocks(self, side: str) -> Iterator[Block]:
        """Yield the ids and vectors of a side, in one block or in several.

        Raises: DataError, ShapeError: they cannot be published.
        """
        source = self.embeddings[side]
        return checked_blocks(source() if callable(source) else [source], side, self.dim)

    def block(self, side: str) -> Block:
        """Return all ids [N] and vectors [N, D] of a side at once.

        Raises: DataError, ShapeError: they cannot be published.
        """
        blocks = list(self.blocks(side))
        if len(blocks) == 1:
            return blocks[0]
        return pa.concat_arrays([ids for ids, _ in blocks]), torch.cat([v for _, v in blocks])


def are_metrics(value: Any) -> bool:
    """Say whether a value has the form of a version's metrics: `metrics.model`, if there is one, is
    a number or null by name, and each of `probes`, if there are any, names a consumer."""
    if not isinstance(value, Mapping):
        return False
    tables, probes = value.get("metrics", {}), value.get("probes", [])
    model = tables.get("model", {}) if isinstance(tables, Mapping) else None
    if not isinstance(model, Mapping) or not isinstance(probes, list):
        return False
    numbers = all(x is None or isinstance(x, int | float) for x in model.values())
    named = all(isinstance(p, Mapping) and isinstance(p.get("consumer"), str) for p in probes)
    return numbers and named
