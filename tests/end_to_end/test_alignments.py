"""Files are paired by their ids, and an alignment by chance is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.command import Command

from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.vector_files.open_embeddings import write_vectors

ROWS = 500
NUMBERS = list(range(100, 100 + ROWS))


def draw(seed: int, *shape: int, mean: float = 0.0) -> Any:
    return np.random.default_rng(seed).normal(mean, size=shape).astype(np.float32)


def put(name: str, vectors: Any, ids: list[Any]) -> None:
    write_vectors(Path(name), [(pa.array(ids), torch.from_numpy(vectors))])


NEW = draw(0, ROWS, 12)
OLD = NEW @ draw(1, 12, 8) + draw(2, ROWS, 8)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of the same objects, in two orders, with and without their ids."""
    monkeypatch.chdir(tmp_path)
    names = [f"doc{i}" for i in range(ROWS)]
    order = np.random.default_rng(3).permutation(ROWS)
    put("old.parquet", OLD[order], [names[i] for i in order])
    put("numbers.parquet", OLD[order], order.tolist())
    put("named.parquet", NEW, names)
    np.save("old.npy", OLD)
    np.save("new.npy", NEW)
    Path("names.txt").write_text("\n".join(names) + "\n")


def test_named_rows_are_aligned_by_their_ids(evergram: Command) -> None:
    Path("new.ids.txt").write_text(Path("names.txt").read_text())
    named = evergram.json("vectors align old.parquet new.npy --lineage l")
    assert named["alignment"]["held_out"]["transformed"]["cosine"] > 0.8
    assert not named["alignment"]["pairs"]["by_row_number"]
    back = "vectors transform new.npy --lineage l --as 0 --out back.parquet"
    assert evergram(back).code == 0
    Path("new.ids.txt").unlink()
    for command in (f"{back} --force", "vectors align 1 new.npy --lineage l"):
        assert "new.ids.txt" in evergram.refused(command)


def test_two_files_without_ids_are_paired_by_row_and_stay_so(evergram: Command) -> None:
    ran = evergram("vectors align old.npy new.npy --lineage l")
    assert "paired by the numbers of their rows" in ran.out
    assert ".ids.txt" in evergram.refused("vectors align 1 named.parquet --lineage l")
    assert evergram("vectors transform new.npy --lineage l --as 0 --out out.npy").code == 0
    assert not Path("out.ids.txt").exists()
    # A description that belongs to another .npy is not taken for this file's.
    assert evergram("vectors export l kept.npy --side object").code == 0
    np.save("kept.npy", NEW)
    assert "kept.npy" in evergram.refused("vectors align 1 kept.npy --lineage l")
    assert evergram("vectors align 1 old.npy --lineage l").code == 0


def test_a_limit_does_not_replace_being_better_than_chance(evergram: Command) -> None:
    """With a large mean, noise has a small error."""
    np.save("far.npy", draw(0, ROWS, 8, mean=30))
    np.save("noise.npy", draw(1, ROWS, 8, mean=30))
    align = "vectors align far.npy noise.npy --lineage l --max-error"
    assert "hardly predicts" in evergram.refused(f"{align} 0.5")
    assert not Path("l/lineage.json").exists()
    published = evergram(f"{align} inf")
    assert published.code == 0
    warnings = evergram.json("lineage list l")["versions"][1]["warnings"]
    for text in (published.out.lower(), published.err, *warnings[:1]):
        assert "no better than chance" in text


def test_few_objects_in_common_cannot_be_held_to_a_limit(evergram: Command) -> None:
    put("some.parquet", draw(7, 60, 12), [f"doc{i}" for i in range(60)])
    two = "vectors align old.parquet some.parquet --lineage l"
    assert "--allow-small-overlap" in evergram.refused(two)
    refused = evergram.refused(f"{two} --allow-small-overlap")
    assert f"{LEAST_OBJECTS} are needed" in refused
    assert not Path("l").exists()
    done = evergram(f"{two} --allow-small-overlap --max-error inf --json")
    assert "warning: Version 1: It has only 60 objects in common" in done.err
    assert done.json["alignment"]["certificate"] == {}
    assert evergram("lineage check l --max-error 99").code == 1


def test_a_version_keeps_the_type_of_ids(evergram: Command) -> None:
    """Text that is integers becomes integers again; text that is not is refused."""
    put("numbered.parquet", OLD, NUMBERS)
    put("texts.parquet", NEW, [str(i) for i in NUMBERS])
    put("padded.parquet", NEW, ["00017", *map(str, NUMBERS[1:])])
    Path("new.ids.txt").write_text("".join(f"{i}\n" for i in NUMBERS))
    assert evergram("vectors import numbered.parquet --lineage l").code == 0
    assert evergram("store fill l --store object=s").code == 0
    assert "'00017'" in evergram.refused("vectors align 0 padded.parquet --lineage l")
    for version, file in enumerate(("texts.parquet", "new.npy")):
        assert evergram(f"vectors align {version} {file} --lineage l").code == 0
        assert Lineage.open("l").embeddings("object")[0].type == pa.int64()
        assert evergram("store fill l --store object=s").code == 0
    with pytest.raises(DataError, match="not finite"):
        Lineage.open("l").view(0).transform(np.full((1, 12), np.nan, np.float32))
