"""Sidecars: stored rows are read as the old vectors, from whole files of the lineage."""

from __future__ import annotations

import json
import logging
import os
import shutil
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.support.agreement import scores_of
from tests.support.embedding_files import file_of, id_names, randn
from tests.support.store_kinds import STORES
from torch import Tensor

from evergram.errors import DataError, IntegrityError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.releasing.align import AlignSettings, align
from evergram.retrieval.fill import fill
from evergram.retrieval.reader import Metric, Reader, SearchOptions
from evergram.retrieval.version_sidecar import (
    KEY,
    MARKS,
    TOLERANCE,
    SidecarFiles,
    VersionSidecar,
    content_digest,
    make_sidecar,
    marks_of,
    same_marks,
)
from evergram.stores.store import Rows
from evergram.vector_files.open_embeddings import EmbeddingFile, open_embeddings

ROWS, DIMS, SIDE = 1500, (8, 10, 12), "object"
METRICS: list[Metric] = ["ip", "l2", "cosine"]
CALIBRATED: Any = {"scores": "calibrated", "query_vectors": "own"}
AFFINE = AlignSettings("affine")


@dataclass(frozen=True)
class Made:
    """The lineage, the vectors of each version in the order of the ids, and sidecars by version."""

    lineage: Lineage
    ids: pa.Array
    vectors: list[Tensor]
    folder: Path
    sidecars: dict[int, Path]

    def file(self, version: int) -> EmbeddingFile:
        return open_embeddings(self.folder / f"v{version}.parquet")

    def others(self) -> list[int]:
        """The rows whose vectors of version 1 the lineage does not keep to compare."""
        kept = set(self.lineage.canaries(1)[SIDE][0].to_pylist())
        return [n for n, i in enumerate(self.ids.cast(pa.string()).to_pylist()) if i not in kept]


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    of_texts = getattr(request, "param", "string") == "string"
    meaning = randn(0, ROWS, 6)
    vectors = [
        torch.tanh(meaning @ randn(10 + version, 6, dim)) + 0.5 * randn(20 + version, ROWS, dim)
        for version, dim in enumerate(DIMS)
    ]
    numbers = torch.randperm(ROWS, generator=torch.Generator().manual_seed(9)).tolist()
    ids = pa.array([f"id{n}" for n in numbers] if of_texts else numbers)
    lineage = Lineage.create(folder / "line", "line")
    files = [file_of(folder / f"v{n}.parquet", v, ids) for n, v in enumerate(vectors)]
    sidecars = {version: folder / f"{version}.sidecar" for version in (1, 2)}
    for version, path in sidecars.items():
        align(files[version - 1], files[version], lineage, AFFINE)
        make_sidecar(lineage, files[version - 1], size=6).save(path)
    return Made(lineage, ids, vectors, folder, sidecars)


def error(read: np.ndarray, true: Any) -> float:
    return float(np.linalg.norm(read - np.asarray(true)) / np.linalg.norm(true))


BOTH_IDS = pytest.mark.parametrize("made", ["string", "int64"], indirect=True)


