"""The behaviour that every encoder has, whatever its kind, and what it reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from tests.support.encoder_corpora import default_encoder, stranger, tagged_corpus
from tests.support.subclasses import concrete_subclasses
from torch import Tensor, nn

import evergram.encoders
from evergram.data.corpus import Corpus, Vocabulary
from evergram.encoders.encoder import (
    SIDES,
    Embeddings,
    Encoder,
    Factorization,
    Schema,
    TwoTower,
    build_encoder,
    restore_encoder,
)
from evergram.encoders.encoder_inputs import checked_inputs, columns_of
from evergram.encoders.kinds import (
    ENCODERS,
    EncoderSettings,
    FactorizationSettings,
    GraphSageSettings,
    LightGCNSettings,
    TwoTowerSettings,
)
from evergram.errors import DataError, IntegrityError, LineageError, RecipeError, ShapeError
from evergram.training.step import SharedCandidates

# A user's own modules have tests of their own: a schema alone does not build them.
KINDS = [settings.encoder_class() for settings in ENCODERS.values() if settings.made_by_recipe]


def test_every_encoder_of_the_package_is_in_the_table_under_its_kind() -> None:
    classes = {settings.encoder_class() for settings in ENCODERS.values()}
    assert classes == concrete_subclasses(evergram.encoders, Encoder)
    assert {encoder.kind for encoder in classes} == set(ENCODERS)


@pytest.mark.parametrize("kind", KINDS)
class TestEncoder:
    def test_the_seed_decides_its_start(self, kind: type[Encoder]) -> None:
        data = tagged_corpus()
        one, two, other = (
            default_encoder(kind, data),
            default_encoder(kind, data),
            default_encoder(kind, data, seed=1),
        )
        vectors = one.embed_all(data)
        for side in SIDES:
            assert vectors[side].shape == (3, 4)
            assert torch.equal(vectors[side], two.embed_all(data)[side])
            assert not torch.equal(vectors[side], other.embed_all(data)[side])

    def test_rows_and_blocks_are_those_of_all(self, kind: type[Encoder]) -> None:
        data = tagged_corpus()
        encoder = default_encoder(kind, data).eval()
        scene = encoder.read(data)
        whole, embeddings = encoder.embed_all(scene), encoder(scene)
        ids = torch.tensor([2, 0, 2])
        for side in SIDES:
            blocks = list(embeddings.blocks(side, 2))
            assert [len(b) for b in blocks] == [2, 1]
            assert not blocks[0].requires_grad
            torch.testing.assert_close(torch.cat(blocks), whole[side])
            rows = embeddings.rows(side, ids)
            assert rows.requires_grad
            torch.testing.assert_close(rows, whole[side][ids])

    def test_embedding_all_leaves_no_trace(self, kind: type[Encoder]) -> None:
        data = tagged_corpus()
        encoder = default_encoder(kind, data)
        before = {name: value.clone() for name, value in encoder.state_dict().items()}
        encoder.embed_all(data)
        assert encoder.training
        for name, value in encoder.state_dict().items():
            assert torch.equal(value, before[name]), name

    def test_a_known_row_keeps_its_vector_in_another_corpus(self, kind: type[Encoder]) -> None:
        data, grown = tagged_corpus(), tagged_corpus("new z y x")
        encoder = default_encoder(kind, data)
        old, new = encoder.embed_all(data), encoder.embed_all(grown)
        for side in SIDES:
            torch.testing.assert_close(new[side][1:], old[side].flip(0))

    def test_an_unknown_id_has_a_vector_and_is_not_known(self, kind: type[Encoder]) -> None:
        data = tagged_corpus()
        encoder = default_encoder(kind, data)
        unknown = Corpus.of(pa.table({"query": ["?"], "candidate": ["?"]}))
        again = default_encoder(kind, data)
        for side in SIDES:
            assert encoder.known(side, encoder.read(data)).tolist() == [True] * 3
            assert encoder.known(side, encoder.read(unknown)).tolist() == [False]
            vector = encoder.embed_all(unknown)[side]
            assert torch.isfinite(vector).all()
            assert torch.equal(vector, again.embed_all(unknown)[side])

    def test_it_starts_from_another_by_key(self, kind: type[Encoder]) -> None:
        data, grown = tagged_corpus(), tagged_corpus("new z y x")
        old, new = default_encoder(kind, data), default_encoder(kind, grown, seed=1)
        fresh = new.embed_all(grown)["candidate"]
        new.start_from(old)
        for side in SIDES:
            torch.testing.assert_close(new.embed_all(data)[side], old.embed_all(data)[side])
        assert not torch.equal(new.embed_all(grown)["candidate"][1:], fresh[1:])
        # A key that the other lacks keeps its own start.
        assert new.embed_all(grown)["candidate"][0].abs().sum() > 0

    def test_gradients_are_sparse_and_right(self, kind: type[Encoder]) -> None:
        data = tagged_corpus()
        encoder = default_encoder(kind, data).double()
        rows = torch.tensor([2, 0, 2])
        scene = encoder.read(data)
        for name, parameter in encoder.named_parameters():
            target = torch.randn(3, 4, dtype=torch.float64)

            def loss(target: torch.Tensor = target) -> torch.Tensor:
                total: torch.Tensor = (encoder(scene).rows("candidate", rows) * target).sum()
                return total

            encoder.zero_grad()
            loss().backward()  # type: ignore[no-untyped-call]
            if parameter.grad is None:
                continue  # the other side's
            is_table = parameter in {
                m.weight for m in encoder.modules() if isinstance(m, torch.nn.Embedding)
            }
            assert parameter.grad.is_sparse == is_table, name
            dense = parameter.grad.to_dense()
            with torch.no_grad():
                flat = parameter.view(-1)
                place = int(dense.view(-1).abs().argmax())
                value = float(flat[place])
                flat[place] = value + 1e-6
                above = float(loss())
                flat[place] = value - 1e-6
                below = float(loss())
                flat[place] = value
            assert (above - below) / 2e-6 == pytest.approx(
                float(dense.view(-1)[place]), rel=1e-4, abs=1e-8
            )


def test_starting_from_another_architecture_is_refused() -> None:
    data = tagged_corpus()
    encoder = default_encoder(Factorization, data)
    with pytest.raises(ShapeError, match=r"cannot start from one with other parameters; set "):
        encoder.start_from(default_encoder(TwoTower, data))
    wide = build_encoder("factorization", {"dim": 5}, encoder.schema, torch.Generator())
    with pytest.raises(ShapeError, match=r"4 dims, and the one to start from 5; set model.dim = 5"):
        encoder.start_from(wide)
    towers = [
        build_encoder("two_tower", {"dim": 4, "hidden": [n]}, encoder.schema, torch.Generator())
        for n in (6, 7)
    ]
    with pytest.raises(ShapeError, match=r" is \[6, 4\] here and \[7, 4\] in the encoder"):
        towers[0].start_from(towers[1])


def test_normalised_rows_have_unit_norm_and_a_zero_row_stays_zero() -> None:
    data = tagged_corpus()
    schema = Schema.of(data, features=False)
    options = {"dim": 4, "normalize": True}
    encoder = build_encoder("factorization", options, schema, torch.Generator())
    vectors = encoder.embed_all(data)["query"]
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))
    assert not bool(encoder.embed_all(stranger([]))["query"].any())


def test_an_embedding_is_the_row_of_its_id_and_features_do_not_count() -> None:
    data, grown = tagged_corpus(), tagged_corpus("new z x")
    encoder = default_encoder(Factorization, data)
    assert isinstance(encoder, Factorization)
    vectors = encoder.embed_all(grown)["candidate"]
    assert torch.equal(vectors[1:], encoder.candidate.weight[[2, 0]])
    assert not bool(vectors[0].any())
    assert encoder.known("candidate", encoder.read(grown)).tolist() == [False, True, True]


def test_the_rows_start_with_the_deviation_of_scale() -> None:
    data = Corpus.of(pa.table({"query": range(2000), "candidate": range(2000)}))
    schema, draw = Schema.of(data, features=False), torch.Generator().manual_seed(0)
    encoder = Factorization(schema, 8, scale=0.3, generator=draw)
    assert float(encoder.query.weight.detach().std()) == pytest.approx(0.3, rel=0.05)
    assert encoder.keyed() == {"query.weight": "query.id", "candidate.weight": "candidate.id"}


def test_layers_in_bfloat16_train_with_float32_rows_and_evaluate_in_float32() -> None:
    """The rows and the gradients are those of float32 up to bfloat16's eight bits."""
    data = tagged_corpus()
    encoder = default_encoder(TwoTower, data)
    assert isinstance(encoder, TwoTower)
    generator = torch.Generator().manual_seed(1)
    for parameter in encoder.parameters():  # layers that start at zero say nothing
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    inputs = encoder.schema.read("candidate", data.candidates)
    # The last layer: a ReLU before it may switch where its input is near zero.
    tower = encoder.hidden["candidate"]
    assert isinstance(tower, torch.nn.Sequential)
    layer = tower[-1]
    assert isinstance(layer, torch.nn.Linear)
    rows: dict[torch.dtype, torch.Tensor] = {}
    gradients: dict[torch.dtype, torch.Tensor] = {}
    for dtype in (torch.float32, torch.bfloat16):
        encoder.layer_dtype = dtype
        embedded = encoder.train().embed("candidate", inputs)
        encoder.zero_grad()
        embedded.square().sum().backward()  # type: ignore[no-untyped-call]
        rows[dtype] = embedded.detach()
        assert layer.weight.grad is not None
        gradients[dtype] = layer.weight.grad.clone()
    for exact, lower in ((r[torch.float32], r[torch.bfloat16]) for r in (rows, gradients)):
        assert lower.dtype == torch.float32
        assert not torch.equal(exact, lower)
        assert float((exact - lower).norm() / exact.norm()) < 0.02
    assert torch.equal(encoder.eval().embed("candidate", inputs), rows[torch.float32])


