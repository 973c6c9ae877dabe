"""Graph encoders against their definitions, one node after another or by dense matrices."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import SIDES, Encoder, Scene, Schema, build_encoder
from evergram.encoders.graph_encoders import (
    GraphEncoder,
    GraphSage,
    LightGCN,
    adjacency,
    degrees,
    neighbour_balanced,
    neighbour_mean,
    neighbour_sum,
)
from evergram.encoders.mean_of_candidates import MeanOfCandidates

Pairs = list[tuple[int, int]]


PAIRS: Pairs = [(0, 0), (0, 1), (1, 1), (1, 2), (1, 1), (2, 0), (2, 2), (2, 3), (3, 3), (0, 4)]


def graph_corpus(pairs: Pairs = PAIRS, features: bool = True) -> Corpus:
    """Genres of every candidate, and brands of some."""
    names = sorted({c for _, c in pairs})
    table = pa.table(
        {
            "id": names,
            "genres": [[str(i % 2), "all"] if i % 3 else [str(i % 2)] for i in names],
            "brand": pa.array([None if i == 2 else f"b{i % 3}" for i in names]),
        }
    )
    return Corpus.of(
        pa.table({"query": [q for q, _ in pairs], "candidate": [c for _, c in pairs]}),
        candidate_features=table if features else None,
    )


def random_encoder(kind: type[GraphEncoder], data: Corpus, dim: int = 3, **options: Any) -> Encoder:
    """An encoder in float64 whose parameters are all random, as after training."""
    draw = torch.Generator().manual_seed(0)
    schema = Schema.of(data, features=True)
    encoder: GraphEncoder = kind(schema, dim, generator=draw, **options).double()  # type: ignore[call-arg]
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(generator=draw)
    return encoder


def dense_adjacency(data: Corpus, *, repeats: bool = False) -> Tensor:
    """The adjacency as a matrix of zeros and ones, or of how often pairs repeat, [N, N]."""
    queries = len(data.queries)
    size = queries + len(data.candidates)
    edges = torch.zeros(size, size, dtype=torch.float64)
    for q, c in zip(data.column("query").tolist(), data.column("candidate").tolist(), strict=True):
        times = edges[q, queries + c] + 1 if repeats else 1
        edges[q, queries + c] = edges[queries + c, q] = times
    return edges


def feature_means(encoder: Encoder, data: Corpus) -> list[Tensor]:
    """The sum of the mean rows of each candidate's features, looked up by their keys."""
    tables = {k: v.detach() for k, v in encoder.named_parameters() if "tables" in k}
    means: list[Tensor] = []
    for i in range(len(data.candidates)):
        total = torch.zeros(tables["start.tables.feature/genres"].shape[1], dtype=torch.float64)
        for name, column in data.candidates.features.items():
            keys = column.indices[column.offsets[i] : column.offsets[i + 1]].tolist()
            words = [column.vocabulary.keys[k] for k in keys]
            rows = [
                tables[f"start.tables.feature/{name}"][r]
                for r in encoder.schema.vocabularies[f"feature.{name}"]
                .rows(pa.array(words, column.vocabulary.keys.type))
                .tolist()
                if r >= 0
            ]
            if rows:
                total = total + torch.stack(rows).mean(0)
        means.append(total)
    return means


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


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=30),
    st.booleans(),
)
def test_sums_over_neighbours(pairs: Pairs, repeats: bool) -> None:
    """Over distinct ones, or each as often as it was met."""
    data = graph_corpus(pairs)
    matrix = adjacency(data, repeats=repeats)
    expected = dense_adjacency(data, repeats=repeats)
    assert torch.equal(matrix @ torch.eye(len(expected)), expected.float())
    degree = expected.sum(1)
    assert torch.equal(degrees(matrix).double(), degree)
    nodes = torch.randn(len(expected), 2, dtype=torch.float64)
    torch.testing.assert_close(neighbour_sum(matrix, nodes), expected @ nodes)
    torch.testing.assert_close(neighbour_mean(matrix, nodes), expected @ nodes / degree[:, None])
    root = degree.rsqrt()
    balanced = root[:, None] * expected * root
    torch.testing.assert_close(neighbour_balanced(matrix, nodes), balanced @ nodes)


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("combine", [neighbour_sum, neighbour_mean, neighbour_balanced])
def test_the_gradients_are_those_of_the_sums(combine: Any, repeats: bool) -> None:
    matrix = adjacency(graph_corpus(), repeats=repeats)
    nodes = torch.randn(len(matrix), 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: combine(matrix, x), nodes)