@BOTH_IDS
def test_rows_are_read_as_the_old_vectors_and_nearer_than_by_the_way_back(made: Made) -> None:
    with (
        closing(Reader.open(made.lineage)) as plain,
        closing(Reader.open(made.lineage, sidecars=list(made.sidecars.values()))) as reader,
    ):
        for version in (2, 1, 0):
            true = made.vectors[version].numpy()
            by_chain = plain.embed(made.ids, version).vectors
            embedded = reader.embed(made.ids, version)
            assert set(embedded.counts) == {2}
            if version == 2:
                np.testing.assert_array_equal(embedded.vectors, by_chain)
            else:
                assert error(embedded.vectors, true) < 0.25 * error(by_chain, true)
            if version == 1:
                stated = VersionSidecar.open(made.sidecars[2])
                assert error(embedded.vectors, true) == pytest.approx(stated.error, rel=1e-4)
                assert error(by_chain, true) == pytest.approx(stated.transform_error, rel=1e-4)
        # In another order, some twice, one that is not stored.
        some = [made.ids[n].as_py() for n in (7, 3, 7)]
        asked = reader.embed([*some, "none" if isinstance(some[0], str) else -5], 1)
        whole = reader.embed(made.ids, 1).vectors
        np.testing.assert_allclose(asked.vectors[:3], whole[[7, 3, 7]], rtol=1e-6)
        assert not asked.vectors[3].any()
    # A step without a sidecar is the way back.
    with closing(Reader.open(made.lineage, sidecars=[made.sidecars[2]])) as reader:
        expected = reader.transform(reader.embed(made.ids, 1).vectors, 1, 0)
        read = reader.embed(made.ids, 0).vectors
        np.testing.assert_allclose(read, expected, rtol=1e-5, atol=1e-6)
    # Codes of version 1 say nothing of rows of version 2 that were not read by codes themselves.
    with (
        closing(Reader.open(made.lineage, sidecars=[made.sidecars[1]])) as reader,
        closing(Reader.open(made.lineage)) as plain,
    ):
        same = plain.embed(made.ids, 0).vectors
        np.testing.assert_array_equal(reader.embed(made.ids, 0).vectors, same)


@pytest.mark.parametrize("metric", METRICS)
def test_a_search_ranks_by_what_is_read(made: Made, metric: Metric) -> None:
    queries = made.vectors[0][:5].numpy() + 0.1
    files = list(made.sidecars.values())
    rows = {id_: row for row, id_ in enumerate(made.ids.to_pylist())}
    with closing(Reader.open(made.lineage, sidecars=files)) as reader:
        scores = scores_of(metric, queries, reader.embed(made.ids, 0).vectors)
    for depth in (ROWS, 300):
        with closing(Reader.open(made.lineage, sidecars=SidecarFiles(files, depth))) as reader:
            hits = reader.search(queries, 10, 0, metric=metric)
        with closing(Reader.open(made.lineage)) as plain:
            narrow, store = queries.astype(np.float32), plain.store()
            asked = SearchOptions(0, SIDE, metric)
            proposed = plain._best(store, store.filled(), narrow, depth, asked, True)
            if metric != "cosine":
                nearest = plain.search(queries, depth, 0, metric=metric)
                assert [h.ids for h in proposed] == [h.ids for h in nearest]
        for own, near, of_query in zip(scores, proposed, hits, strict=True):
            places = sorted((rows[i] for i in near.ids.to_pylist()), key=lambda n: -own[n])
            assert of_query.ids.to_pylist() == [made.ids[n].as_py() for n in places[:10]]
            np.testing.assert_allclose(of_query.scores, own[places[:10]], rtol=1e-4, atol=1e-5)
            assert set(of_query.versions.tolist()) == {2}
    # More than the depth, among some, and at the version of the rows.
    with closing(Reader.open(made.lineage, sidecars=SidecarFiles(files, 3))) as reader:
        among = made.ids.slice(0, 50)
        (few,) = reader.search(queries[:1], 50, 0, metric=metric, ids=among)
        first_rows = sorted(range(50), key=lambda n: -scores[0][n])
        assert few.ids.to_pylist() == [among[n].as_py() for n in first_rows]
        (first,) = reader.search(made.vectors[2][:1].numpy(), 3, 2, metric="l2")
        assert first.ids[0].as_py() == made.ids[0].as_py()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("made", ["int64"], indirect=True)
