"""The behaviour that every encoder has, whatever its kind."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from tests.support.encoder_corpora import default_encoder, stranger, tagged_corpus
from tests.support.subclasses import concrete_subclasses

import evergram.encoders
from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.factorization import Factorization
from evergram.encoders.factory import build_encoder
from evergram.encoders.features import SIDES, Schema
from evergram.encoders.kinds import ENCODERS
from evergram.encoders.two_tower import TwoTower
from evergram.errors import ShapeError

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
        unknown = Corpus.from_tables(pa.table({"query": ["?"], "candidate": ["?"]}))
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