def slow_sage(encoder: Encoder, data: Corpus, *, training: bool, repeats: bool = False) -> Tensor:
    """One node after another, its neighbours from a set, or a list with repeats. [BC] §5."""
    state = {name: value.detach() for name, value in encoder.state_dict().items()}
    queries = len(data.queries)
    nodes = [state["start.shared.query"]] * queries + feature_means(encoder, data)
    met = zip(data.column("query").tolist(), data.column("candidate").tolist(), strict=True)
    pairs = list(met) if repeats else set(met)
    near: list[list[int]] = [[] for _ in nodes]
    for q, c in sorted(pairs):
        near[q].append(queries + c)
        near[queries + c].append(q)
    depth = sum(1 for name in state if name.endswith("lin_l.weight"))
    for k in range(depth):
        left, right = (state[f"convolutions.{k}.lin_{s}.weight"] for s in "lr")
        raw = []
        for i, own in enumerate(nodes):
            mean = torch.zeros_like(own)
            for j in near[i]:
                mean = mean + nodes[j] / len(near[i])
            raw.append(left @ mean + state[f"convolutions.{k}.lin_l.bias"] + right @ own)
        if training:
            centre = sum(raw, torch.zeros_like(raw[0])) / len(raw)
            spread = sum(((r - centre) ** 2 for r in raw), torch.zeros_like(raw[0])) / len(raw)
        else:
            centre, spread = state[f"norms.{k}.running_mean"], state[f"norms.{k}.running_var"]
        nodes = [
            state[f"norms.{k}.weight"] * (r - centre) / (spread + 1e-5).sqrt()
            + state[f"norms.{k}.bias"]
            for r in raw
        ]
        if k < depth - 1:
            nodes = [n.clamp(min=0) for n in nodes]
    return torch.stack(nodes)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"layers": 1}, {"layers": 3, "width": 5}, {"repeats": True}]
)
def test_graphsage_is_its_definition(training: bool, options: dict[str, Any]) -> None:
    data = graph_corpus()
    encoder = random_encoder(GraphSage, data, **options)
    for name, buffer in encoder.named_buffers():
        if name.endswith(("mean", "var")):
            buffer.uniform_(0.5, 2)
    encoder.train(training)
    expected = slow_sage(encoder, data, training=training, repeats=options.get("repeats", False))
    embeddings = encoder(encoder.read(data))
    nodes = torch.cat([torch.cat(list(embeddings.blocks(side))) for side in SIDES])
    torch.testing.assert_close(nodes, expected, rtol=1e-10, atol=1e-10)


def test_embeddings_start_with_the_deviation_of_scale() -> None:
    data = graph_corpus([(q, (3 * q + k) % 11) for q in range(40) for k in range(4)])
    draw = torch.Generator().manual_seed(0)
    encoder = GraphSage(Schema.of(data, features=True), 8, generator=draw, ids=True, scale=0.2)
    embeddings = encoder(encoder.read(data))
    nodes = torch.cat([torch.cat(list(embeddings.blocks(side))) for side in SIDES])
    torch.testing.assert_close(
        nodes.std(0, unbiased=False), torch.full((8,), 0.2), rtol=0.05, atol=0
    )


@pytest.mark.parametrize("layers", [1, 3])
def test_lightgcn_is_its_definition(layers: int) -> None:
    data = graph_corpus()
    encoder = random_encoder(LightGCN, data, layers=layers)
    state = encoder.state_dict()
    start = torch.cat(
        [
            state["start.tables.query/id"],
            state["start.tables.candidate/id"] + torch.stack(feature_means(encoder, data)),
        ]
    )
    edges = dense_adjacency(data)
    root = edges.sum(1).rsqrt()
    balanced = root[:, None] * edges * root
    powers = [torch.linalg.matrix_power(balanced, k) for k in range(layers + 1)]
    expected = torch.stack([p @ start for p in powers]).mean(0)
    vectors = encoder.embed_all(data)
    torch.testing.assert_close(torch.cat([vectors[s] for s in SIDES]), expected)


MET = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=25)


def corpus_of(pairs: Pairs) -> Corpus:
    query, candidate = zip(*pairs, strict=True)
    return Corpus.of(pa.table({"query": query, "candidate": candidate}))


def encoder_of(data: Corpus, **options: Any) -> Encoder:
    draw = torch.Generator().manual_seed(0)
    schema = Schema.of(data, features=False)
    encoder = build_encoder("mean_of_candidates", {"dim": 3, **options}, schema, draw).double()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(generator=draw)
    return encoder


def table_of(encoder: Encoder) -> dict[int, Tensor]:
    """The row of each candidate by its id, normalised if the encoder normalises."""
    rows: Tensor = encoder.get_parameter("candidate.weight")
    if encoder.normalize:
        rows = functional.normalize(rows)
    keys = encoder.schema.ids("candidate").keys.to_pylist()
    return dict(zip(keys, rows, strict=False))


def mean_of(encoder: Encoder, candidates: set[int]) -> Tensor:
    table = table_of(encoder)
    rows = [table[b] for b in sorted(candidates) if b in table]
    total = torch.zeros(3, dtype=torch.float64)
    for row in rows:
        total = total + row / len(rows)
    return functional.normalize(total, dim=0) if encoder.normalize else total


