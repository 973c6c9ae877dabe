"""Embeddings of all entities by several processes, which are simulated in threads."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.shared_training import BASE, own_modules, shared_corpus
from tests.support.thread_processes import Threads, in_threads
from torch import Tensor

from evergram.collectives import ALONE
from evergram.encoders.encoder import Encoder
from evergram.encoders.factory import publish_by_popularity
from evergram.encoders.features import SIDES
from evergram.training.build import Companions, prepare
from evergram.training.distributed import shared_embedding
from evergram.training.distributed.shared_embedding import embed_together, has_layers
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")


def encoder_of(kind: str) -> Encoder:
    corpus = shared_corpus()
    shape = [] if kind == "module" else ["model.dim=[4]"]
    shape += ["model.hidden=[6]"] if kind == "two_tower" else []
    recipe = Recipe.of({"data": {"kind": "synthetic"}}, [*BASE, f"model.kind={kind}", *shape])
    own = own_modules(corpus) if kind == "module" else None
    if own is not None:
        own.encoder_modules = replace(own.encoder_modules, batch_size=5)
    settings = FitSettings.of(recipe, corpus, 0)
    encoder = prepare(settings, corpus, CPU, Companions(own=own))[0].encoder
    publish_by_popularity(encoder, 0.5, corpus)
    return encoder


@pytest.mark.parametrize("kind", ["two_tower", "module"])
@pytest.mark.parametrize("size", [2, 4])
def test_each_process_embeds_a_share_and_has_all(
    kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_embedding, "ROWS", 5)
    corpus = shared_corpus()
    alone = encoder_of(kind)
    vectors = alone.embed_all(corpus)
    copies = [deepcopy(alone) for _ in range(size)]

    def embedded(process: Threads) -> tuple[dict[str, Tensor], int]:
        encoder, rows = copies[process.rank], 0
        embed: Any = encoder.embed

        def counted(side: str, inputs: object) -> Tensor:
            nonlocal rows
            made: Tensor = embed(side, inputs)
            rows += len(made)
            return made

        encoder.embed = counted  # type: ignore[assignment]
        encoder.train()
        result = embed_together(encoder, corpus, process)
        assert encoder.training
        return result, rows

    results, _ = in_threads(size, embedded)
    for shared, rows in results:
        for side in SIDES:
            torch.testing.assert_close(shared[side], vectors[side], rtol=0, atol=1e-6)
            assert torch.equal(shared[side], results[0][0][side])
        assert rows < sum(map(len, vectors.values())) / size + 2 * 5
    assert sum(rows for _, rows in results) == sum(map(len, vectors.values()))


@pytest.mark.parametrize("kind", ["factorization", "lightgcn"])
def test_tables_and_graphs_are_embedded_whole(kind: str) -> None:
    corpus = shared_corpus()
    encoder = encoder_of(kind)
    vectors = encoder.embed_all(corpus)
    copies = [deepcopy(encoder) for _ in range(2)]
    results, processes = in_threads(2, lambda p: embed_together(copies[p.rank], corpus, p))
    for shared in results:
        assert all(torch.equal(shared[side], vectors[side]) for side in SIDES)
    assert not processes[0].kinds
    alone = embed_together(encoder, corpus, ALONE)
    assert all(torch.equal(alone[side], vectors[side]) for side in SIDES)


def test_what_has_layers() -> None:
    kinds = ("factorization", "two_tower", "module")
    assert [has_layers(encoder_of(kind)) for kind in kinds] == [False, True, True]
