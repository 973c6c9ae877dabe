"""The kinds of priors, with the settings of each; recipes' `[prior]` is made of them.

Importing this does not import torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from evergram.errors import RecipeError
from evergram.kinds import Finite, KindSettings, Positive, table_of

if TYPE_CHECKING:
    from torch import Tensor

    from evergram.data.corpus import Corpus


class PriorSettings(KindSettings):
    """Settings of a prior π_ab = ⟨q_a, r_b⟩, and how it is made. [G2] App. B."""

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

    kind = "zero"

    def build(
        self, corpus: Corpus, past: Mapping[str, Tensor] | None, seed: int
    ) -> dict[str, Tensor]:
        from evergram.training.priors.factors import constant_prior

        return constant_prior(corpus, None)


class ConstantSettings(PriorSettings):
    """Every score is pulled to `value`."""

    kind = "constant"
    value: Finite = 0.0

    def build(
        self, corpus: Corpus, past: Mapping[str, Tensor] | None, seed: int
    ) -> dict[str, Tensor]:
        from evergram.training.priors.factors import constant_prior

        return constant_prior(corpus, self.value)


class FilesSettings(PriorSettings):
    """Inner products of given vectors: files with columns `id` and `vector`, of both sides."""

    kind = "files"
    query: str | None = None
    candidate: str | None = None

    @model_validator(mode="after")
    def _needs_files(self) -> Self:
        if self.query is None or self.candidate is None:
            raise ValueError("prior.kind = 'files' needs prior.query and prior.candidate")
        return self

    def build(
        self, corpus: Corpus, past: Mapping[str, Tensor] | None, seed: int
    ) -> dict[str, Tensor]:
        from evergram.training.priors.factors import prior_of_files

        return prior_of_files(corpus, Path(str(self.query)), Path(str(self.candidate)))


class SVDSettings(PriorSettings):
    """The truncated decomposition of the observed matrix, of rank `rank`."""

    kind = "svd"
    rank: Positive = 32

    def build(
        self, corpus: Corpus, past: Mapping[str, Tensor] | None, seed: int
    ) -> dict[str, Tensor]:
        from evergram.training.priors.factors import svd_prior

        return svd_prior(corpus, self.rank, seed)


class VersionSettings(PriorSettings):
    """The scores of the version before, which are distilled into the new one."""

    kind = "version"

    def build(
        self, corpus: Corpus, past: Mapping[str, Tensor] | None, seed: int
    ) -> dict[str, Tensor]:
        if past is None:
            raise RecipeError(
                "prior.kind = 'version' distils the scores of the version before, and version 0 "
                "has none; use it with upgrade."
            )
        return {side: vectors.float() for side, vectors in past.items()}


PRIORS: dict[str, type[PriorSettings]] = table_of(
    ZeroSettings, ConstantSettings, FilesSettings, SVDSettings, VersionSettings
)