def test_a_store_with_an_index_is_read_and_searched_by_sidecars(made: Made, tmp_path: Path) -> None:
    files = SidecarFiles([*made.sidecars.values()], depth=ROWS)
    with STORES["lance"](tmp_path, "int64") as store:
        fill(made.lineage, store, SIDE)
        store.build_index()
        reader, read = Reader(made.lineage, {SIDE: store}, sidecars=files), made.vectors[2].numpy()
        for version in (1, 0):
            # Step by step, without a reader.
            sidecar = VersionSidecar.open(made.sidecars[version + 1])
            read = sidecar.read(sidecar.places(made.ids), read)
            own = reader.embed(made.ids, version).vectors
            np.testing.assert_allclose(own, read, rtol=1e-4, atol=1e-4)
            queries = made.vectors[version][:3].numpy()
            for metric in METRICS:
                hits = reader.search(queries, 5, version, metric=metric)
                for of_query, row in zip(hits, scores_of(metric, queries, read), strict=True):
                    best = np.argsort(-row)[:5]
                    assert of_query.ids.to_pylist() == made.ids.take(best).to_pylist()
                    np.testing.assert_allclose(of_query.scores, row[best], rtol=1e-3, atol=1e-3)


def test_an_object_that_was_embedded_anew_between_two_sidecars_goes_on_by_the_way_back(
    made: Made, tmp_path: Path
) -> None:
    anew = made.others()[:5]
    between = made.vectors[1].clone()
    between[anew] += 0.5
    changed = file_of(tmp_path / "between.parquet", between, made.ids)
    make_sidecar(made.lineage, changed, size=6).save(tmp_path / "2.sidecar")
    paths = [made.sidecars[1], tmp_path / "2.sidecar"]
    with closing(Reader.open(made.lineage, sidecars=paths)) as reader:
        as_one, as_none = (reader.embed(made.ids, v).vectors for v in (1, 0))
        way_back = reader.transform(as_one[anew], 1, 0)
        np.testing.assert_allclose(as_none[anew], way_back, rtol=1e-4, atol=1e-5)
        rest = [n for n in range(ROWS) if n not in anew]
        assert error(as_none[rest], made.vectors[0].numpy()[rest]) < 0.15


def test_calibrated_scores_are_of_the_way_back(made: Made) -> None:
    queries = made.vectors[1][:3].numpy()
    with (
        closing(Reader.open(made.lineage)) as plain,
        closing(Reader.open(made.lineage, sidecars=[made.sidecars[2]])) as reader,
    ):
        expected, got = (r.search(queries, 5, 1, **CALIBRATED) for r in (plain, reader))
        for one, two in zip(expected, got, strict=True):
            assert one.ids.equals(two.ids)
            np.testing.assert_array_equal(one.scores, two.scores)


def test_sidecars_of_others_are_refused(made: Made, tmp_path: Path) -> None:
    other = Lineage.create(tmp_path / "other", "other")
    files = [file_of(tmp_path / f"{n}.parquet", randn(n, 900, 4)) for n in range(3)]
    for past, new in pairwise(files):
        align(past, new, other, AFFINE, max_error=float("inf"))
    for lineage in (Lineage.create(tmp_path / "empty", "empty"), other):
        with pytest.raises(IntegrityError, match="from version 2 to 1 of another lineage"):
            SidecarFiles(made.sidecars[2]).read(lineage)
    for path in (made.folder / "v0.parquet", tmp_path / "none"):
        with pytest.raises(DataError, match=str(path)):
            SidecarFiles(path).read(made.lineage)
    with pytest.raises(DataError, match="is empty"):
        SidecarFiles([""])


