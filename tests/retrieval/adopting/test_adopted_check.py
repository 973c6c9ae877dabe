"""Whose vectors a table holds is proved by its rows, or it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from tests.support.lineages import DIMS, lineage_of, vectors_of
from tests.support.own_stores import OWN, own_store
from tests.support.own_tables import address_of, own_table, text_of
from tests.support.postgres_server import postgres

from evergram.errors import IntegrityError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.reader import Reader


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return lineage_of(tmp_path / "line", canaries=2)


@pytest.fixture
def opened(lineage: Lineage) -> Iterator[Callable[..., Reader]]:
    """Opens a reader of a table, by its name and its versions."""
    with ExitStack() as closing:

        def open_table(table: str, versions: list[int] | None = None) -> Reader:
            reader = Reader.open(lineage, {"object": address_of(table, versions or [0])})
            closing.callback(reader.close)
            return reader

        yield open_table


def test_a_table_of_the_published_vectors_is_read(opened: Callable[..., Reader]) -> None:
    reader = opened(own_table())
    read = reader.embed([5, 299, 300], 0)
    assert np.array_equal(read.vectors[:2], vectors_of(0).numpy()[[5, 299]])
    assert read.sources.tolist() == [0, 0, -1]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ("update {} set e0 = e0 * e0", IntegrityError, r"of .* that were compared"),
        ("update {} set id = id + 1000", IntegrityError, "None of the rows"),
        ("update {} set e0 = null", IntegrityError, "no row with a vector"),
        ("delete from {}", IntegrityError, "no row with a vector"),
    ],
)
def test_other_vectors_other_ids_and_no_rows_are_refused(
    opened: Callable[..., Reader], change: str, error: type[Exception], words: str
) -> None:
    table = own_table()
    postgres().sql(change.format(table))
    with pytest.raises(error, match=words):
        opened(table)


def test_a_few_changed_texts_are_no_other_model_and_many_are(opened: Callable[..., Reader]) -> None:
    table = own_table()
    postgres().sql(f"update {table} set e0 = e0 * e0 where id % 50 = 0")
    opened(table)
    postgres().sql(f"update {table} set e0 = e0 * e0 where id % 5 = 0")
    with pytest.raises(IntegrityError, match="another model's"):
        opened(table)


def test_versions_and_dims_that_the_lineage_lacks_are_refused(
    opened: Callable[..., Reader], tmp_path: Path
) -> None:
    one = lineage_of(tmp_path / "one", 1, canaries=2)
    table = own_table(300, {0: range(300), 1: range(9)})
    with pytest.raises(LineageError, match=r"version 1, which .* does not have"):
        Reader.open(one, {"object": address_of(table, [0, 1])})
    three = lineage_of(tmp_path / "three", canaries=2)
    address = address_of(own_table(), []) + "&v1=e0"
    with pytest.raises(IntegrityError, match="6 dims as version 1; that version has 8"):
        Reader.open(three, {"object": address})


@pytest.mark.parametrize("dims", [True, False])
def test_a_column_is_checked_when_it_gets_its_first_row(
    opened: Callable[..., Reader], dims: bool
) -> None:
    """Rows that move to another version while a reader is open."""
    table = own_table(300, {0: range(300), 1: range(0)}, dims=dims)
    reader = opened(table, [0, 1])
    query = np.ones(DIMS[0], np.float32)
    moved = text_of(vectors_of(1).numpy()[8])
    postgres().sql(f"update {table} set e1 = '{moved}' where id = 8")
    assert reader.embed([8], 0).sources.tolist() == [1]
    assert len(reader.search(query, 300, 0)[0]) == 300

    other = own_table(300, {0: range(300), 1: range(0)}, dims=dims)
    reader = opened(other, [0, 1])
    postgres().sql(f"update {other} set e1 = '[1,2,3,4,5,6,7,8]' where id = 8")
    for read in (lambda: reader.embed([8], 0), lambda: reader.search(query, 3, 0)):
        with pytest.raises(IntegrityError, match=r"1 of 1 vectors .* version 1"):
            read()


def test_rows_are_proved_by_the_published_file_where_no_canary_is_there(
    lineage: Lineage,
    opened: Callable[..., Reader],
) -> None:
    # Of production alone the lineage keeps the file.
    table = own_table(300, {2: range(300)})
    postgres().sql(f"delete from {table} where id % 2 = 0")  # the canaries
    assert len(opened(table, [2]).search(np.ones(DIMS[0]), 3, 0)[0]) == 3
    postgres().sql(f"update {table} set e2 = e2 * e2")
    with pytest.raises(IntegrityError, match="were compared"):
        opened(table, [2])


def test_half_precision_is_the_same_vector(opened: Callable[..., Reader]) -> None:
    table = own_table()
    postgres().sql(f"alter table {table} alter column e0 type halfvec(6)")
    reader = opened(table)
    query = vectors_of(0).numpy()[17]
    for metric in ("l2", "cosine"):
        assert reader.search(query, 1, 0, metric=metric)[0].ids.to_pylist() == [17]


@pytest.mark.parametrize("kind", sorted(OWN))
def test_each_kind_is_proved_before_its_first_row(
    kind: str, lineage: Lineage, tmp_path: Path
) -> None:
    """Also of a version that is not production's, and of a new reader of changed vectors."""

    def some_changed(every: int) -> Callable[[int, np.ndarray], np.ndarray]:
        def change(version: int, vectors: np.ndarray) -> np.ndarray:
            vectors[::every] *= 1.5
            return vectors

        return change

    held = {0: range(300), 1: range(100)}
    address = own_store(kind, tmp_path / "few", 300, held, some_changed(30))
    with closing(Reader.open(lineage, {"object": address})) as reader:
        read = reader.embed([5, 299, 300], 0)
        assert np.allclose(read.vectors[1], vectors_of(0).numpy()[299])
        assert read.sources.tolist() == [1, 0, -1]
    address = own_store(kind, tmp_path / "many", 300, held, some_changed(4))
    with pytest.raises(IntegrityError, match=r"of .* that were compared.*another model's"):
        Reader.open(lineage, {"object": address})
    one = lineage_of(tmp_path / "one", 1, canaries=2)
    with pytest.raises(LineageError, match=r"version 1, which .* does not have"):
        Reader.open(one, {"object": own_store(kind, tmp_path / "two", 300, held)})
