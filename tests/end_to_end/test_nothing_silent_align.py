"""Files are paired by what they are of, and an alignment by chance is refused: promise 5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file
from tests.support.command import Command

from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.vector_files.writers import write_vectors

ROWS = 500


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command run in an empty folder."""
    monkeypatch.chdir(tmp_path)


def draw(seed: int, *shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def put(name: str, vectors: Any, ids: list[Any]) -> None:
    write_vectors(Path(name), [(pa.array(ids), torch.from_numpy(vectors))])


@pytest.fixture
def texts(evergram: Command) -> Any:
    """Vectors of the same objects, in two orders, and their ids."""
    new = draw(0, ROWS, 12)
    old = new @ draw(1, 12, 8) + draw(2, ROWS, 8)
    names = [f"doc{i}" for i in range(ROWS)]
    order = np.random.default_rng(3).permutation(ROWS)
    put("old.parquet", old[order], [names[i] for i in order])
    put("numbers.parquet", old[order], order.tolist())
    np.save("old.npy", old)
    np.save("new.npy", new)
    save_file({"vector": torch.from_numpy(new)}, "new.safetensors")
    put("named.parquet", new, names)
    Path("names.txt").write_text("\n".join(names) + "\n")
    return evergram


@pytest.mark.parametrize(
    ("old", "new", "option"),
    [
        ("old.parquet", "new.npy", "the ids of new.npy by --new-ids"),
        ("numbers.parquet", "new.npy", "the ids of new.npy by --new-ids"),
        ("old.parquet", "new.safetensors", "the ids of new.safetensors by --new-ids"),
        ("old.npy", "named.parquet", "the ids of old.npy by --old-ids"),
    ],
)
def test_5_row_numbers_beside_ids_are_refused(
    texts: Command, old: str, new: str, option: str
) -> None:
    result = texts("vectors", "align", old, new, "--lineage", "l")
    assert (result.code, result.out) == (2, "")
    assert option in result.err
    assert not Path("l").exists()


def test_5_named_rows_are_aligned_as_the_objects_that_they_are(texts: Command) -> None:
    result = texts(
        "vectors",
        "align",
        "old.parquet",
        "new.npy",
        "--new-ids",
        "names.txt",
        "--lineage",
        "l",
        "--json",
    )
    assert result.code == 0, result.err
    assert result.json["alignment"]["held_out"]["transformed"]["cosine"] > 0.8
    assert not result.json["alignment"]["pairs"]["by_row_number"]
    # A file without ids says nothing of which of them it holds, to `transform` either.
    again = texts(
        "vectors", "transform", "new.npy", "--lineage", "l", "--as", 0, "--out", "back.parquet"
    )
    assert (again.code, Path("back.parquet").exists()) == (2, False)
    assert "name the ids of new.npy by --ids" in again.err
    named = ("--ids", "names.txt", "--out", "back.parquet")
    assert texts("vectors", "transform", "new.npy", "--lineage", "l", "--as", 0, *named).code == 0
    refused = texts("vectors", "align", 1, "new.npy", "--lineage", "l")
    assert (refused.code, "--new-ids" in refused.err) == (2, True)


def test_5_two_files_without_ids_are_paired_by_row_and_it_is_said(texts: Command) -> None:
    result = texts("vectors", "align", "old.npy", "new.npy", "--lineage", "l")
    assert result.code == 0, result.err
    assert "paired by the numbers of their rows" in result.out
    # What has begun so goes on so.
    refused = texts("vectors", "align", 1, "named.parquet", "--lineage", "l")
    assert refused.code == 2
    assert "evergram vectors import FILE --ids IDS" in refused.err
    assert texts("vectors", "align", 1, "old.npy", "--lineage", "l").code == 0


def test_5_vectors_that_say_nothing_are_refused_by_default(texts: Command) -> None:
    line = np.outer(draw(4, ROWS), draw(5, 12)).astype(np.float32)
    bad = {
        "random": (draw(6, ROWS, 12) + 5, "says next to nothing of old.npy"),
        "mixed": (np.load("new.npy")[::-1].copy(), "says next to nothing of old.npy"),
        "constant": (np.ones((ROWS, 12), np.float32), "all of them are the same"),
        "zero": (np.zeros((ROWS, 12), np.float32), f"{ROWS} of {ROWS} are zero"),
        "line": (line, "all of them lie on one line"),
    }
    for name, (vectors, message) in bad.items():
        np.save(f"{name}.npy", vectors)
        for transform in ("linear", "affine", "orthogonal"):
            result = texts(
                "vectors",
                "align",
                "old.npy",
                f"{name}.npy",
                "--lineage",
                "l",
                "--transform",
                transform,
            )
            assert (result.code, result.out) == (2, ""), (name, transform)
            assert message in result.err
    result = texts(
        "vectors", "align", "constant.npy", "new.npy", "--lineage", "l", "--max-error", "inf"
    )
    assert "constant.npy has no vectors that could be aligned" in result.err
    assert not Path("l").exists()
    # Whoever knows better says so.
    assert (
        texts(
            "vectors", "align", "old.npy", "random.npy", "--lineage", "l", "--max-error", "inf"
        ).code
        == 0
    )


def test_5_a_limit_of_the_error_and_how_much_better_than_chance(texts: Command) -> None:
    two = ("vectors", "align", "old.npy", "new.npy", "--lineage", "l")
    refused = texts(*two, "--max-error", "0.1")
    assert refused.code == 2
    assert "past the limit of 0.1" in refused.err
    assert not Path("l").exists()
    alignment = texts(*two, "--max-error", "0.5", "--json").json["alignment"]
    assert alignment["held_out"]["transformed"]["relative_error"] < 0.5
    assert alignment["held_out"]["chance"]["relative_error"] > 1
    assert abs(alignment["held_out"]["chance"]["cosine"]) < 0.1
    assert alignment["chance"]["ratio"] < 0.4
    assert alignment["chance"]["deviations"] > 10
    output = texts("vectors", "align", 1, "old.npy", "--lineage", "l").out
    assert "Better than chance: the error is" in output


def test_5_few_objects_in_common_cannot_be_held_to_a_limit(texts: Command) -> None:
    put("some.parquet", draw(7, 60, 12), [f"doc{i}" for i in range(60)])
    two = ("vectors", "align", "old.parquet", "some.parquet", "--lineage", "l")
    refused = texts(*two)
    assert refused.code == 2
    assert "raise --held-out, or go on with so few by --allow-small-overlap" in refused.err
    unmeasured = texts(*two, "--allow-small-overlap")
    assert unmeasured.code == 2
    assert f"{LEAST_OBJECTS} are needed to hold it to a limit" in unmeasured.err
    assert not Path("l").exists()
    done = texts(*two, "--allow-small-overlap", "--max-error", "inf", "--json")
    assert done.code == 0, done.err
    assert "warning: Version 1: It has only 60 objects in common" in done.err
    assert done.json["alignment"]["certificate"] == {}
    assert texts("lineage", "check", "l", "--max-error", "99").code == 1