def test_a_folder_has_what_is_in_it_now(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files, used = SidecarFiles(str(tmp_path)), tmp_path / "2.safetensors"
    stamps = [files.stamps()]
    assert not files.read(made.lineage).apply(SIDE, 1, [2])
    shutil.copy(made.sidecars[2], used)
    stamps.append(files.stamps())
    assert files.read(made.lineage).apply(SIDE, 1, [2])
    assert "version 2 of side 'object', read as version 1 by 6 bytes" in caplog.text
    caplog.clear()
    assert files.read(made.lineage).apply(SIDE, 1, [2])
    assert not caplog.records  # nothing is news
    # Another file of that name, one that is no sidecar, and one that is none by its name.
    shutil.copy(made.sidecars[1], used)
    for name in ("old.safetensors", "old.parquet"):
        shutil.copy(made.folder / "v0.parquet", tmp_path / name)
    stamps.append(files.stamps())
    read = files.read(made.lineage)
    assert read.apply(SIDE, 0, [1])
    assert not read.apply(SIDE, 1, [2])
    (problem,) = files.problems
    assert "old.safetensors" in problem
    assert caplog.text.count(problem) == 1
    used.unlink()
    stamps.append(files.stamps())
    assert not files.read(made.lineage).apply(SIDE, 0, [1])
    assert caplog.text.count(f"{used} is gone") == 1
    assert len(set(stamps)) == len(stamps)


def test_what_is_no_whole_file_is_left_out(made: Made, tmp_path: Path) -> None:
    # Where a file is mapped, reading past its end after it has shrunk ends the process.
    assert len(VersionSidecar.open(made.sidecars[2]).codes) == ROWS
    if (maps := Path("/proc/self/maps")).exists():
        assert str(made.sidecars[2]) not in maps.read_text()
    whole = made.sidecars[2].read_bytes()
    parts = {"empty": b"", "start": whole[:5], "most": whole[:-1], "text": b"[]" * 40}
    for name, content in parts.items():
        (tmp_path / f"{name}.safetensors").write_bytes(content)
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "nowhere")
    files = SidecarFiles([tmp_path])
    assert not files.read(made.lineage).apply(SIDE, 1, [2])
    assert len(files.problems) == 7
    for path in (tmp_path / "pipe.safetensors", tmp_path / "start.safetensors"):
        with pytest.raises(DataError, match=str(path)):
            SidecarFiles(path).read(made.lineage)
    (tmp_path / "most.safetensors").write_bytes(whole)
    assert files.read(made.lineage).apply(SIDE, 1, [2])
    assert len(files.problems) == 6


def test_of_two_files_of_one_step_one_is_used(made: Made, tmp_path: Path) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    for path, size in ((first, 2), (second, 5)):
        make_sidecar(made.lineage, made.file(1), size=size).save(path)
    os.utime(first, ns=(1, 1))

    def used(files: SidecarFiles, path: Path) -> bool:
        with closing(Reader.open(made.lineage, sidecars=files)) as reader:
            read = error(reader.embed(made.ids, 1).vectors, made.vectors[1])
        return VersionSidecar.open(path).error == pytest.approx(read, rel=1e-4)

    files = SidecarFiles([tmp_path, first])
    assert used(files, second), "the later one"
    assert f"{first} is of side 'object' and version 2, as {second} is" in files.problems[0]
    # One file by several names is one.
    first.unlink()
    (tmp_path / "latest.safetensors").symlink_to(second)
    (tmp_path / "sub").mkdir()
    above = tmp_path / "sub" / ".."
    files = SidecarFiles([f"{tmp_path}/", f"{tmp_path}/./", above, second, above / second.name])
    assert used(files, second)
    assert not files.problems


def test_a_withdrawn_version_ends_its_sidecars_and_nothing_else(tmp_path: Path) -> None:
    lineage, meaning = Lineage.create(tmp_path / "line", "line"), randn(0, 900, 6)
    vectors = [meaning @ randn(n, 6, 5) + 0.3 * randn(n + 5, 900, 5) for n in (1, 2, 3)]
    files = [file_of(tmp_path / f"{n}.parquet", v) for n, v in enumerate(vectors)]
    align(files[0], files[1], lineage, AFFINE, promote=False)
    path = tmp_path / "1.sidecar"
    make_sidecar(lineage, files[0], size=4).save(path)
    reader = Reader.open(lineage, sidecars=[path])
    lineage.withdraw(1, "wrong")
    with pytest.raises(IntegrityError, match=r"version 1 of .* was withdrawn"):
        Reader.open(Lineage.open(lineage.path), sidecars=[path])
    with closing(reader), closing(reader.carried(Lineage.open(lineage.path))) as after:
        assert len(after.embed(id_names(900), 0).vectors) == 900
    # The version after it follows the one before, and so does its sidecar.
    again = Lineage.open(lineage.path)
    align(files[0], files[2], again, AFFINE)
    made = make_sidecar(again, files[0], size=4)
    assert (made.version, made.target) == (2, 0)
    made.save(path)
    with closing(Reader.open(again, sidecars=[path])) as reader:
        read = reader.embed(id_names(900), 0).vectors
        assert error(read, vectors[0]) == pytest.approx(made.error)


