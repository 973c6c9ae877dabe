"""A lineage from its first version on: published, opened again, and read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.artefacts import artefact, shop_of_three
from tests.support.encoders import lineage_with_encoder, without_recorded_pairs
from tests.support.forging import forge
from tests.support.lineages import lineage_of, vectors_of
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.data.pair_hash import TrainedPairs
from evergram.errors import (
    DataError,
    EvergramError,
    FormatError,
    IntegrityError,
    LineageError,
    ShapeError,
    UnknownVersionError,
)
from evergram.lineage.artefact import Artefact
from evergram.lineage.catalog import Catalog, PairHistory
from evergram.lineage.lineage import Lineage
from evergram.vector_files.base import provenance_of
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.shards import Shards
from evergram.vector_files.writers import read_embeddings


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 to 2, of dims 2, 3 and 4."""
    return shop_of_three(tmp_path / "lineage")


def test_a_published_version_is_read_back(lineage: Lineage) -> None:
    again = Lineage.open(lineage.path)
    assert [(m.version, m.dim, m.name) for m in again.versions] == [
        (0, 2, "shop@v0"),
        (1, 3, "shop@v1"),
        (2, 4, "shop@v2"),
    ]
    published = artefact(4, 3, seed=2)
    ids, vectors = again.embeddings("candidate")
    assert ids.equals(published.block("candidate")[0])
    assert torch.equal(vectors, published.block("candidate")[1])
    record, state, vocabularies = again.encoder_parts(1)
    assert record.kind == "factorization"
    assert torch.equal(state["query.weight"], artefact(3, 2, seed=1).block("query")[1])
    assert vocabularies["candidate.id"].keys.equals(pa.array([10, 20]))
    assert again.metrics(0) == {"metrics": {"model": {"recall@20": 0.5}}}
    canary = pq.read_table(again.path / "versions" / "0" / "canary.parquet")
    assert canary["id"].to_pylist() == ["a", "10"]


def test_a_version_or_side_that_is_not_there_is_named(lineage: Lineage, tmp_path: Path) -> None:
    with pytest.raises(UnknownVersionError, match="its versions are: 0, 1, 2"):
        lineage.view(3)
    with pytest.raises(LineageError, match="no side 'item'"):
        lineage.embeddings("item")
    with pytest.raises(LineageError, match="not a lineage"):
        Lineage.open(tmp_path)
    with pytest.raises(LineageError, match="already holds"):
        Lineage.create(lineage.path)
    with pytest.raises(UnknownVersionError, match="no version yet"):
        _ = Lineage.create(tmp_path / "new").newest
    assert not (tmp_path / "new").exists()


def test_a_view_is_the_product_of_the_transforms(lineage: Lineage) -> None:
    steps = []
    for published in (artefact(3, 2, seed=1), artefact(4, 3, seed=2)):
        assert isinstance(published.transform, LinearTransform)
        steps.append(published.transform.weight.detach())
    z = artefact(4, 3, seed=2).block("query")[1]
    expected = {2: z, 1: z @ steps[1].T, 0: z @ steps[1].T @ steps[0].T}
    for version, vectors in expected.items():
        view = lineage.view(version)
        ids, read = view.embeddings("query")
        assert ids.to_pylist() == ["a", "b", "c"]
        torch.testing.assert_close(read, vectors)
        assert (view.version, view.source, view.dim) == (version, 2, vectors.shape[1])
    assert torch.equal(lineage.view().embeddings("query")[1], z)


def test_an_export_is_what_its_suffix_says_and_is_not_written_over(
    lineage: Lineage, tmp_path: Path
) -> None:
    path = tmp_path / "out.npy"
    view = lineage.view(0)
    assert view.export(path, "query") == 3
    assert np.load(path).tolist() == view.embeddings("query")[1].tolist()
    assert open_embeddings(path).ids().to_pylist() == ["a", "b", "c"]
    with pytest.raises(DataError, match="is there already and is not written over"):
        view.export(path, "query")
    assert view.export(path, "query", overwrite=True) == 3


