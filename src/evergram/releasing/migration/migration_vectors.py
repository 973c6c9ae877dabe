"""Texts and queries, each as an old and as a new vector, in one order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from evergram.compatibility.degenerate import SHORTEST
from evergram.errors import DataError
from evergram.releasing.files.first_version import text_encoder_of
from evergram.vector_files.base import EmbeddingFile
from evergram.vector_files.pairing import Pairing

# Lengths that differ by a larger share move hits, if they are not divided by.
SAME_LENGTH = 0.01


@dataclass(frozen=True)
class MigrationVectors:
    """The same texts and queries by two models.

    Args:
        texts, queries: their ids, as text, in the order of the rows; `of` has them from the last to
            the first, whatever order files have, so that hits of equal score are as trec_eval ranks
            them.
        old, new: of the texts, float32 [N, D_old] and [N, D_new], of their own lengths.
        old_queries, new_queries: [Q, D_old] and [Q, D_new].
    """

    texts: list[str]
    queries: list[str]
    old: Tensor
    new: Tensor
    old_queries: Tensor
    new_queries: Tensor

    @property
    def files(self) -> dict[str, Tensor]:
        """The vectors of each of the four files, by what they are of."""
        return {
            "old texts": self.old,
            "new texts": self.new,
            "old queries": self.old_queries,
            "new queries": self.new_queries,
        }

    @property
    def zeros(self) -> dict[str, int]:
        """How many vectors of each file are zeros."""
        return {
            name: int((rows.norm(dim=1, dtype=torch.float64) < SHORTEST).sum())
            for name, rows in self.files.items()
        }

    @property
    def lengths_differ(self) -> bool:
        """Whether texts have vectors of different lengths by one model: searches by inner product
        and by cosine then have different hits."""
        return _differ_in_length(self.old) or _differ_in_length(self.new)

    def of_queries(self, rows: Tensor) -> MigrationVectors:
        """Return the same texts with some of the queries."""
        return replace(
            self,
            queries=[self.queries[row] for row in rows.tolist()],
            old_queries=self.old_queries[rows],
            new_queries=self.new_queries[rows],
        )

    @classmethod
    def of(
        cls,
        texts: tuple[EmbeddingFile, EmbeddingFile],
        queries: tuple[EmbeddingFile, EmbeddingFile],
    ) -> MigrationVectors:
        """Read four files into memory.

        Args:
            texts, queries: the old file and the new one.
        Raises: DataError: one of two files alone has ids, or they differ in their ids: to search a
            part of the texts is easier than to search all, so that a comparison needs the same ones
            on both sides. Or a query has another number of dims than the texts of its model, or
            its file was made by another encoder; or as of `Pairing` and `EmbeddingFile.blocks`.
        """
        text_ids, old, new = _paired(*texts)
        query_ids, old_queries, new_queries = _paired(*queries)
        for file, vectors, of, of_file in (
            (queries[0], old_queries, old, texts[0]),
            (queries[1], new_queries, new, texts[1]),
        ):
            if vectors.shape[1] != of.shape[1]:
                raise DataError(
                    f"{file.path} has {vectors.shape[1]} dims, and the texts of its model have "
                    f"{of.shape[1]}; give queries and texts of one model."
                )
            _check_encoders(of_file, file)
        return cls(text_ids, query_ids, old, new, old_queries, new_queries)


def unit(vectors: Tensor) -> Tensor:
    """Return vectors [N, D] of length 1; one of zeros stays as it is."""
    return torch.nn.functional.normalize(vectors, dim=1)


def _differ_in_length(vectors: Tensor) -> bool:
    lengths = vectors.norm(dim=1)
    return bool((lengths - lengths.mean()).abs().max() > SAME_LENGTH * lengths.mean())


def _paired(old: EmbeddingFile, new: EmbeddingFile) -> tuple[list[str], Tensor, Tensor]:
    if old.has_ids != new.has_ids:
        with_ids, without = (old, new) if old.has_ids else (new, old)
        raise DataError(
            f"{with_ids.path} has ids and {without.path} has none; write the ids of the second "
            f"into {without.path.with_suffix('.ids.txt').name} beside it, one a line."
        )
    pairing = Pairing(old, new)
    if pairing.only_old or pairing.only_new:
        raise DataError(
            f"{pairing.only_old} ids are in {old.path} alone and {pairing.only_new} in {new.path} "
            "alone; give files with the same ids, such as those of a sample of all texts."
        )
    blocks = zip(*pairing.blocks(), strict=True)
    sides = [torch.cat([block.float() for block in side]) for side in blocks]
    ids = [str(id_) for id_ in pairing.ids.to_pylist()]
    last_first = sorted(range(len(ids)), key=ids.__getitem__, reverse=True)
    return [ids[row] for row in last_first], sides[0][last_first], sides[1][last_first]


def _check_encoders(texts: EmbeddingFile, queries: EmbeddingFile) -> None:
    """Raises: DataError: both files say which encoder made them, and it is not the same."""
    of_texts, of_queries = text_encoder_of(texts), text_encoder_of(queries)
    if of_texts is None or of_queries is None:
        return
    if (why := of_texts.record_mismatch(of_queries)) is not None:
        raise DataError(
            f"{queries.path} was not encoded by the encoder of {texts.path}: {why}; give queries "
            "and texts of one model."
        )
