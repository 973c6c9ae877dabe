"""The factor of published candidates: exact, of every encoder, kept with it; 1 for strangers."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.encoder_corpora import default_encoder, stranger, tagged_corpus
from torch import Tensor, nn

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import (
    SIDES,
    Encoder,
    PopularityFactor,
    RowEncoder,
    Schema,
    popularity_factors,
)
from evergram.encoders.factory import build_encoder, publish_by_popularity, restore_encoder
from evergram.encoders.kinds import ENCODERS
from evergram.encoders.module_encoder import (
    EncoderModules,
    ModuleEncoder,
    check_vectors,
    restore_module_encoder,
)
from evergram.errors import DataError, IntegrityError

KINDS = [kind for kind, settings in ENCODERS.items() if settings.made_by_recipe]


# Candidates 7, 9, 8 and 5 in their order, with so many pairs.
COUNTS = {7: 3, 9: 1, 8: 2, 5: 1}


CORPUS = Corpus.from_tables(
    pa.table(
        {
            "query": ["a", "b", "a", "c", "b", "a", "c"],
            "candidate": [7, 7, 9, 8, 8, 7, 5],
        }
    )
)


def encoder_of(kind: str, corpus: Corpus, exponent: float | None) -> Encoder:
    settings = ENCODERS[kind]()
    options: dict[str, Any] = {"dim": 4, "normalize": True, **settings.options(0)}
    schema = Schema.of(corpus, features=settings.reads_features)
    encoder = build_encoder(kind, options, schema, torch.Generator().manual_seed(3)).eval()
    if exponent is not None:
        publish_by_popularity(encoder, exponent, corpus)
    return encoder


@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=8),
    st.floats(-1, 1, allow_subnormal=False),
)
def test_a_factor_is_the_power_of_a_count_that_is_one_at_least(
    counts: list[int], exponent: float
) -> None:
    factors = popularity_factors(torch.tensor(counts), exponent)
    assert factors.dtype == torch.float32
    for count, factor in zip(counts, factors.tolist(), strict=True):
        assert factor == pytest.approx(max(count, 1) ** exponent, rel=1e-6)


def test_strangers_have_the_factor_one() -> None:
    factor = PopularityFactor(0.5, 3)
    factor.count(torch.tensor([2, 0]), torch.tensor([100, 9]))
    assert factor.factors(torch.tensor([-1, 0, 1, 2, -1])).tolist() == [1, 3, 1, 10, 1]
    factor.count(torch.tensor([1]), torch.tensor([4]))  # of another corpus: the old are forgotten
    assert factor.factors(torch.arange(3)).tolist() == [1, 2, 1]
    assert PopularityFactor(0.5, 0).factors(torch.tensor([-1])).tolist() == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_published_candidates_are_unit_rows_times_the_power_of_their_count(kind: str) -> None:
    plain, published = encoder_of(kind, CORPUS, None), encoder_of(kind, CORPUS, 0.3)
    rows, vectors = plain.embed_all(CORPUS), published.embed_all(CORPUS)
    assert torch.equal(vectors["query"], rows["query"])
    assert CORPUS.candidates.vocabulary.keys.to_pylist() == list(COUNTS)
    for place, count in enumerate(COUNTS.values()):
        row = rows["candidate"][place]
        assert float(row.norm()) == pytest.approx(1, abs=1e-6)
        factor = torch.tensor(count**0.3, dtype=torch.float64).float()
        assert torch.equal(vectors["candidate"][place], row * factor)
    # What the loss sees is as if there were no factor.
    seen, unscaled = (e(e.read(CORPUS)) for e in (published, plain))
    ids = torch.tensor([2, 0])
    for side in SIDES:
        assert torch.equal(seen.rows(side, ids), unscaled.rows(side, ids))
        blocks = (torch.cat(list(e.blocks(side, 2))) for e in (seen, unscaled))
        assert torch.equal(next(blocks), next(blocks))
    both = published.published(published.read(CORPUS))
    assert torch.equal(both.rows("candidate", ids), vectors["candidate"][ids])
    if isinstance(published, RowEncoder):
        for side, entities in zip(SIDES, (CORPUS.queries, CORPUS.candidates), strict=True):
            assert torch.equal(published.encode(side, entities, batch_size=3), vectors[side])


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_encoder_needs_no_training_data(kind: str) -> None:
    encoder = encoder_of(kind, CORPUS, 0.15)
    options = {"dim": 4, "normalize": True, **ENCODERS[kind]().options(0)}
    assert encoder.popularity_option == {"popularity": 0.15}
    options = json.loads(json.dumps(options | encoder.popularity_option))
    schema = encoder.schema
    parts = schema.inputs, encoder.state_dict(), schema.vocabularies, "version 0"
    again = restore_encoder(kind, options, *parts)
    for side, vectors in again.embed_all(CORPUS).items():
        assert torch.equal(vectors, encoder.embed_all(CORPUS)[side])
    del options["popularity"]
    with pytest.raises(IntegrityError, match=r"popularity\.counts"):
        restore_encoder(kind, options, *parts)


@pytest.mark.parametrize("kind", ["two_tower"])
def test_candidates_that_training_never_saw_are_published_as_they_are(kind: str) -> None:
    corpus = tagged_corpus()
    encoder = default_encoder(ENCODERS[kind].encoder_class(), corpus).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator()))
    new = stranger(["a", "b"])
    before = encoder.embed_all(new)["candidate"]
    assert bool(before.any())
    known = encoder.embed_all(corpus)["candidate"]
    encoder.add_popularity(0.5).counts.fill_(9)
    assert torch.equal(encoder.embed_all(new)["candidate"], before)
    torch.testing.assert_close(encoder.embed_all(corpus)["candidate"], 3 * known)


def test_an_encoder_starts_from_another_with_the_counts_of_its_own_corpus() -> None:
    grown = Corpus.from_tables(pa.table({"query": ["a", "a", "a", "d"], "candidate": [9, 9, 9, 4]}))
    mine, theirs = encoder_of("factorization", grown, 1.0), encoder_of("factorization", CORPUS, 0.5)
    mine.start_from(theirs)
    vectors = mine.embed_all(grown)["candidate"]
    assert vectors.norm(dim=1).tolist() == pytest.approx([3, 1])
    old = theirs.embed_all(CORPUS)["candidate"][1]  # candidate 9, which had one pair
    torch.testing.assert_close(vectors[0], 3 * old)
    encoder_of("factorization", grown, None).start_from(theirs)  # with or without a factor


def modules() -> EncoderModules:
    def letters(ids: list[Any]) -> Tensor:
        return torch.tensor([ord(i) - ord("a") for i in ids])

    torch.manual_seed(5)
    tables = nn.Embedding(26, 4), nn.Embedding(20, 4)
    return EncoderModules(*tables, letters, torch.tensor, new_ids=True)


def test_modules_of_a_users_publish_with_the_factor_too() -> None:
    own = modules()
    plain = ModuleEncoder.of(own, CORPUS, normalize=True)
    encoder = ModuleEncoder.of(own, CORPUS, normalize=True)
    publish_by_popularity(encoder, 0.5, CORPUS)
    expected = plain.embed_all(CORPUS)["candidate"] * torch.tensor([3.0, 1, 2, 1]).sqrt()[:, None]
    vectors = encoder.embed_all(CORPUS)["candidate"]
    assert torch.equal(vectors, expected)
    assert torch.equal(encoder.copied().embed_all(CORPUS)["candidate"], vectors)
    assert torch.equal(encoder.embed_all(CORPUS)["query"], plain.embed_all(CORPUS)["query"])
    new = [8, 11]  # 11 is of no training pair
    unscaled = torch.as_tensor(plain.encode(new))
    expected = unscaled * torch.tensor([2.0, 1]).sqrt()[:, None]
    assert torch.equal(torch.as_tensor(encoder.encode(new)), expected)
    assert torch.equal(torch.as_tensor(encoder.encode(["a"], "query")), plain_query(plain))
    parts = encoder.options, encoder.schema, encoder.tensors(), "version 0"
    again = restore_module_encoder(modules(), *parts)
    assert torch.equal(again.embed_all(CORPUS)["candidate"], vectors)
    ids = pa.array([str(key) for key in COUNTS])
    check_vectors(again, "candidate", ids, vectors, "version 0")
    with pytest.raises(DataError, match="differ by"):
        check_vectors(again, "candidate", ids, plain.embed_all(CORPUS)["candidate"], "version 0")


def plain_query(encoder: ModuleEncoder) -> Tensor:
    return torch.as_tensor(encoder.encode(["a"], "query"))
