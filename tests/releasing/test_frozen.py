"""A frozen upgrade has vectors of the objects that its model knows, and of no others."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.prepared import write_prepared
from tests.support.small_recipe import small_recipe

from evergram.data.corpus import Corpus
from evergram.data.prepared.prepared_corpus import load_prepared
from evergram.data.split import HeldOut, random_split
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.lineage.version_warnings import version_warnings
from evergram.releasing.evaluate import evaluate
from evergram.releasing.frozen.known_objects import (
    UNTESTED,
    corpus_of_known,
    known_to,
    split_of_known,
    stored_in,
    unknown_counts,
    with_known_queries,
)
from evergram.releasing.html_report.report_file import ReportedVersion
from evergram.releasing.publish import publish
from evergram.releasing.upgrade import train, upgrade
from evergram.retrieval.reader import Reader
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import load_corpus, split_for
from evergram.training.recipe import Recipe


def frozen(small: Recipe, *overrides: str) -> Recipe:
    upgrading = {"method": "fix-m0", "alone": False}
    return Recipe.of({**small.model_dump(exclude={"upgrade"}), "upgrade": upgrading}, overrides)


@pytest.fixture(scope="module")
def trained() -> tuple[Artefact, Corpus]:
    corpus = load_corpus(small_recipe())
    return train(small_recipe(), corpus, progress=False), corpus


@pytest.fixture
def first(trained: tuple[Artefact, Corpus], tmp_path: Path) -> tuple[Lineage, Corpus]:
    lineage = Lineage.create(tmp_path / "lineage")
    publish(lineage, trained[0])
    return lineage, trained[1]


def ids_of(artefact: Artefact, side: str) -> set[int]:
    return set(artefact.block(side)[0].to_pylist())


def test_new_ids_of_a_table_are_not_published_and_a_warning_counts_them(
    small: Recipe, first: tuple[Lineage, Corpus], caplog: pytest.LogCaptureFixture
) -> None:
    lineage, corpus = first
    recipe = frozen(small)
    artefact = upgrade(recipe, lineage, corpus, progress=False)
    training = split_for(recipe, corpus, 1, lineage.pair_history).training
    new, unknown = {}, {}
    for side, entities in (("query", training.queries), ("candidate", training.candidates)):
        before = set(lineage.embeddings(side)[0].to_pylist())
        ids = set(entities.vocabulary.keys.to_pylist())
        new[side] = sorted(ids - before)
        unknown[side] = len(new[side])
        assert ids_of(artefact, side) == ids & before
        assert float(torch.as_tensor(artefact.block(side)[1]).norm(dim=1).min()) > 0
    assert min(unknown.values()) > 0
    assert artefact.metrics["data"]["unknown_to_model"] == unknown
    with caplog.at_level(logging.WARNING):
        published = publish(lineage, artefact)
    sentence = next(w for w in published.warnings if "no vectors" in w)
    assert f"of {unknown['query']} queries and {unknown['candidate']} candidates" in sentence
    assert sentence in caplog.text
    assert f"Version 1: {version_warnings(lineage)[1][0]}" == sentence
    reader = Reader.open(lineage.address)
    known = lineage.embeddings("candidate")[0][0].as_py()
    embedded = reader.embed([new["candidate"][0], known], side="candidate")
    assert embedded.missing.to_pylist() == [new["candidate"][0]]


def test_the_test_of_a_frozen_model_counts_new_ids_as_unknown(
    small: Recipe, first: tuple[Lineage, Corpus]
) -> None:
    lineage, corpus = first
    recipe = frozen(small, "upgrade.alone=true", "training.epochs=1", "prior.kind=version")
    split = split_for(recipe, corpus, 1, lineage.pair_history)
    known = stored_in({s: lineage.embeddings(s)[0] for s in ("query", "candidate")}, split.training)
    of_known = known["query"][split.test.query]
    ranked = split.test.where(of_known & (split.test.candidate >= 0))
    artefact = upgrade(recipe, lineage, corpus, progress=False)
    data = artefact.metrics["data"]
    assert data["unknown_queries"] == split.unknown_queries + int((~of_known).sum())
    assert data["unknown_queries"] > split.unknown_queries
    misses = int((split.test.candidate[of_known] < 0).sum())
    new = int((~known["candidate"][ranked.candidate]).sum())
    assert data["unknown_test_candidates"] == misses + new > misses
    assert data["candidates"] == int(known["candidate"].sum())
    # The model that is trained alone knows new ids, and is tested on the same queries.
    assert artefact.metrics["metrics"]["alone"]["recall@20"] > 0
    facts = ReportedVersion(recipe, lineage, corpus, 1).facts(artefact)
    assert isinstance(facts.spectra, dict)
    assert facts.spectra["candidate"].entities == len(ids_of(artefact, "candidate"))
    publish(lineage, artefact)
    assert evaluate(recipe, lineage, corpus=corpus)["model"] == pytest.approx(
        artefact.metrics["metrics"]["model"]
    )


def test_a_comparison_of_methods_keeps_all_objects(
    small: Recipe, first: tuple[Lineage, Corpus]
) -> None:
    lineage, corpus = first
    recipe = frozen(small)
    artefact = upgrade(recipe, lineage, corpus, progress=False, keep_unknown=True)
    training = split_for(recipe, corpus, 1, lineage.pair_history).training
    assert ids_of(artefact, "query") == set(training.queries.vocabulary.keys.to_pylist())
    assert "unknown_to_model" not in artefact.metrics["data"]
    # Objects that it does not know have vectors of zeros, and no limit refuses these alone.
    unknown = sum(artefact.unknown.values())
    assert unknown > 0.05 * sum(len(ids_of(artefact, s)) for s in ("query", "candidate"))
    few = Lineage.create(lineage.path.parent / "few")
    few.publish(replace(artefact, transform=None, error=None, follows=None, canaries={}))
    sides = ("query", "candidate")
    assert unknown == sum(int((few.embeddings(s)[1] == 0).all(1).sum()) for s in sides)


def test_a_feature_that_the_model_knows_is_enough(small: Recipe, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    rows = [(int(a), int(b)) for a, b in torch.randint(40, (900, 2), generator=draw)]
    table = pa.table({"query": [a for a, _ in rows], "candidate": [b for _, b in rows]})
    genres = pa.table({"id": range(80), "genre": [f"g{i % 5}" for i in range(80)]})
    more = [(a, b + 40) for a, b in rows[:300]] + [(a + 40, b) for a, b in rows[:300]]
    both = pa.concat_tables(
        [table, pa.table({"query": [a for a, _ in more], "candidate": [b for _, b in more]})]
    )
    recipe = Recipe.of(
        {
            "data": {"kind": "python"},
            "model": {"kind": "two_tower", "dim": 8, "hidden": [8]},
            "training": {"epochs": 1},
        }
    )
    before = Corpus.from_tables(table, None, genres)
    after = Corpus.from_tables(both, None, genres)
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(recipe, before, progress=False))
    artefact = upgrade(frozen(recipe), lineage, after, progress=False)
    assert max(ids_of(artefact, "candidate")) > 40  # new, and described
    assert max(ids_of(artefact, "query")) < 40  # new, and of no feature
    assert artefact.metrics["data"]["unknown_to_model"]["candidate"] == 0


@pytest.mark.parametrize("prepared", [False, True])
def test_a_corpus_of_known_entities_has_all_of_them_and_the_interactions_between_them(
    tmp_path: Path, prepared: bool
) -> None:
    pairs = {"query": [1, 2, 1, 3, 4], "candidate": [10, 11, 12, 12, 13], "value": [1, 2, 3, 4, 5]}
    corpus = Corpus.from_tables(pa.table(pairs))
    if prepared:
        corpus = load_prepared(write_prepared(corpus, tmp_path / "prepared"))
    known = {"query": torch.tensor([1, 1, 0, 1]), "candidate": torch.tensor([1, 0, 1, 0])}
    known = {side: marks.bool() for side, marks in known.items()}
    assert unknown_counts(known) == {"query": 1, "candidate": 2}
    narrow, places = corpus_of_known(corpus, known)
    assert type(narrow) is type(corpus)
    assert len(narrow) == 2
    # Queries 2 and 4 met unknown candidates alone: they stay, after the others.
    assert narrow.queries.vocabulary.keys.to_pylist() == [1, 2, 4]
    assert narrow.candidates.vocabulary.keys.to_pylist() == [10, 12]
    assert places["query"].tolist() == [0, 1, -1, 2]
    assert places["candidate"].tolist() == [0, -1, 1, -1]
    assert narrow.counts("query").tolist() == [2, 0, 0]
    assert narrow.column("value").tolist() == [1, 3]
    assert narrow.has_pairs(torch.tensor([0, 0, 2]), torch.tensor([0, 1, 1])).tolist() == [
        True,
        True,
        False,
    ]
    assert narrow.repeats == 0


def test_of_one_vocabulary_an_entity_is_known_as_both(tmp_path: Path) -> None:
    pages = pa.table({"query": ["a", "b", "c"], "candidate": ["b", "c", "a"]})
    corpus = Corpus.from_tables(pages, shared_ids=True)
    ids = {"query": pa.array(["a", "b"]), "candidate": pa.array(["b", "a", "c"])}
    known = stored_in(ids, corpus)
    narrow, _ = corpus_of_known(corpus, known)
    assert narrow.queries.vocabulary is narrow.candidates.vocabulary
    assert narrow.queries.vocabulary.keys.to_pylist() == ["a", "b"]
    assert len(narrow) == 1


def test_what_is_wholly_known_stays_as_it_is_and_what_is_not_at_all_is_untested(
    small: Recipe, first: tuple[Lineage, Corpus]
) -> None:
    lineage, corpus = first
    split = random_split(corpus, share=0.2, held_out=HeldOut("salt"))
    known = known_to(load_encoder(lineage, 0), split.training)
    assert not known["query"].all()
    everything = {side: torch.ones_like(marks) for side, marks in known.items()}
    assert split_of_known(split, everything) is split
    assert with_known_queries(split, everything) is split
    nothing = {**everything, "query": torch.zeros_like(known["query"])}
    for narrowed in (split_of_known(split, nothing), with_known_queries(split, nothing)):
        assert narrowed.untested == UNTESTED
        assert len(narrowed.test) == 0
        assert narrowed.unknown_queries == split.unknown_queries + len(split.test)
