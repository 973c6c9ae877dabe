"""A small program of a user, as mypy --strict sees it; `test_user_project.py` checks it so."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

import evergram
from evergram import Artefact, Client, Corpus, Lineage, Reader, Recipe, View
from evergram.data import Vocabulary
from evergram.releasing import Published
from evergram.retrieval import Embedded
from evergram.stores import Hits, ReadableStore, Store, open_store


def first_version(recipe: Recipe, table: pa.Table, folder: Path) -> Lineage:
    corpus = Corpus.of(table)
    assert_type(corpus.counts("query"), torch.Tensor)
    assert_type(corpus.queries.vocabulary, Vocabulary)
    artefact = evergram.train(recipe, corpus, device="cpu")
    assert_type(artefact, Artefact)
    lineage = Lineage.create(folder, recipe.name)
    assert_type(evergram.publish(lineage, artefact), Published)
    return lineage


def next_version(recipe: Recipe, lineage: Lineage) -> int:
    corpus = evergram.load_corpus(recipe)
    artefact = evergram.upgrade(recipe, lineage, corpus)
    return evergram.publish(lineage, artefact, max_degradation=5.0).version


def read_as_version_0(lineage: Lineage) -> npt.NDArray[np.floating[Any]]:
    view = lineage.view(version=0)
    assert_type(view, View)
    _, vectors = view.embeddings("candidate")
    assert_type(vectors, torch.Tensor)
    assert_type(view.transform(vectors), torch.Tensor)
    return view.transform(vectors.numpy())


def read_from_stores(lineage: Lineage, address: str) -> list[Hits]:
    with open_store(address) as store:
        assert_type(store, ReadableStore)
    with open_store(address, create="int64") as own:
        assert_type(own, Store)
    reader = Reader.open(lineage, {"candidate": address})
    embedded = reader.embed([12, 7], version="stable")
    assert_type(embedded, Embedded)
    return reader.search(embedded.vectors, k=3, metric="cosine")


def read_over_http(url: str) -> dict[int, int]:
    client = Client(url, token="…")
    embedded = client.embed(["a", "b"], version=0, side="query")
    assert_type(embedded, Embedded)
    return embedded.counts


def rooms_are_attributes() -> type[Vocabulary]:
    return evergram.data.Vocabulary