def test_shards_have_the_rows_of_a_view_and_those_that_are_there_are_kept(
    lineage: Lineage, tmp_path: Path
) -> None:
    view, shards = lineage.view(0), Shards(tmp_path / "as_v0", 2)
    first = view.export_shards(Shards(shards.folder, 2, only=1), "query", batch=1)
    assert (first.written, first.kept, first.missing) == ([1], [], [0])
    both = view.export_shards(shards, "query", batch=2)
    assert (both.rows, both.written, both.kept, both.missing) == (3, [0], [1], [])
    ids, vectors = view.embeddings("query")
    files = [open_embeddings(shards.path(number)) for number in (0, 1)]
    blocks = [block for file in files for block in file.blocks(2)]
    assert pa.concat_arrays([block[0] for block in blocks]).equals(ids)
    # A library may sum the product of one row in another order than that of several.
    torch.testing.assert_close(torch.cat([block[1] for block in blocks]), vectors)
    marks = provenance_of(view.fingerprint, view.computed_from)
    assert [file.provenance for file in files] == [marks, marks]
    with pytest.raises(DataError):
        lineage.view(1).export_shards(shards, "query")
    anew = lineage.view(1).export_shards(shards, "query", overwrite=True)
    assert (anew.written, anew.kept) == ([0, 1], [])


def test_a_row_is_read_like_all_rows_in_a_tensor_or_an_array(lineage: Lineage) -> None:
    view = lineage.view(0)
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    truth = rows.double() @ lineage.chain.matrix(2, 0).T
    torch.testing.assert_close(view.transform(rows).double(), truth, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(view.transform(rows[0]).double(), truth[0], rtol=1e-5, atol=1e-6)
    read = view.transform(rows.numpy())
    np.testing.assert_allclose(read, truth.numpy(), rtol=1e-5, atol=1e-6)
    backwards = view.transform(rows.numpy()[::-1])
    np.testing.assert_allclose(backwards, truth.numpy()[::-1], rtol=1e-5, atol=1e-6)
    assert view.transform(rows.numpy().astype(">f8")).dtype == np.float64


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.zeros((2, 4), np.int64), r"floats in a tensor .* an array of int64 was given"),
        (torch.zeros(2, 4, dtype=torch.int32), r"a tensor of torch\.int32 was given"),
        (torch.tensor(1.0), "a single number was given"),
        ([[1.0] * 4], "a list was given"),
    ],
)
def test_vectors_of_another_kind_are_refused(lineage: Lineage, vectors: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        lineage.view(0).transform(vectors)


def test_a_vector_that_is_not_finite_is_refused(lineage: Lineage) -> None:
    vectors = torch.ones(2, 4)
    vectors[1, 2] = torch.inf
    with pytest.raises(DataError, match=r"not finite \(NaN or infinity\).*leave its row out"):
        lineage.view(0).transform(vectors)


def test_shards_of_another_version_of_one_space_are_not_kept(tmp_path: Path) -> None:
    """An encoder that is kept has one fingerprint, though its vectors change with the data."""
    films = lineage_with_encoder(tmp_path / "films")
    shards = Shards(tmp_path / "out", 3)
    films.view().export_shards(shards, "candidate")
    ids, vectors = films.embeddings("candidate")
    artefact = without_recorded_pairs(films)
    moved = {**artefact.embeddings, "candidate": (ids, 2 * vectors)}
    publish_next(films, replace(artefact, embeddings=moved))
    assert films.manifest(1).fingerprint == films.manifest(0).fingerprint
    with pytest.raises(DataError, match="shards of other settings"):
        films.view().export_shards(shards, "candidate")
    written = films.view().export_shards(shards, "candidate", overwrite=True)
    assert not written.kept
    parts = [read_embeddings(path)[1] for path in sorted((tmp_path / "out").glob("*.parquet"))]
    assert torch.equal(torch.cat(parts), 2 * vectors)


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "ü", "a\n", "x" * 129, "shop@v0"])
def test_a_lineage_without_a_proper_name_is_not_created(tmp_path: Path, name: str) -> None:
    with pytest.raises(LineageError, match="cannot be the name of a lineage"):
        Lineage.create(tmp_path / "new", name)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["lineage.json", "versions/1/manifest.json"])
