"""The ways: what each searches, beside a slow search of the same, and what it costs."""

from __future__ import annotations

import pytest
import torch
from tests.support.two_models import TEXTS, by_two_models
from torch import Tensor

from evergram.errors import DataError
from evergram.releasing.migration.ways import Similarity, WaySettings, measure_ways


def sorted_all(queries: Tensor, texts: Tensor) -> Tensor:
    """Return the rows of all texts in the order of their scores, sorted as a whole."""
    return (queries.double() @ texts.double().T).argsort(dim=1, descending=True)


def test_each_way_searches_the_vectors_that_it_says() -> None:
    vectors, _ = by_two_models(0.5, 0.2)
    ways = measure_ways(vectors, WaySettings())
    old = sorted_all(vectors.old_queries, vectors.old)
    expected = {
        "stay": old,
        "naive": sorted_all(vectors.new_queries[:, :10], vectors.old),
        "reindex": sorted_all(vectors.new_queries, vectors.new),
    }
    for name, order in expected.items():
        assert torch.equal(ways[name].ranked, order[:, :100]), name
    scores = vectors.new_queries.double() @ vectors.new.double().T
    proposed = torch.full_like(scores, -torch.inf).scatter(1, old[:, :200], 0.0)
    cascaded = (scores + proposed).argsort(dim=1, descending=True)[:, :100]
    assert torch.equal(ways["cascade"].ranked, cascaded)


def test_a_model_that_was_only_turned_loses_nothing_by_the_bridge() -> None:
    vectors, _ = by_two_models(0.5, 0.2)
    turn = torch.linalg.qr(torch.randn(10, 10, generator=torch.Generator().manual_seed(1)))[0]
    turned = type(vectors)(
        vectors.texts,
        vectors.queries,
        vectors.old,
        vectors.old @ turn,
        vectors.old_queries,
        vectors.old_queries @ turn,
    )
    ways = measure_ways(turned, WaySettings(pairs=0.5))
    for name in ("bridge", "cascade", "bridge_cascade", "sidecar", "pinned"):
        same = (ways[name].ranked[:, :10] == ways["stay"].ranked[:, :10]).double().mean()
        assert same > 0.99, name
    swapped = (ways["naive"].ranked[:, :10] == ways["stay"].ranked[:, :10]).double().mean()
    assert swapped < 0.2


def test_the_costs_are_counted() -> None:
    vectors, _ = by_two_models(0.5, 0.2)
    ways = measure_ways(vectors, WaySettings(pairs=0.4, depth=100, sidecar_bytes=3))
    proposed = sorted_all(vectors.old_queries, vectors.old)[:, :100]
    touched = len(set(proposed.flatten().tolist()))
    encoded = {name: way.encoded for name, way in ways.items()}
    assert encoded["stay"] == encoded["naive"] == 0
    assert encoded["bridge"] == 120 <= encoded["bridge_cascade"] <= TEXTS
    assert encoded["cascade"] == touched
    assert encoded["reindex"] == encoded["sidecar"] == encoded["pinned"] == TEXTS
    assert ways["cascade"].bytes_a_text == pytest.approx(40 + 48 * touched / TEXTS)
    assert ways["sidecar"].bytes_a_text == 48 + 3
    assert ways["reindex"].bytes_a_text == ways["pinned"].bytes_a_text == 48


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_a_pinned_client_that_sends_strings_searches_what_is_read_back(
    similarity: Similarity,
) -> None:
    vectors, _ = by_two_models(0.5, 0.2)
    back = torch.linalg.lstsq(vectors.new.double(), vectors.old.double()).solution
    queries, texts = vectors.new_queries.double() @ back, vectors.new.double() @ back
    if similarity == "cosine":
        texts = texts / texts.norm(dim=1, keepdim=True)
    expected = sorted_all(queries, texts)[:, :10]
    pinned = measure_ways(vectors, WaySettings(similarity=similarity))["pinned"].ranked[:, :10]
    # The aligner holds a tenth of the texts out.
    shared = [len(set(a.tolist()) & set(b.tolist())) for a, b in zip(expected, pinned, strict=True)]
    assert sum(shared) > 9 * len(shared)


def test_a_sidecar_of_all_coordinates_is_the_old_index_and_its_error_is_predicted() -> None:
    vectors, _ = by_two_models(0.5, 0.2)
    whole = measure_ways(vectors, WaySettings(sidecar_bytes=10))["sidecar"]
    stay = measure_ways(vectors, WaySettings())["stay"]
    both = torch.cat([whole.ranked[:, :10], stay.ranked[:, :10]], dim=1).sort(dim=1).values
    assert float((both[:, 1:] == both[:, :-1]).sum() / stay.ranked[:, :10].numel()) > 0.97
    for settings in (WaySettings(sidecar_error=0.3), WaySettings(sidecar_bytes=4)):
        facts = measure_ways(vectors, settings)["sidecar"].facts
        assert facts["measured_error"] == pytest.approx(facts["predicted_error"], rel=1e-5)
    tenth = measure_ways(vectors, WaySettings())["sidecar"].facts
    assert (tenth["sidecar_bytes"], tenth["share_of_old_bytes"]) == (4, 0.1)
    allowed = measure_ways(vectors, WaySettings(sidecar_error=0.3))["sidecar"].facts
    assert allowed["measured_error"] <= 0.3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pairs": 0.0}, "above 0"),
        ({"pairs": 1.5}, "at most 1"),
        ({"depth": 99}, "at least 100"),
        ({"sidecar_bytes": 1, "sidecar_error": 0.1}, "give one of them"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        WaySettings(**settings)  # type: ignore[arg-type]


def test_a_sidecar_of_more_bytes_than_dims_is_refused() -> None:
    vectors, _ = by_two_models(0.5, 0.2)
    dim = vectors.old.shape[1]
    measure_ways(vectors, WaySettings(sidecar_bytes=dim))
    with pytest.raises(DataError, match=f"may have 0 to {dim}"):
        measure_ways(vectors, WaySettings(sidecar_bytes=dim + 1))


def test_too_few_pairs_are_refused() -> None:
    vectors, _ = by_two_models(0.5, 0.2)
    with pytest.raises(DataError, match="fitted to 90 texts, and at least 100"):
        measure_ways(vectors, WaySettings(pairs=0.3))
