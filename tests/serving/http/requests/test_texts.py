"""One rule says whether the strings of a request are texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.lineages import lineage_of
from tests.support.text_encoders import ADDRESSES, encoded, text_lineage

from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.http.requests.schemas import EmbeddingsOptions
from evergram.serving.http.requests.texts import strings_are_texts, text_role
from evergram.serving.object_features import Features
from evergram.serving.settings import ServiceSettings
from evergram.vector_files.open_embeddings import open_embeddings


@pytest.fixture(scope="module")
def lineages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lineage]:
    folder = tmp_path_factory.mktemp("texts")
    return {"ids": lineage_of(folder / "ids", versions=1), "texts": text_lineage(folder)}


@pytest.mark.parametrize(
    ("lineage", "input_type", "inputs", "role"),
    [
        ("ids", None, ["a"], None),
        ("ids", "id", ["a"], None),
        ("ids", "query", ["a"], "query"),
        ("ids", None, [1], None),
        ("texts", None, ["a"], "document"),
        ("texts", "document", ["a"], "document"),
        ("texts", "query", ["a"], "query"),
        ("texts", "id", ["a"], None),
        ("texts", "id", [1], None),
        ("texts", None, [Features(features={})], None),
        ("texts", None, pa.array(["a"]), None),
        ("texts", "id", pa.array(["a"]), None),
    ],
)
def test_the_first_version_or_the_request_says_what_strings_are(
    lineage: str,
    input_type: Any,
    inputs: Any,
    role: str | None,
    lineages: dict[str, Lineage],
) -> None:
    options = EmbeddingsOptions(input_type=input_type)
    assert text_role(inputs, options, lineages[lineage], ServiceSettings()) == role


def test_a_side_is_not_said_of_texts(lineages: dict[str, Lineage]) -> None:
    """Nobody who writes "query" there is to get vectors of documents."""
    options = EmbeddingsOptions(side="object")
    with pytest.raises(RefusedError, match=r"'side' is of ids .* say with 'input_type'"):
        text_role(["a"], options, lineages["texts"], ServiceSettings())
    assert text_role(["a"], options, lineages["ids"], ServiceSettings()) is None


def test_a_later_version_with_an_encoder_changes_nothing_for_old_clients(tmp_path: Path) -> None:
    new = encoded(tmp_path, ADDRESSES[1])
    [(ids, vectors)] = new.blocks()
    from evergram.vector_files.writers import write_vectors

    write_vectors(tmp_path / "old.parquet", [(ids, vectors[:, :10])])
    lineage = Lineage.create(tmp_path / "line", "line")
    align(open_embeddings(tmp_path / "old.parquet"), new, lineage)
    assert lineage.manifest(1).text_encoder is not None
    assert not strings_are_texts(lineage)


@pytest.mark.parametrize("inputs", [[1, 2], pa.array(["a"]), [Features(features={})]])
def test_what_is_no_string_is_no_text(inputs: Any, lineages: dict[str, Lineage]) -> None:
    options = EmbeddingsOptions(input_type="query")
    with pytest.raises(RefusedError):
        text_role(inputs, options, lineages["ids"], ServiceSettings())