def test_damaged_json_is_noticed(lineage: Lineage, name: str) -> None:
    (lineage.path / name).write_text("{")
    with pytest.raises(IntegrityError, match="damaged"):
        Lineage.open(lineage.path)


def test_a_later_format_is_refused(lineage: Lineage) -> None:
    path = lineage.path / "lineage.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 99}))
    with pytest.raises(FormatError, match="format_version 99"):
        Lineage.open(lineage.path)


def test_a_version_in_the_place_of_another_is_refused(lineage: Lineage) -> None:
    versions = lineage.path / "versions"
    shutil.rmtree(versions / "1")
    shutil.copytree(versions / "2", versions / "1")
    with pytest.raises(IntegrityError, match="another version"):
        Lineage.open(lineage.path)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LineageError, match=r"file is a file; a lineage is a folder"):
        Catalog.create(tmp_path / "file")
    assert not Catalog.exists(tmp_path / "file")


def test_vectors_of_another_version_than_they_are_said_to_be_of_are_refused(
    lineage: Lineage,
) -> None:
    catalog = Catalog.open(lineage.path)
    own, other = catalog.manifest(1).fingerprint, catalog.manifest(0).fingerprint
    catalog.check_fingerprint(None, 1, "a.parquet")
    catalog.check_fingerprint(own, 1, "a.parquet")
    message = (
        r"a\.parquet is not of version 1 of .*, but of its version 0: its fingerprint is sha256"
    )
    with pytest.raises(LineageError, match=message):
        catalog.check_fingerprint(other, 1, "a.parquet")
    with pytest.raises(LineageError, match="but of no version of it"):
        catalog.check_fingerprint("sha256:x", 1, "a.parquet")


def test_a_recipe_is_only_of_a_version_that_was_trained(lineage: Lineage, tmp_path: Path) -> None:
    assert Catalog.open(lineage.path).recipe(1) == {"name": "x"}
    files = Catalog.open(lineage_of(tmp_path / "files", versions=1).path)
    with pytest.raises(
        LineageError, match=r"Version 0 of .* came from a file of embeddings and has"
    ):
        files.recipe(0)


def rewritten(lineage: Lineage, name: str, content: Callable[[Path], object]) -> Path:
    """A file of version 1 changed, and its hash in the manifest with it."""
    path = lineage.path / "versions/1" / name
    content(path)

    def change(facts: dict[str, Any]) -> None:
        facts["files"][name] = hashlib.sha256(path.read_bytes()).hexdigest()

    forge(lineage.path / "versions/1/manifest.json", change)
    return lineage.path


def tensors(**changed: torch.Tensor | None) -> Callable[[Path], None]:
    """A file of tensors with some others in their place, or without them."""

    def write(path: Path) -> None:
        changed_tensors = {**load_file(path), **changed}
        save_file({k: v for k, v in changed_tensors.items() if v is not None}, path)

    return write


def column(name: str, values: list[Any] | None) -> Callable[[Path], None]:
    """A Parquet file with another column in its place, or without it."""

    def write(path: Path) -> None:
        table = pq.read_table(path)
        place = table.column_names.index(name)
        table = table.remove_column(place)
        if values is not None:
            values_of_all = pa.array(values * len(table))
            table = table.add_column(place, name, values_of_all)
        pq.write_table(table, path)

    return write


NAN = torch.full((6, 8), torch.nan)