def test_an_unknown_kind_is_refused_with_the_kinds_there_are() -> None:
    with pytest.raises(RecipeError, match=r"'tower' is none of factorization, two_tower"):
        build_encoder("tower", {}, Schema({}, {}), torch.Generator())
    with pytest.raises(LineageError, match=r"encoder of version 3 is of the kind 'tower', but"):
        restore_encoder("tower", {}, {}, {}, {}, "version 3")


def test_an_encoder_is_restored_from_its_parts() -> None:
    data = tagged_corpus()
    encoder = default_encoder(TwoTower, data)
    schema = encoder.schema
    parts = schema.inputs, encoder.state_dict(), schema.vocabularies, "version 3"
    restored = restore_encoder("two_tower", {"dim": 4}, *parts)
    assert not restored.training
    for side, vectors in encoder.embed_all(data).items():
        assert torch.equal(restored.embed_all(data)[side], vectors)
    with pytest.raises(IntegrityError, match="encoder of version 3 does not fit its manifest"):
        restore_encoder("two_tower", {"dim": 5}, *parts)


def test_a_class_that_took_its_parents_kind_along_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A version with it would be read again by its parent."""

    class Mine(Factorization):
        pass

    class MineSettings(FactorizationSettings):
        kind: Literal["mine"] = "mine"  # type: ignore[assignment]

        @classmethod
        def encoder_class(cls) -> type[Encoder]:
            return Mine

    monkeypatch.setitem(ENCODERS, "mine", MineSettings)
    with pytest.raises(RecipeError, match=r"Mine\.kind is 'factorization', .* as 'mine'"):
        build_encoder("mine", {"dim": 2}, Schema({}, {}), torch.Generator())


def test_the_numbers_of_layers_are_a_bound_close_to_their_parameters() -> None:
    every: list[EncoderSettings] = [
        TwoTowerSettings(hidden=[]),
        TwoTowerSettings(hidden=[16, 5], input_dim=7),
        GraphSageSettings(layers=[3], input_dim=7),
        LightGCNSettings(),
    ]
    for settings in every:
        schema = Schema.of(tagged_corpus(), features=settings.reads_features)
        options = {"dim": 6, **settings.options(0)}
        encoder = build_encoder(settings.kind, options, schema, torch.Generator())
        layers = [p for n, p in encoder.named_parameters() if "tables" not in n and p.ndim == 2]
        numbers = sum(parameter.numel() for parameter in layers)
        # Biases, norms and the projection of x are beside.
        assert settings.layer_numbers(6, 0) <= numbers <= settings.layer_numbers(6, 0) + 2 * 6 * 7


CPU = torch.device("cpu")


IDS = torch.tensor([2, 0, 2])


class Layered(Embeddings):
    """A layer with dropout over fixed inputs; `calls` are the sizes that were embedded."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.inputs = {s: torch.randn(9, 4, generator=draw) for s in ("query", "candidate")}
        self.layer = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
        self.calls: list[int] = []

    def rows(self, side: str, ids: Tensor) -> Tensor:
        self.calls.append(len(ids))
        rows: Tensor = self.layer(self.inputs[side][ids])
        return rows

    def blocks(self, side: str, batch_size: int = 4) -> Iterator[Tensor]:
        yield self.inputs[side]


