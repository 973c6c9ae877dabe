"""Priors π_ab = ⟨q_a, r_b⟩ that the penalty pulls unobserved scores towards. [G2] App. B.

Recipes' `[prior]` is made of these kinds, each with its settings. Importing this does not import
torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from evergram.errors import DataError, RecipeError
from evergram.kinds import Finite, Kinds, KindSettings, Trait

if TYPE_CHECKING:
    from torch import Tensor

    from evergram.data.corpus import Corpus


class PriorSettings(KindSettings):
    """Settings of a prior π_ab = ⟨q_a, r_b⟩, and how it is made. [G2] App. B."""

    needs = (Trait.PENALTY,)

    @abstractmethod
    def build(
        self, corpus: Corpus, past: Mapping[str, Tensor] | None, seed: int
    ) -> dict[str, Tensor]:
        """Return Q and R, float32 [N, K] of each side; K = 0 is the zero prior.

        Args:
            past: embeddings of the version before, [N, K] of each side; None of version 0.
        Raises: RecipeError: the prior needs a version before, or other settings. DataError: a file
            cannot be used.
        """


class ZeroSettings(PriorSettings):
    """Every score is pulled to 0."""

    kind: Literal["zero"] = "zero"

    def build(
        self, corpus: Corpus, past: Mapping[str, Tensor] | None, seed: int
    ) -> dict[str, Tensor]:
        import torch

        sizes = {"query": len(corpus.queries), "candidate": len(corpus.candidates)}
        return {side: torch.zeros(size, 0) for side, size in sizes.items()}


class ConstantSettings(PriorSettings):
    """Every score is pulled to `value`."""

    kind: Literal["constant"] = "constant"
    value: Finite = 0.0

    def build(
        self, corpus: Corpus, past: Mapping[str, Tensor] | None, seed: int
    ) -> dict[str, Tensor]:
        import torch

        query = torch.full((len(corpus.queries), 1), self.value)
        return {"query": query, "candidate": torch.ones(len(corpus.candidates), 1)}


class FilesSettings(PriorSettings):
    """Inner products of given vectors: files with columns `id` and `vector`, of both sides."""

    kind: Literal["files"] = "files"
    query: str
    candidate: str

    def build(
        self, corpus: Corpus, past: Mapping[str, Tensor] | None, seed: int
    ) -> dict[str, Tensor]:
        from evergram.training.factors import read_vectors

        vectors = {
            "query": read_vectors(Path(self.query), corpus.queries.vocabulary),
            "candidate": read_vectors(Path(self.candidate), corpus.candidates.vocabulary),
        }
        widths = [rows.shape[1] for rows in vectors.values()]
        if widths[0] != widths[1]:
            raise DataError(
                f"prior.query has vectors of {widths[0]} dims and prior.candidate of {widths[1]}; "
                "their inner products are the prior, so they must agree."
            )
        return vectors


class SVDSettings(PriorSettings):
    """The truncated decomposition of the observed matrix, of rank `rank` at most."""

    kind: Literal["svd"] = "svd"
    rank: ClassVar[int] = 32

    def build(
        self, corpus: Corpus, past: Mapping[str, Tensor] | None, seed: int
    ) -> dict[str, Tensor]:
        import torch

        from evergram.training.factors import svd_factors

        sizes = len(corpus.queries), len(corpus.candidates)
        pairs = torch.stack([corpus.column("query"), corpus.column("candidate")])
        pairs = torch.unique(pairs, dim=1)
        observed = torch.sparse_coo_tensor(pairs, torch.ones(pairs.shape[1]), sizes).coalesce()
        return svd_factors(observed, max(1, min(self.rank, min(sizes) - 1)), seed)


class VersionSettings(PriorSettings):
    """The scores of the version before, which are distilled into the new one."""

    kind: Literal["version"] = "version"

    def build(
        self, corpus: Corpus, past: Mapping[str, Tensor] | None, seed: int
    ) -> dict[str, Tensor]:
        if past is None:
            raise RecipeError(
                "prior.kind = 'version' distils the scores of the version before, and version 0 "
                "has none; use it with upgrade."
            )
        return {side: vectors.float() for side, vectors in past.items()}


PRIORS: Kinds[PriorSettings] = Kinds(
    "prior", (ZeroSettings, ConstantSettings, FilesSettings, SVDSettings, VersionSettings)
)
