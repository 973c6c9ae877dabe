"""Train a transform after its model, on batches of pairs, as in the code of [BC]'s authors."""

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
    """The embeddings of a trained, fixed model, [N, D] per side."""

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
    """Train the transform of a version with its recipe's settings; see `fit_over_pairs`."""
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
    """Train the alignment's transform in place with Adam; the model is fixed.

    The result is the transform with the smallest error measured after epoch `after`, or the last
    one if no error was measured.

    Args:
        new: z_k [N, D_k] by side.
        sampler: samples pairs, with negatives if the task needs them.
        epochs: number of epochs; the error is measured every `every` epochs.
        after: only epochs after this one can be selected.
    Returns: the measured errors, see `JointAlignment.error`.
    Source: [BC] §3.2.3, as in its authors' code.
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