def test_candidates_are_embedded_once_and_the_other_side_as_it_is_asked() -> None:
    embeddings = Layered()
    shared = SharedCandidates(embeddings, 9, CPU)
    assert torch.equal(shared.rows("candidate", IDS), shared.candidates[IDS])
    assert shared.whole("candidate") is shared.candidates
    assert embeddings.calls == [9]
    assert shared.whole("query") is None
    assert shared.rows("query", IDS).shape == (3, 3)
    assert embeddings.calls == [9, 3]
    assert torch.equal(next(shared.blocks("query")), embeddings.inputs["query"])


def test_blocks_are_embedded_again_with_the_same_dropout() -> None:
    embeddings = Layered()
    shared = SharedCandidates(embeddings, 9, CPU, rows=4)
    assert embeddings.calls == [4, 4, 1]
    shared.candidates.sum().backward()  # type: ignore[no-untyped-call]
    assert sorted(embeddings.calls[3:]) == [1, 4, 4]
    weight = embeddings.layer[0].get_parameter("weight")
    kept = (shared.candidates.detach() != 0).to(weight) * 2  # dropout at a half doubles the rest
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, kept.T @ embeddings.inputs["candidate"])


def tower(data: Corpus, seed: int = 0, **options: Any) -> TwoTower:
    draw = torch.Generator().manual_seed(seed)
    return TwoTower(Schema.of(data, features=True), 4, generator=draw, **options)


