"""The behaviour that both graph encoders have."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from tests.support.graph_corpora import (
    PAIRS,
    Pairs,
    graph_corpus,
    random_encoder,
)
from torch import Tensor

from evergram.encoders.features import SIDES
from evergram.encoders.graph.graph_encoder import GraphEncoder
from evergram.encoders.graph.graphsage import GraphSage
from evergram.encoders.graph.lightgcn import LightGCN
from evergram.errors import TrainingError


@pytest.mark.parametrize("kind", [GraphSage, LightGCN])
class TestGraphEncoder:
    def test_an_old_encoder_reads_a_grown_graph(self, kind: type[GraphEncoder]) -> None:
        """A new query and a new candidate with edges get vectors of their own; whoever is farther
        than the layers reach stays where it was, and who met the new ones moves."""
        far: Pairs = [(7, 7), (7, 8), (8, 8)]
        data, grown = (
            graph_corpus([*PAIRS, *far]),
            graph_corpus([*PAIRS, *far, (9, 0), (9, 2), (1, 9)]),
        )
        encoder = random_encoder(kind, data, layers=2)
        old, new = encoder.embed_all(data), encoder.embed_all(grown)
        for side, entities in (("query", grown.queries), ("candidate", grown.candidates)):
            place = {key: i for i, key in enumerate(entities.vocabulary.keys.to_pylist())}
            before = data.queries if side == "query" else data.candidates
            was = {key: i for i, key in enumerate(before.vocabulary.keys.to_pylist())}
            for key in (7, 8):
                torch.testing.assert_close(new[side][place[key]], old[side][was[key]])
            assert not torch.allclose(new[side][place[1]], old[side][was[1]])
            assert bool(encoder.known(side, encoder.read(grown)).all())
            others = torch.cat([new[side][: place[9]], new[side][place[9] + 1 :]])
            assert new[side][place[9]].abs().sum() > 0
            assert (others - new[side][place[9]]).abs().sum(1).min() > 1e-6

    def test_the_order_of_a_corpus_does_not_matter(self, kind: type[GraphEncoder]) -> None:
        data, other = graph_corpus(), graph_corpus(PAIRS[::-1])
        encoder = random_encoder(kind, data)
        first, second = encoder.embed_all(data), encoder.embed_all(other)
        rows = other.queries.vocabulary.rows(data.queries.vocabulary.keys)
        torch.testing.assert_close(second["query"][rows], first["query"])

    def test_one_pass_serves_all_rows(
        self, kind: type[GraphEncoder], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = graph_corpus()
        encoder = random_encoder(kind, data)
        passes: list[Any] = []
        real = kind.propagate

        def counted(*arguments: Any) -> Tensor:
            passes.append(arguments)
            return real(*arguments)

        monkeypatch.setattr(kind, "propagate", counted)
        embeddings = encoder(encoder.read(data))
        for side in SIDES:
            embeddings.rows(side, torch.tensor([0, 0, 1]))
            list(embeddings.blocks(side))
        assert len(passes) == 1

    def test_rows_of_unit_norm(self, kind: type[GraphEncoder]) -> None:
        data = graph_corpus()
        for vectors in random_encoder(kind, data, normalize=True).embed_all(data).values():
            torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors)).double())

    def test_without_the_extra_it_says_what_to_install(
        self, kind: type[GraphEncoder], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
        with pytest.raises(TrainingError, match=r"pip install 'evergram\[graph\]'"):
            random_encoder(kind, graph_corpus())
