"""A head on each frozen encoder, trained by Evergram: version 0, and ways to version 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from evergram import Corpus, EncoderModules, Lineage, Recipe, load_encoder, train, upgrade
from evergram.evaluation import as_dim
from evergram.training import Progress
from reproduction.bc.images.measures import Reading
from reproduction.bc.images.roles import Roles
from reproduction.bc.images.vectors import ImageVectors
from reproduction.bc.methods import EVERGRAM, FIX, KEEP_ALL, NO_TRANS, NON_BC, POST_CLOSED

# The upgrades that are trained; a head that is trained alone also stands for keep-all and non-bc.
TRAINED = (POST_CLOSED, NO_TRANS, EVERGRAM)


@dataclass(frozen=True)
class HeadSettings:
    """Settings of the heads that no recipe has.

    Args:
        dims: D_0 and D_1.
        each: images of its class that each training image is paired with.
    """

    dims: tuple[int, int]
    each: int


def standardised(features: Tensor, fitted: Tensor) -> Tensor:
    """Return features [N, D] centred, and scaled by one number, as the rows `fitted` say."""
    training = features[fitted]
    spread = training.var(0, correction=0).mean().sqrt()
    return (features - training.mean(0)) / spread


def corpus_of(label: Tensor, rows: Tensor, each: int, seed: int) -> Corpus:
    """Return images as queries, and images of the same class, drawn uniformly, as candidates.

    Args:
        label: int64 [N], the classes of all images.
        rows: int64, the images of the corpus.
        each: pairs of each image; one that draws itself has a pair less.
    """
    draw = torch.Generator().manual_seed(seed)
    pairs = []
    for kind in sorted(set(label[rows].tolist())):
        members = rows[label[rows] == kind]
        drawn = torch.randint(len(members), (each, len(members)), generator=draw)
        pairs.append(torch.stack([members.expand_as(drawn), members[drawn]]).flatten(1))
    query, candidate = torch.cat(pairs, dim=1)
    apart = query != candidate
    return Corpus.of(
        {"query": query[apart].numpy(), "candidate": candidate[apart].numpy()}, shared_ids=True
    )


def head_modules(features: Tensor, dim: int) -> EncoderModules:
    """Return a linear head on features [N, D], looked up by an image's number, for both sides."""
    head = nn.Linear(features.shape[1], dim)

    def look_up(ids: Sequence[int]) -> Tensor:
        return features[torch.tensor(list(ids), dtype=torch.int64)]

    return EncoderModules(head, head, look_up, look_up, new_ids=True, batch_size=4096)


def head_readings(
    recipe: Recipe,
    vectors: ImageVectors,
    roles: Roles,
    settings: HeadSettings,
    at: tuple[Path, str, Progress],
) -> Iterator[tuple[str, Reading]]:
    """Yield each method's reading of all images; the first is `FIX`, whose vectors are version 0's.

    Args:
        recipe: of both versions; its upgrade.method is replaced.
        at: an empty folder for lineages, the device's name, and a progress.
    """
    folder, device, progress = at
    corpus = corpus_of(vectors.label, roles.fitted, settings.each, recipe.seed)
    torch.manual_seed(recipe.seed)
    first, second = (
        head_modules(standardised(features, roles.fitted), dim)
        for features, dim in zip((vectors.old, vectors.new), settings.dims, strict=True)
    )
    version_0 = train(
        recipe, corpus, encoder=first, device=device, progress=progress.of("version 0")
    )
    images = list(range(len(vectors.label)))
    for method in TRAINED:
        lineage = Lineage.create(folder / method)
        lineage.publish(version_0)
        artefact = upgrade(
            with_method(recipe, method),
            lineage,
            corpus,
            encoder=second,
            past_encoders={0: first},
            device=device,
            progress=progress.of(method),
            readings=False,
        )
        lineage.publish(artefact)
        old, new = (
            torch.as_tensor(load_encoder(lineage, version, modules).encode(images))
            for version, modules in enumerate((first, second))
        )
        if method == TRAINED[0]:
            yield FIX, Reading(old, old)
            yield KEEP_ALL, Reading(new, old)
            yield NON_BC, Reading(new, as_dim(new, old.shape[1]))
        yield method, Reading(new, torch.as_tensor(lineage.view(0).transform(new)))


def with_method(recipe: Recipe, method: str) -> Recipe:
    """Return a recipe with another upgrade.method and the other keys of [upgrade] at defaults,
    but for `alone`: nothing is trained beside."""
    values = recipe.model_dump(mode="json", exclude={"upgrade"})
    return type(recipe).of({**values, "upgrade": {"method": method, "alone": False}})