def unlike_its_start(encoder: TwoTower) -> TwoTower:
    """The same with no parameter at zero, as after training."""
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(generator=draw)
    return encoder


def test_a_tower_starts_as_a_factorization() -> None:
    data = tagged_corpus()
    encoder = tower(data, hidden=[6, 5])
    for side, entities in (("query", data.queries), ("candidate", data.candidates)):
        table = encoder.get_parameter(f"tables.{side}/id.weight")
        assert torch.equal(encoder.encode(side, entities), table)
        assert table.std() > 0.05


@pytest.mark.parametrize("width", [2, 7])
def test_a_tower_of_another_width_starts_as_one_of_the_smaller(width: int) -> None:
    data = tagged_corpus()
    encoder = tower(data, input_dim=width)
    query, candidate, projection, other = (
        encoder.get_parameter(f"{name}.weight")
        for name in ("tables.query/id", "tables.candidate/id", "skip.query", "skip.candidate")
    )
    assert torch.equal(projection, other)
    torch.testing.assert_close(encoder.encode("query", data.queries), query @ projection.T)
    small = projection.T @ projection if width < 4 else projection @ projection.T
    torch.testing.assert_close(small, torch.eye(min(width, 4)))
    if width < 4:
        scores = (
            encoder.encode("query", data.queries) @ encoder.encode("candidate", data.candidates).T
        )
        torch.testing.assert_close(scores, query @ candidate.T)