def test_its_errors_are_those_of_reading_all_objects(
    made: Made,
) -> None:
    seen: list[tuple[int, int]] = []
    sidecar = make_sidecar(
        made.lineage, made.file(1), error=0.1, progress=lambda *counts: seen.append(counts)
    )
    assert (sidecar.version, sidecar.side, len(sidecar)) == (2, "object", ROWS)
    assert seen[-1] == (ROWS, ROWS)
    assert sidecar.error <= 0.1
    new, old = made.vectors[2].numpy(), made.vectors[1].numpy()
    read = sidecar.read(np.arange(ROWS), new)
    assert sidecar.error == pytest.approx(error(read, old))
    weight, offset = made.lineage.chain.affine(2, 1)
    back = (made.vectors[2].double() @ weight.T + offset).numpy()
    assert sidecar.transform_error == pytest.approx(error(back, old))
    assert make_sidecar(made.lineage, made.file(1), size=sidecar.sidecar.size - 1).error > 0.1
    # A byte of codes makes some rows worse.
    least = make_sidecar(made.lineage, made.file(1), size=1)
    left = np.linalg.norm(least.read(np.arange(ROWS), new) - old, axis=1)
    worse = np.mean(left > np.linalg.norm(back - old, axis=1))
    assert least.worse == pytest.approx(worse, abs=0.002)


def test_what_cannot_be_made_is_refused(made: Made, tmp_path: Path) -> None:
    def part(name: str, vectors: Tensor, rows: list[int] | None = None) -> EmbeddingFile:
        chosen = list(range(ROWS)) if rows is None else rows
        return file_of(tmp_path / f"{name}.parquet", vectors[chosen], made.ids.take(chosen))

    old, true, others = made.file(1), made.vectors[1], made.others()
    rest = [n for n in range(ROWS) if n not in others]
    # Each vector under its neighbour's id, but for those that are compared.
    rolled = true.clone()
    rolled[others] = rolled[others[1:] + others[:1]]
    refused: list[tuple[EmbeddingFile, dict[str, Any], str]] = [
        (old, {"version": 0}, "needs no sidecar"),
        (old, {"side": "query"}, "no side 'query'"),
        (made.file(0), {"version": 1}, "stored"),
        (made.file(0), {}, "its dim is 8, not 10"),
        (part("changed", true + 1), {}, r"the vector of id '.*' is another"),
        (part("rolled", rolled), {}, "the others are other vectors"),
        (part("few", true, others + rest[:19]), {}, "has 19 of the objects"),
        (part("none", true, others), {}, "none of the"),
    ]
    for file, options, named in refused:
        with pytest.raises(LineageError, match=named):
            make_sidecar(made.lineage, file, size=3, **options)
    with pytest.raises(LineageError, match="no version yet"):
        make_sidecar(Lineage.create(tmp_path / "none", "none"), old, size=3)
    for sizes in ({}, {"size": 3, "error": 0.1}):
        with pytest.raises(DataError, match="give one of the two"):
            make_sidecar(made.lineage, old, **cast(Any, sizes))


