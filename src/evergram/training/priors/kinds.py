"""The kinds of priors, with the settings of each; recipes' `[prior]` is made of them.

Importing this does not import torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from evergram.errors import RecipeError
from evergram.kinds import Finite, Kinds, KindSettings, Positive
from evergram.requirements import Trait

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
        from evergram.training.priors.factors import constant_prior

        return constant_prior(corpus, None)


class ConstantSettings(PriorSettings):
    """Every score is pulled to `value`."""

    kind: Literal["constant"] = "constant"
    value: Finite = 0.0

    def build(
        self, corpus: Corpus, past: Mapping[str, Tensor] | None, seed: int
    ) -> dict[str, Tensor]:
        from evergram.training.priors.factors import constant_prior

        return constant_prior(corpus, self.value)


class FilesSettings(PriorSettings):
    """Inner products of given vectors: files with columns `id` and `vector`, of both sides."""

    kind: Literal["files"] = "files"
    query: str
    candidate: str

    def build(
        self, corpus: Corpus, past: Mapping[str, Tensor] | None, seed: int
    ) -> dict[str, Tensor]:
        from evergram.training.priors.factors import prior_of_files

        return prior_of_files(corpus, Path(self.query), Path(self.candidate))


class SVDSettings(PriorSettings):
    """The truncated decomposition of the observed matrix, of rank `rank`."""

    kind: Literal["svd"] = "svd"
    rank: Positive = 32

    def build(
        self, corpus: Corpus, past: Mapping[str, Tensor] | None, seed: int
    ) -> dict[str, Tensor]:
        from evergram.training.priors.factors import svd_prior

        return svd_prior(corpus, self.rank, seed)


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