FORGED: list[tuple[str, Callable[[Path], object], Callable[[Lineage], Any]]] = [
    ("transform.safetensors", tensors(weight=NAN), lambda line: line.chain),
    ("transform.safetensors", tensors(weight=None), lambda line: line.chain),
    ("transform.safetensors", lambda path: path.write_bytes(b"x"), lambda line: line.chain),
    ("forward.safetensors", tensors(offset=None), lambda line: line.forward(0, 1)),
    ("forward.safetensors", tensors(weight=torch.ones(3)), lambda line: line.forward(0, 1)),
    (
        "moments.safetensors",
        tensors(**{"object.count": torch.ones(2)}),
        lambda line: line.moments(1),
    ),
    ("moments.safetensors", tensors(**{"object.mean": None}), lambda line: line.moments(1)),
    ("canary.parquet", column("side", None), lambda line: line.canaries(1)),
    ("canary.parquet", column("side", [[1]]), lambda line: line.canaries(1)),
    ("canary.parquet", column("id", [[1]]), lambda line: line.canaries(1)),
    ("canary.parquet", column("vector", [[1.0]]), lambda line: line.canaries(1)),
    ("canary.parquet", lambda path: path.write_bytes(b"x"), lambda line: line.canaries(1)),
    ("trained_pairs.parquet", column("pair", None), lambda line: line.pair_history),
    ("trained_pairs.parquet", column("pair", [[1]]), lambda line: line.pair_history),
    ("trained_pairs.parquet", column("pair", ["5"]), lambda line: line.pair_history),
    ("metrics.json", lambda path: path.write_text("[]"), lambda line: line.metrics(1)),
    ("metrics.json", lambda path: path.write_text("{"), lambda line: line.metrics(1)),
    ("metrics.json", lambda path: path.write_bytes(b"\xff"), lambda line: line.metrics(1)),
    (
        "metrics.json",
        lambda path: path.write_text('{"metrics": {"model": {"a": []}}}'),
        lambda line: line.metrics(1),
    ),
    ("metrics.json", lambda path: path.write_text('{"probes": [1]}'), lambda line: line.metrics(1)),
]


@pytest.mark.parametrize(
    ("name", "content", "read"), FORGED, ids=[f"{n} {i}" for i, (n, *_) in enumerate(FORGED)]
)
def test_contents_that_do_not_fit_are_an_error(
    tmp_path: Path,
    name: str,
    content: Callable[[Path], object],
    read: Callable[[Lineage], Any],
) -> None:
    lineage = Lineage.create(tmp_path / "line")
    ids = pa.array(range(300))
    for version in range(2):
        back = None if not version else LinearTransform.from_matrix(torch.eye(6, 8))
        vectors = vectors_of(version)
        artefact = Artefact(
            dim=vectors.shape[1],
            embeddings={"object": (ids, vectors)},
            transform=back,
            metrics={"metrics": {"model": {}}},
            recipe={},
            canaries={"object": (ids[:20], vectors[:20])},
            trained=("line", TrainedPairs(np.array([7 + version], np.uint32))),
        )
        publish_next(lineage, artefact)
    read(Lineage.open(lineage.path))
    path = rewritten(lineage, name, content)
    with pytest.raises(EvergramError, match=name):
        read(Lineage.open(path))


FILES = [
    "versions/1/encoder.safetensors",
    "versions/1/vocabularies.parquet",
    "versions/2/transform.safetensors",
    "versions/1/metrics.json",
    "embeddings/2/query.parquet",
]


def read_everything(path: Path) -> None:
    lineage = Lineage.open(path)
    for n in range(3):
        lineage.encoder_parts(n)
        lineage.metrics(n)
        lineage.view(n).embeddings("query")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_is_noticed(lineage: Lineage, name: str, damage: str) -> None:
    path = lineage.path / name
    content = bytearray(path.read_bytes())
    read_everything(lineage.path)
    if damage == "remove":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(IntegrityError, match=path.name):
        read_everything(lineage.path)