@BOTH_IDS
def test_a_file_reads_as_it_was_written(made: Made, tmp_path: Path) -> None:
    sidecar = VersionSidecar.open(made.sidecars[2])
    sidecar.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == made.sidecars[2].read_bytes()
    assert sidecar.ids.type == made.ids.type
    assert (sidecar.version, sidecar.target, sidecar.side) == (2, 1, "object")
    new = made.vectors[2].numpy()
    assert np.array_equal(sidecar.known(Rows(2, made.ids, new)), np.arange(ROWS))
    # As a store of float16 has them.
    half = new.astype(np.float16).astype(np.float32)
    assert (sidecar.known(Rows(2, made.ids, half)) >= 0).all()
    # Other vectors, each other's vectors, and other ids.
    for vectors in (new + 1, np.roll(new, 1, axis=0)):
        assert (sidecar.known(Rows(2, made.ids, vectors)) < 0).all()
    for ids in (pa.array([f"other{n}" for n in range(ROWS)]), pa.array(range(-ROWS, 0))):
        assert (sidecar.known(Rows(2, ids, new)) < 0).all()


def test_a_damaged_file_is_refused(made: Made, tmp_path: Path) -> None:
    tensors, path = load_file(made.sidecars[2]), tmp_path / "s"
    with safe_open(made.sidecars[2], "pt") as file:
        record = json.loads(file.metadata()[KEY])
    wrong: list[tuple[dict[str, Tensor], dict[str, Any]]] = [
        ({}, {"format_version": 3}),
        ({"codes": tensors["codes"][:-1].contiguous()}, {}),
        ({"codes": tensors["codes"].to(torch.int8)}, {}),
        ({"codebooks": tensors["codebooks"][1:].contiguous()}, {}),
        ({"codebooks": tensors["codebooks"].double()}, {}),
        ({"old_marks": tensors["old_marks"][:, :2].contiguous()}, {}),
        ({"codebooks": tensors["codebooks"] * torch.nan}, {}),
    ]
    for name in tensors:  # one bit
        flipped = tensors[name].clone()
        flipped.view(torch.uint8).flatten()[-1] ^= 1
        wrong.append(({name: flipped}, {"content": record["content"]}))
    for others, changed in wrong:
        content = {"content": content_digest(tensors | others)}
        save_file(tensors | others, path, {KEY: json.dumps(record | content | changed)})
        with pytest.raises(DataError, match=r"format version 3|damaged"):
            VersionSidecar.open(path)
    save_file({"codes": tensors["codes"]}, path, {KEY: json.dumps(record)})
    with pytest.raises(DataError, match="the sidecar of a version"):
        VersionSidecar.open(path)


def draws(seed: int, rows: int, dim: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 400), st.floats(1e-3, 1e3))
def test_a_vector_is_known_in_float16_and_at_length_one_again(
    seed: int, dim: int, scale: float
) -> None:
    vectors = draws(seed, 50, dim)
    vectors *= scale / np.abs(vectors).max()
    marks = marks_of(vectors)
    assert marks.shape == (50, MARKS)
    assert same_marks(vectors, marks).all()
    if scale > 0.1:  # below, float16 has few digits
        assert same_marks(vectors.astype(np.float16).astype(np.float32), marks).all()
    assert same_marks((vectors * (1 + 1e-6)).astype(np.float32), marks).all()
    few, zeros = draws(0, 3, 5), np.zeros((3, 5), np.float32)
    assert same_marks(zeros, marks_of(zeros)).all()
    assert not same_marks(zeros, marks_of(few)).any()
    assert not same_marks(few, marks_of(zeros)).any()


@pytest.mark.parametrize("distance", [0.1, 0.3, 1.4])
def test_another_vector_is_known_as_seldom_as_stated(distance: float) -> None:
    vectors, steps = draws(0, 200_000, 16), draws(1, 200_000, 16)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    steps *= distance / np.linalg.norm(steps, axis=1, keepdims=True)
    known = same_marks(vectors + steps, marks_of(vectors)).sum()
    expected = 200_000 * (0.8 * TOLERANCE / distance) ** MARKS
    assert known <= expected + 5 * expected**0.5 + 3
