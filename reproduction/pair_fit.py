"""A transform that is trained after its model over batches of pairs, as [BC]'s authors do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.sampling import ExampleSampler
from evergram.encoders.encoder import Embeddings
from evergram.training.build import FitSettings, build_sampler
from evergram.training.joint import JointAlignment
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import PosthocUpgrade


class FixedEmbeddings(Embeddings):
    """The embeddings of a model that is not trained any more, [N, D] of each side."""

    def __init__(self, vectors: Mapping[str, Tensor]) -> None:
        self.vectors = vectors

    def rows(self, side: str, ids: Tensor) -> Tensor:
        return self.vectors[side][ids]

    def blocks(self, side: str, batch_size: int = 65_536) -> Iterator[Tensor]:
        yield from torch.split(self.vectors[side], batch_size)

    def whole(self, side: str) -> Tensor | None:
        return self.vectors[side]


def fit_transform(
    alignment: JointAlignment,
    new: Mapping[str, Tensor],
    recipe: Recipe,
    corpus: Corpus,
    version: int,
) -> list[float]:
    """Train the transform of a version as its recipe says; see `fit_over_pairs`."""
    assert isinstance(recipe.upgrade, PosthocUpgrade)
    chosen, settings = recipe.upgrade.transform_training, FitSettings.of(recipe, corpus, version)
    return fit_over_pairs(
        alignment,
        new,
        build_sampler(settings, corpus),
        epochs=chosen.epochs,
        every=settings.training.evaluate_every,
        after=chosen.select_after,
    )


def fit_over_pairs(
    alignment: JointAlignment,
    new: Mapping[str, Tensor],
    sampler: ExampleSampler,
    *,
    epochs: int,
    every: int = 10,
    after: int = 0,
) -> list[float]:
    """Train the alignment's transform in place by Adam, with the model fixed.

    Keeps the transform that had the smallest error after `after`, or the last one if none was
    measured then.

    Args:
        new: of each side, z_k [N, D_k].
        sampler: of the pairs, with negatives if the task has them.
        epochs: of the sampler; `every` so many the error is measured.
        after: the transform with the smallest error after this epoch is kept.
    Returns: the errors that were measured, see `JointAlignment.error`.
    Source: [BC] §3.2.3, as its authors' code has it.
    """
    transform = alignment.transform
    optimizer = torch.optim.Adam(transform.parameters(), lr=alignment.rate or 1e-3)
    embeddings, errors = FixedEmbeddings(new), []
    best, kept = float("inf"), None
    for epoch in range(1, epochs + 1):
        for batch in sampler.epoch(epoch - 1):
            query, candidate = new["query"][batch.query], new["candidate"][batch.candidate]
            optimizer.zero_grad()
            alignment(query, candidate, batch, embeddings).backward()
            optimizer.step()
        if epoch % every:
            continue
        errors.append(alignment.error(new))
        if epoch > after and errors[-1] < best:
            best = errors[-1]
            kept = {name: value.clone() for name, value in transform.state_dict().items()}
    if kept is not None:
        transform.load_state_dict(kept)
    return errors