def test_a_file_is_checked_when_it_is_read(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line", versions=2)
    lineage = Lineage.open(tmp_path / "line")
    names = set(lineage.files(1))
    assert "versions/1/transform.safetensors" in names
    assert "embeddings/1/object.parquet" in names
    assert all((lineage.path / name).is_file() for name in names)
    # Only the newest version's own embeddings are stored.
    assert "embeddings/0/object.parquet" not in lineage.files(0)
    assert not any(lineage.files(1).values())
    lineage.embeddings("object")
    lineage.view(0)
    checked = {name for name, done in lineage.files(1).items() if done}
    assert checked == {"embeddings/1/object.parquet", "versions/1/transform.safetensors"}
    lineage.check()
    assert all(lineage.files(1).values())
    assert all(lineage.files(0).values())
    assert not any(Lineage.open(tmp_path / "line").files(1).values())
    with pytest.raises(UnknownVersionError):
        lineage.files(2)


def test_a_damaged_file_is_not_said_to_be_checked(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=2)
    name = "versions/1/transform.safetensors"
    (lineage.path / name).write_bytes(b"damaged")
    lineage = Lineage.open(tmp_path / "line")
    with pytest.raises(IntegrityError):
        lineage.view(0)
    assert lineage.files(1)[name] is False


def test_every_file_that_is_checked_is_listed(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1)
    on_disk = {p.relative_to(lineage.path).as_posix() for p in lineage.path.rglob("*")}
    files = {name for name in on_disk if (lineage.path / name).is_file()} - {".lock"}
    assert set(lineage.checked_files) == files


def pairs(*marks: int) -> TrainedPairs:
    return TrainedPairs(np.array(marks, np.uint32))


def add(lineage: Lineage, number: int, trained: tuple[str, TrainedPairs] | None) -> None:
    version = artefact(number + 2, number + 1 if number else None)
    publish_next(lineage, dataclasses.replace(version, trained=trained), promote=False)


def test_all_versions_but_the_withdrawn_count(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "shop")
    assert (lineage.pair_history.salt, len(lineage.pair_history.trained)) == (None, 0)
    for number, marks in enumerate([(1, 5), (5, 7), (9,)]):
        add(lineage, number, ("salt", pairs(*marks)))
        lineage.label("kept", number if number < 2 else 1)
    history = lineage.pair_history
    assert (history.salt, history.untested) == ("salt", None)
    assert history.trained.marks.tolist() == [1, 5, 7, 9]
    lineage.withdraw(2, "a fault")
    assert Lineage.open(lineage.path).pair_history.trained.marks.tolist() == [1, 5, 7]


def test_one_version_without_its_pairs_leaves_nothing_to_test_on(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "shop")
    add(lineage, 0, ("salt", pairs(1)))
    add(lineage, 1, None)
    untested = lineage.pair_history.untested
    assert untested is not None
    assert untested.startswith(f"No test figure: the training pairs of version 1 of {lineage.path}")


def test_only_new_pairs_of_the_same_salt_are_recorded() -> None:
    history = PairHistory("salt", pairs(1, 5))
    new = history.new(("salt", pairs(1, 2, 5, 9)))
    assert new is not None
    assert new.marks.tolist() == [2, 9]
    assert history.new(("another", pairs(2))) is None
    assert history.new(None) is None
    assert PairHistory("salt", untested="Not known.").new(("salt", pairs(2))) is None
    first = PairHistory().new(("any", pairs(2)))
    assert first is not None
    assert first.marks.tolist() == [2]


def test_a_side_that_comes_block_by_block_is_joined_in_order() -> None:
    blocks = [(pa.array([1, 2]), torch.ones(2, 3)), (pa.array([3]), torch.zeros(1, 3))]
    version = replace(artefact(3), embeddings={"candidate": lambda: iter(blocks)})
    for _ in range(2):
        ids, vectors = version.block("candidate")
        assert ids.to_pylist() == [1, 2, 3]
        assert torch.equal(vectors, torch.tensor([[1.0] * 3, [1.0] * 3, [0.0] * 3]))
