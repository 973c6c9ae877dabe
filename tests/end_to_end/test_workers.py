"""What people hand to workers is opened again there: pickled, spawned or forked."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from evergram import Client, Corpus, Lineage, PretrainedEncoder, Reader, Recipe
from evergram.compatibility import Aligner, BackwardAlignment
from evergram.exporting.arrow_function import arrow_function
from evergram.gramian import GramianPenalty
from evergram.retrieval.version_sidecar import SidecarFiles
from evergram.stores.open_store import open_store
from evergram.stores.snapshot_store import SnapshotStore
from evergram.texts import open_text_encoder

IDS = [12, 7, 3]
LETTERS = "python:evergram.texts.text_encoder:letters"


@pytest.fixture
def reader(trained_lineage: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A reader of a lineage that was named from its own folder."""
    monkeypatch.chdir(trained_lineage.parent)
    opened = Reader.open("shop")
    yield opened
    opened.close()


def rows_of(reader: Reader) -> list[list[float]]:
    vectors = reader.embed(IDS, version=0, side="candidate").vectors
    nearest = reader.search(vectors, k=3, version=0, side="candidate")
    return [*vectors.tolist(), *(hits.scores.tolist() for hits in nearest)]


class Vectors(Dataset[Any]):
    """A data set whose workers read vectors."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return len(IDS)

    def __getitem__(self, place: int) -> Any:
        return self.reader.embed([IDS[place]], version=0, side="candidate").vectors[0]


def in_fork(work: Callable[[], object]) -> Any:
    """Return what a function returns in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, pickle.dumps(work()))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        content = file.read()
    os.waitpid(child, 0)
    return pickle.loads(content)


def test_a_reader_is_pickled_by_its_addresses(reader: Reader, tmp_path_factory: Any) -> None:
    before, pickled = rows_of(reader), pickle.dumps(reader)
    assert len(pickled) < 2000
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    again = pickle.loads(pickled)
    assert rows_of(again) == before
    again.close()


def test_a_forked_process_opens_a_reader_anew(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, opened = rows_of(reader), []
    for owner in (Reader, SnapshotStore):
        function = owner.open

        def spy(*arguments: Any, function: Any = function, **options: Any) -> Any:
            opened.append(function.__qualname__)
            return function(*arguments, **options)

        monkeypatch.setattr(owner, "open", spy)

    def work() -> tuple[list[list[float]], list[str]]:
        theirs = rows_of(reader)
        reader.close()
        return theirs, opened

    theirs, names = in_fork(work)
    assert theirs == before == rows_of(reader)
    assert names == ["Reader.open", "SnapshotStore.open", "SnapshotStore.open"]
    assert not opened


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_reader_works_in_a_data_loader(reader: Reader, method: str) -> None:
    loader = DataLoader(
        Vectors(reader), num_workers=1, multiprocessing_context=get_context(method), timeout=120
    )
    vectors = torch.cat(list(loader)).numpy()
    expected = reader.embed(IDS, version=0, side="candidate").vectors
    np.testing.assert_allclose(vectors, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["snapshot", "sqlite", "lance"])
def test_a_store_is_opened_again(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    address = "snapshot:here" if kind == "snapshot" else f"{kind}:here#name"
    with open_store(address, create="int64") as store:
        store.take_side("candidate")
        with pickle.loads(pickle.dumps(store)) as again:
            assert (again.absolute_address, again.side) == (store.absolute_address, "candidate")
        assert in_fork(lambda: store.side) == "candidate"


def objects(lineage: Lineage) -> Iterator[Any]:
    """Yield one of each public class that somebody may hand to a worker."""
    yield lineage
    yield lineage.view(0)
    yield arrow_function(lineage.view(0))
    yield PretrainedEncoder.of_version(lineage)
    yield lineage.chain
    yield lineage.manifest(0)
    yield Corpus.of([(1, 2), (3, 4)])
    yield Recipe.of({"data": {"kind": "synthetic"}})
    yield Client("http://127.0.0.1:9", token="t", retries=0)
    yield SidecarFiles(lineage.path)
    yield open_text_encoder(LETTERS)
    yield GramianPenalty(4)
    yield BackwardAlignment(4, 4)
    draw = np.random.default_rng(0)
    yield Aligner().fit(draw.normal(size=(300, 4)), draw.normal(size=(300, 3)))


def test_public_objects_can_be_pickled(trained_lineage: Path) -> None:
    for each in objects(Lineage.open(trained_lineage)):
        again = pickle.loads(pickle.dumps(each))
        assert type(again) is type(each)
        assert repr(again) == repr(each) or " at 0x" in repr(each)


def test_pickled_views_and_text_encoders_give_the_same_vectors(trained_lineage: Path) -> None:
    view = Lineage.open(trained_lineage).view(0)
    again = pickle.loads(pickle.dumps(view))
    assert torch.equal(again.embeddings("candidate")[1], view.embeddings("candidate")[1])
    assert (again.version, again.source, again.fingerprint) == (0, 2, view.fingerprint)
    encoder = open_text_encoder(LETTERS)
    expected = encoder.encode(["abba"]).tolist()
    assert pickle.loads(pickle.dumps(encoder)).encode(["abba"]).tolist() == expected
    assert in_fork(lambda: encoder.encode(["abba"]).tolist()) == expected