def pairs_in(data: Corpus) -> Pairs:
    """The pairs by id, in the corpus's order."""
    sides = (data.queries, "query"), (data.candidates, "candidate")
    keys = [
        [side.vocabulary.keys[row].as_py() for row in data.column(name).tolist()]
        for side, name in sides
    ]
    return list(zip(*keys, strict=True))


def both_rows(encoder: Encoder, data: Corpus) -> tuple[Tensor, Tensor]:
    rows, without = encoder(encoder.read(data)).of_pairs(
        data.column("query"), data.column("candidate")
    )
    return rows, without


@settings(deadline=None, max_examples=40)
@given(MET, MET, st.booleans())
def test_rows_are_those_of_loops(trained: Pairs, read: Pairs, normalize: bool) -> None:
    """Of a corpus that has candidates which the encoder lacks, and pairs that repeat."""
    encoder = encoder_of(corpus_of(trained), normalize=normalize)
    data = corpus_of(read)
    vectors = encoder.embed_all(data)
    known = encoder.known("query", encoder.read(data)).tolist()
    for row, query in enumerate(data.queries.vocabulary.keys.to_pylist()):
        met = {b for a, b in read if a == query}
        torch.testing.assert_close(vectors["query"][row], mean_of(encoder, met).detach())
        assert known[row] == bool(met & set(table_of(encoder)))
    for row, candidate in enumerate(data.candidates.vocabulary.keys.to_pylist()):
        expected = table_of(encoder).get(candidate, torch.zeros(3, dtype=torch.float64))
        torch.testing.assert_close(vectors["candidate"][row], expected.detach())


@settings(deadline=None, max_examples=40)
@given(MET, st.booleans())
def test_a_pairs_own_candidate_is_not_in_its_query(pairs: Pairs, normalize: bool) -> None:
    data = corpus_of(pairs)
    encoder = encoder_of(data, normalize=normalize)
    whole, without = both_rows(encoder, data)
    for row, (query, candidate) in enumerate(pairs_in(data)):
        met = {b for a, b in pairs if a == query}
        torch.testing.assert_close(whole[row], mean_of(encoder, met))
        torch.testing.assert_close(without[row], mean_of(encoder, met - {candidate}))


@pytest.mark.parametrize("normalize", [False, True])
def test_gradients_are_those_of_the_loops(normalize: bool) -> None:
    data = corpus_of(PAIRS)
    encoder = encoder_of(data, normalize=normalize)
    table = encoder.get_parameter("candidate.weight")
    draw = torch.Generator().manual_seed(4)
    targets = torch.randn(2, len(PAIRS), 3, generator=draw, dtype=torch.float64)
    sum(
        ((rows - target) ** 2).sum()
        for rows, target in zip(both_rows(encoder, data), targets, strict=True)
    ).backward()
    assert table.grad is not None
    assert table.grad.is_sparse
    got = table.grad.to_dense().clone()
    table.grad = None
    loss = torch.zeros((), dtype=torch.float64)
    for row, (query, candidate) in enumerate(pairs_in(data)):
        met = {b for a, b in PAIRS if a == query}
        loss = loss + ((mean_of(encoder, met) - targets[0, row]) ** 2).sum()
        loss = loss + ((mean_of(encoder, met - {candidate}) - targets[1, row]) ** 2).sum()
    (expected,) = torch.autograd.grad(loss, table)
    torch.testing.assert_close(got, expected)


def test_a_query_of_one_pair_has_nothing_without_it() -> None:
    """In float32, where a sum less its only term could leave rounding behind."""
    data = corpus_of(PAIRS)
    _, without = both_rows(encoder_of(data).float(), data)
    rows = dict(zip(pairs_in(data), without, strict=True))
    assert torch.equal(rows[3, 3], torch.zeros(3))
    assert rows[0, 0].abs().sum() > 0


def test_a_new_query_follows_what_it_met() -> None:
    """A published encoder keeps no query: those of another corpus are whom they met there."""
    data = corpus_of(PAIRS)
    encoder = encoder_of(data)
    assert [name for name, _ in encoder.named_parameters()] == ["candidate.weight"]
    grown = corpus_of([*PAIRS, (3, 0), (9, 2), (9, 4)])
    vectors = encoder.embed_all(grown)["query"]
    places = {key: i for i, key in enumerate(grown.queries.vocabulary.keys.to_pylist())}
    assert torch.allclose(vectors[places[9]], mean_of(encoder, {2, 4}))
    assert torch.allclose(vectors[places[3]], mean_of(encoder, {0, 3}))


def test_a_scene_without_interactions_is_refused() -> None:
    data = corpus_of(PAIRS)
    encoder = encoder_of(data)
    assert isinstance(encoder, MeanOfCandidates)
    embeddings = encoder(Scene(encoder.read(data).inputs))
    with pytest.raises(ValueError, match=r"has no graph; create it with the encoder"):
        embeddings.rows("query", torch.tensor([0]))