@pytest.mark.parametrize("concatenate", [False, True])
def test_without_the_residual_it_is_the_layers_alone(concatenate: bool) -> None:
    """[G2] §4.1: input embeddings, added up or one after the other, through layers with ReLU."""
    data = tagged_corpus()
    encoder = tower(data, residual=False, concatenate=concatenate, input_dim=3, hidden=[6, 5])
    assert all(float(p.detach().std()) > 0.02 for p in encoder.tables.parameters())
    ids = encoder.get_parameter("tables.candidate/id.weight")
    inputs = encoder.schema.inputs["candidate"]
    entities = encoder.read(data).inputs["candidate"]
    rows = []
    for row in range(len(data.candidates)):
        parts = []
        for name, vocabulary in inputs.items():
            if name == "id":
                parts.append(ids[row])
                continue
            table = encoder.get_parameter(f"tables.{vocabulary.replace('.', '/')}.weight")
            indices, offsets = entities.bags[name]
            bag = table[indices[offsets[row] : offsets[row + 1]]]
            parts.append(bag.mean(0) if len(bag) else torch.zeros(3))
        x = torch.cat(parts) if concatenate else torch.stack(parts).sum(0)
        for weight, bias in ((0, 0), (2, 2), (4, 4)):
            layers = f"hidden.candidate.{weight}"
            x = encoder.get_parameter(f"{layers}.weight") @ x
            x = x + encoder.get_parameter(f"hidden.candidate.{bias}.bias")
            x = x if weight == 4 else x.relu()
        rows.append(x)
    torch.testing.assert_close(encoder.encode("candidate", data.candidates), torch.stack(rows))


def test_two_steps_move_every_parameter_of_a_tower() -> None:
    """The first step has the last layer at zero, so what is below it moves from the second on."""
    data = tagged_corpus()
    encoder = tower(data, hidden=[16, 16])
    start = {name: p.detach().clone() for name, p in encoder.named_parameters()}
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    for _ in range(2):
        loss = torch.zeros(())
        for side, entities in (("query", data.queries), ("candidate", data.candidates)):
            embeddings = encoder.embed(side, encoder.schema.read(side, entities))
            loss = loss + (embeddings - 1).square().sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for name, parameter in encoder.named_parameters():
        assert not torch.equal(parameter, start[name]), name


def test_features_alone_place_an_unknown_id() -> None:
    encoder = unlike_its_start(tower(tagged_corpus()))

    def place(tags: list[str]) -> torch.Tensor:
        return encoder.encode("candidate", stranger(tags).candidates)

    scene = encoder.read(stranger(["b", "unheard of"]))
    inputs = scene.inputs["candidate"]
    assert encoder.known("candidate", scene).tolist() == [True]
    assert inputs.bags["tags"][1].tolist() == [0, 1]
    torch.testing.assert_close(place(["b", "unheard of"]), place(["b"]))
    assert not torch.allclose(place(["a"]), place(["b"]))
    # Where x's own entity would be if its id's row were zero.
    with torch.no_grad():
        encoder.get_parameter("tables.candidate/id.weight").zero_()
    torch.testing.assert_close(
        place(["a", "b"])[0], encoder.encode("candidate", tagged_corpus().candidates)[0]
    )


SCHEMA = Schema(
    {"ids": Vocabulary(pa.array(["b", "a"])), "words": Vocabulary(pa.array(["x", "y"]))},
    {"query": {"id": "ids"}, "candidate": {"id": "ids", "tags": "words", "also": "words"}},
)


