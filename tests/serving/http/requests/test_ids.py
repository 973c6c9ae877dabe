"""The ids, objects, vectors and version that a request names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.dictionary_store import DictionaryStore
from tests.support.lineages import lineage_of

from evergram.errors import DataError, ShapeError, UnknownVersionError
from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.http.requests.auth import Access
from evergram.serving.http.requests.ids import (
    FEATURES,
    as_ids,
    check_count,
    missing_ids,
    model_version,
    objects_of,
    vectors_of,
)
from evergram.serving.http.requests.parsing import parse
from evergram.serving.http.requests.schemas import (
    EmbeddingsOptions,
    EmbeddingsRequest,
    TransformRequest,
)
from evergram.serving.settings import ServiceSettings

SETTINGS = ServiceSettings(max_batch=3, max_dim=4)
NUMBERS, TEXTS = DictionaryStore("int64"), DictionaryStore("string")


@pytest.mark.parametrize(
    ("keys", "ids"),
    [
        (["5", "-7", "0"], [5, -7, 0]),
        (["5", "-0", "007", "x", "1.0", "9" * 19, "9" * 999, "５", "5\n"], [5] + [None] * 8),
        ([5, 6], [5, 6]),
        (pa.array([5], pa.uint8()), [5]),
        (pa.array([], pa.null()), []),
        ([str(2**63 - 1), str(-(2**63))], [2**63 - 1, -(2**63)]),
    ],
)
def test_integers_may_be_written_as_text(keys: Any, ids: list[int]) -> None:
    assert as_ids(NUMBERS, keys) == pa.array(ids, pa.int64())


@pytest.mark.parametrize(
    ("store", "keys", "sentence"),
    [
        (NUMBERS, pa.array(["5"]), "Ids are whole numbers here; string was given"),
        (TEXTS, [5], "Ids are strings here; whole numbers were given"),
        (TEXTS, pa.array([5]), "Ids are strings here; int64 was given"),
    ],
)
def test_ids_of_another_type_are_refused(store: Any, keys: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        as_ids(store, keys)


def test_digits_are_text_where_ids_are_text() -> None:
    assert as_ids(TEXTS, ["007", "7"]).to_pylist() == ["007", "7"]


def objects(body: bytes, settings: ServiceSettings = SETTINGS) -> list[Any]:
    return objects_of(parse(EmbeddingsRequest, body, settings), settings)


def test_a_single_input_becomes_a_list_of_one() -> None:
    assert objects(b'{"input": 7}') == [7]
    assert objects(b'{"input": ["a", "b"]}') == ["a", "b"]
    (described,) = objects(b'{"input": {"features": {"genre": "war"}, "id": 3}}')
    assert (described.features, described.id) == ({"genre": "war"}, 3)


def test_too_many_ids_or_features_are_refused() -> None:
    with pytest.raises(RefusedError, match="4 ids are more than the 3 of one request") as refusal:
        check_count(4, 3, "ids", "id")
    assert (refusal.value.status, refusal.value.param) == (413, "ids")
    check_count(3, 3, "ids", "id")
    described = {"features": {f"f{n}": 1 for n in range(2 * FEATURES)}}
    many = json.dumps({"input": [described, described]})
    with pytest.raises(RefusedError, match=f"more than {3 * FEATURES} features together"):
        objects(many.encode())


def vectors(body: bytes) -> Any:
    return vectors_of(parse(TransformRequest, body, SETTINGS), SETTINGS)


def test_vectors_are_rows_of_one_length() -> None:
    rows = vectors(b'{"source": 0, "vectors": [[1, 2.5], [0, -1]]}')
    np.testing.assert_array_equal(rows, np.array([[1, 2.5], [0, -1]], np.float32))
    with pytest.raises(ShapeError, match="not all of one length"):
        vectors(b'{"source": 0, "vectors": [[1, 2], [1]]}')
    with pytest.raises(RefusedError, match="A vector has 5 coordinates; at most 4 are read"):
        vectors(b'{"source": 0, "vectors": [[1, 2, 3, 4, 5]]}')
    # The reader refuses what is past float32.
    assert np.isinf(vectors(b'{"source": 0, "vectors": [[1e300]]}')).all()


def test_missing_ids_are_named_up_to_five() -> None:
    refusal = missing_ids(range(7), 9, "query")
    assert str(refusal).startswith("7 of 9 ids are not stored on side 'query': 0, 1, 2, 3, 4, …. ")
    assert "0. Leave them out" in str(missing_ids([0], 9, "query"))


def test_a_model_names_a_version(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line")
    lineage.label("canary", 1)
    everything = Access("admin")
    for model, version in (("line@v0", 0), ("line@canary", 1), ("line@newest", 2), ("line", 2)):
        assert model_version(lineage, everything, EmbeddingsOptions(model=model)) == version
    assert model_version(lineage, everything, EmbeddingsOptions(version=1)) == 1
    assert model_version(lineage, everything, EmbeddingsOptions()) == 2
    for model in ("other@v0", "line2", "@v0"):
        with pytest.raises(UnknownVersionError, match=r"There is no model '.*' here; there is 'li"):
            model_version(lineage, everything, EmbeddingsOptions(model=model))
