"""What every encoder keeps to, whichever it is."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.subclasses import concrete_subclasses

import evergram.encoders
from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.factorization import Factorization
from evergram.encoders.factory import build_encoder
from evergram.encoders.features import SIDES, Schema
from evergram.encoders.kinds import ENCODERS
from evergram.encoders.two_tower import TwoTower
from evergram.errors import RecipeError

# A user's own modules have tests of their own: a schema alone does not build them.
KINDS = [settings.encoder_class() for settings in ENCODERS.values() if settings.made_by_recipe]
TAGS = {"x": ["a", "b"], "y": ["b"], "z": [], "new": ["c"]}


def corpus(candidates: str = "x y z") -> Corpus:
    """Each candidate has a query of its own, that met nothing else."""
    names = candidates.split()
    return Corpus.from_tables(
        pa.table({"query": [f"of {name}" for name in names], "candidate": names}),
        candidate_features=pa.table({"id": names, "tags": [TAGS[name] for name in names]}),
    )


def build(kind: type[Encoder], data: Corpus, seed: int = 0) -> Encoder:
    """An encoder as a recipe makes it by default, of 4 dims."""
    settings = ENCODERS[kind.kind]()
    options = {"dim": 4, "scale": 0.1, **json.loads(json.dumps(settings.options(0)))}
    schema = Schema.of(data, features=settings.reads_features)
    return build_encoder(kind.kind, options, schema, torch.Generator().manual_seed(seed))


def test_every_encoder_of_the_package_is_in_the_table_under_its_kind() -> None:
    classes = {settings.encoder_class() for settings in ENCODERS.values()}
    assert classes == concrete_subclasses(evergram.encoders, Encoder)
    assert {encoder.kind for encoder in classes} == set(ENCODERS)
    with pytest.raises(RecipeError, match=r"'tower' is none of factorization, two_tower"):
        build_encoder("tower", {}, Schema({}, {}), torch.Generator())


@pytest.mark.parametrize("kind", KINDS)
class TestEncoder:
    def test_shapes_and_seed(self, kind: type[Encoder]) -> None:
        data = corpus()
        one, two, other = build(kind, data), build(kind, data), build(kind, data, seed=1)
        vectors = one.embed_all(data)
        for side in SIDES:
            assert vectors[side].shape == (3, 4)
            assert torch.equal(vectors[side], two.embed_all(data)[side])
            assert not torch.equal(vectors[side], other.embed_all(data)[side])

    def test_rows_and_blocks_are_those_of_all(self, kind: type[Encoder]) -> None:
        data = corpus()
        encoder = build(kind, data).eval()
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
        data = corpus()
        encoder = build(kind, data)
        before = {name: value.clone() for name, value in encoder.state_dict().items()}
        encoder.embed_all(data)
        assert encoder.training
        for name, value in encoder.state_dict().items():
            assert torch.equal(value, before[name]), name

    def test_a_known_row_keeps_its_vector_in_another_corpus(self, kind: type[Encoder]) -> None:
        data, grown = corpus(), corpus("new z y x")
        encoder = build(kind, data)
        old, new = encoder.embed_all(data), encoder.embed_all(grown)
        for side in SIDES:
            torch.testing.assert_close(new[side][1:], old[side].flip(0))

    def test_an_unknown_id_is_defined_and_known_is_told(self, kind: type[Encoder]) -> None:
        data = corpus()
        encoder = build(kind, data)
        stranger = Corpus.from_tables(pa.table({"query": ["?"], "candidate": ["?"]}))
        again = build(kind, data)
        for side in SIDES:
            assert encoder.known(side, encoder.read(data)).tolist() == [True] * 3
            assert encoder.known(side, encoder.read(stranger)).tolist() == [False]
            vector = encoder.embed_all(stranger)[side]
            assert torch.isfinite(vector).all()
            assert torch.equal(vector, again.embed_all(stranger)[side])

    def test_it_goes_on_from_another_by_key(self, kind: type[Encoder]) -> None:
        data, grown = corpus(), corpus("new z y x")
        old, new = build(kind, data), build(kind, grown, seed=1)
        fresh = new.embed_all(grown)["candidate"]
        new.start_from(old)
        for side in SIDES:
            torch.testing.assert_close(new.embed_all(data)[side], old.embed_all(data)[side])
        assert not torch.equal(new.embed_all(grown)["candidate"][1:], fresh[1:])
        # What the other does not know is told by what it was given at the start.
        assert new.embed_all(grown)["candidate"][0].abs().sum() > 0

    def test_gradients_are_sparse_and_right(self, kind: type[Encoder]) -> None:
        data = corpus()
        encoder = build(kind, data).double()
        rows = torch.tensor([2, 0, 2])
        scene = encoder.read(data)
        for name, parameter in encoder.named_parameters():
            target = torch.randn(3, 4, dtype=torch.float64)

            def loss(target: torch.Tensor = target) -> torch.Tensor:
                found: torch.Tensor = (encoder(scene).rows("candidate", rows) * target).sum()
                return found

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


def stranger(tags: list[str]) -> Corpus:
    return Corpus.from_tables(
        pa.table({"query": ["?"], "candidate": ["?"]}),
        candidate_features=pa.table({"id": ["?"], "tags": [tags]}),
    )


def test_a_tower_starts_as_a_factorization() -> None:
    data = corpus()
    encoder = tower(data, hidden=[6, 5])
    for side, entities in (("query", data.queries), ("candidate", data.candidates)):
        table = encoder.get_parameter(f"tables.{side}/id.weight")
        assert torch.equal(encoder.encode(side, entities), table)
        assert table.std() > 0.05


@pytest.mark.parametrize("width", [2, 7])
def test_a_tower_of_another_width_starts_as_one_of_the_smaller(width: int) -> None:
    data = corpus()
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


def test_two_steps_move_every_parameter_of_a_tower() -> None:
    """The first step has the last layer at zero, so what is below it moves from the second on."""
    data = corpus()
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


def test_the_hidden_layers_are_not_linear() -> None:
    encoder = unlike_its_start(tower(corpus()))
    inputs = encoder.schema.read("candidate", stranger(["a"]).candidates)
    vectors = []
    table = encoder.get_parameter("tables.feature/tags.weight")
    for factor in (0.0, 1.0, 1.0):
        with torch.no_grad():
            table.mul_(factor) if factor == 0 else table.add_(factor)
        vectors.append(encoder.embed("candidate", inputs))
    assert not torch.allclose(vectors[2] - vectors[1], vectors[1] - vectors[0], atol=1e-3)


def test_features_alone_place_an_unknown_id() -> None:
    encoder = unlike_its_start(tower(corpus()))

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
        place(["a", "b"])[0], encoder.encode("candidate", corpus().candidates)[0]
    )


def test_a_tower_tells_its_features_tables_from_its_ids() -> None:
    encoder = tower(corpus())
    found = encoder.feature_tables()
    assert [id(p) for p in found] == [id(encoder.get_parameter("tables.feature/tags.weight"))]
    assert build(Factorization, corpus()).feature_tables() == []


def test_towers_share_a_table_where_the_vocabulary_is_one() -> None:
    data = Corpus.from_tables(
        pa.table({"query": ["a", "b"], "candidate": ["b", "a"]}), shared_ids=True
    )
    assert len(build(TwoTower, data).tables) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("hidden", [[], [6], [6, 5]])
def test_any_number_of_hidden_layers(hidden: list[int]) -> None:
    data = corpus()
    schema = Schema.of(data, features=True)
    draw = torch.Generator().manual_seed(0)
    encoder = TwoTower(schema, 3, generator=draw, input_dim=2, hidden=hidden)
    assert encoder.encode("query", data.queries).shape == (3, 3)