def test_ids_and_features_are_rows_of_the_vocabularies() -> None:
    candidates = Corpus.of(
        pa.table({"query": ["?"] * 3, "candidate": ["a", "c", "b"]}),
        candidate_features=pa.table(
            {"id": ["a", "c", "b"], "tags": [["y", "unknown", "x"], [], ["unknown"]]}
        ),
    ).candidates
    inputs = SCHEMA.read("candidate", candidates)
    assert inputs.ids.tolist() == [1, -1, 0]
    indices, offsets = inputs.bags["tags"]
    assert indices.tolist() == [1, 0]
    assert offsets.tolist() == [0, 2, 2, 2]
    # A feature that the corpus lacks has empty bags.
    assert inputs.bags["also"][1].tolist() == [0, 0, 0, 0]
    assert SCHEMA.read("query", candidates).bags == {}


def test_features_that_would_share_a_table_are_refused() -> None:
    features = pa.table({"id": [1, 2], "genre.main": ["a", "b"], "genre/main": ["x", "y"]})
    pairs = pa.table({"query": [1, 2], "candidate": [1, 2]})
    corpus = Corpus.of(pairs, candidate_features=features)
    with pytest.raises(DataError, match=r"genre\.main and genre/main would share one table"):
        Schema.of(corpus, features=True)
    assert len(Schema.of(corpus, features=False).vocabularies) == 2


ITEMS = Schema(
    {"items": Vocabulary(pa.array([10, 20, 30])), "genres": Vocabulary(pa.array(["war", "art"]))},
    {"candidate": {"id": "items", "genre": "genres"}},
)


def bags(objects: Any) -> list[list[int]]:
    rows, offsets = checked_inputs(columns_of(objects), "candidate", ITEMS).bags["genre"]
    return [
        rows[a:b].tolist() for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    ]


def test_ids_and_lists_of_keys_are_rows_of_the_vocabularies() -> None:
    objects = [
        {"id": 30, "genre": ["art", "war"]},
        {"id": 10},
        {"id": None, "genre": "art"},
        {"genre": ["opera", "war", None]},
    ]
    assert checked_inputs(columns_of(objects), "candidate", ITEMS).ids.tolist() == [2, 0, -1, -1]
    # An unknown key is left out; a single key is a list of one.
    assert bags(objects) == [[1, 0], [], [1], [0]]


@pytest.mark.parametrize("genres", [[["art"], ["war", "art"]], [("art",), {"art", "war"}]])
def test_a_table_of_any_kind_is_read_like_a_list_of_mappings(genres: list[Any]) -> None:
    expected = [sorted(bag) for bag in bags([{"genre": list(bag)} for bag in genres])]
    lists = [sorted(bag) for bag in genres]
    tables = [
        pa.table({"genre": lists}),
        pa.table({"genre": lists}).to_batches()[0],
        pd.DataFrame({"genre": lists}),
        pl.DataFrame({"genre": lists}),
    ]
    for table in tables:
        assert [sorted(bag) for bag in bags(table)] == expected


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([{"genre": ["opera"]}], r"no vector for 1 of 1 objects.*number 0 \(genre \['opera'\]\)"),
        ([{"id": 10}, {"id": 99}], r"no vector for 1 of 2 objects.*number 1 \(id 99\)"),
        ([{"genre": [1.5]}], "'genre' has the type double; keys must be integers or texts"),
        ([1, "a"], "'id' cannot be read: .*must be all integers or all"),
        (pa.table({"year": [1999]}), "no feature 'year' of side 'candidate'; it has id, genre"),
    ],
)
def test_objects_that_cannot_be_embedded_are_named(objects: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        checked_inputs(columns_of(objects), "candidate", ITEMS)


def test_another_kind_of_table_is_refused() -> None:
    class Frame:
        columns = ("id",)

    with pytest.raises(DataError, match="A Frame cannot be read; give a pandas"):
        columns_of(Frame())


def test_keys_of_a_feature_have_the_type_of_the_training() -> None:
    with pytest.raises(DataError, match=r"keys of feature 'genre' are int64, but .* string"):
        checked_inputs(columns_of([{"id": 10, "genre": [1]}]), "candidate", ITEMS)
    assert bags([{"id": 10, "genre": [None]}]) == [[]]
