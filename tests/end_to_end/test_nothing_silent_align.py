"""Issue 12, its lines 4 and 5 and those on compare and on the gate, through the command."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from tests.support.command import Command
from tests.support.running_service import running

import evergram as library
from evergram.compatibility.certificate import LEAST_OBJECTS, StepError
from evergram.compatibility.transforms import LinearTransform
from evergram.errors import DegradationError, LineageError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.vector_files.writers import write_vectors

RECIPE = """
name = "shop"
[data]
kind = "table"
path = "old.csv"
[model]
dim = [6, 8, 8]
[training]
epochs = 2
batch_size = 512
"""
QUERIES = [f"u{i}" for i in range(240)]
CANDIDATES = [f"i{i}" for i in range(120)]
ROWS = 500


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command run in an empty folder."""
    monkeypatch.chdir(tmp_path)


def interactions(name: str, queries: list[str], candidates: list[str]) -> None:
    """Every query likes candidates near its own place."""
    draw = random.Random(0)
    with Path(name).open("w") as file:
        file.write("query,candidate\n")
        for n in range(4000):
            place = n % len(queries)
            row = (place + int(abs(draw.gauss(0, 5)))) % len(candidates)
            file.write(f"{queries[place]},{candidates[row]}\n")


@pytest.fixture
def shop(evergram: Command) -> Any:
    """A lineage with version 0 in `l`; other data with none of its ids, and with thirty queries."""
    Path("r.toml").write_text(RECIPE)
    other = [f"x{i}" for i in range(240)], [f"y{i}" for i in range(120)]
    interactions("old.csv", QUERIES, CANDIDATES)
    interactions("none.csv", *other)
    interactions("few.csv", QUERIES[:30] + other[0][30:], other[1])
    assert evergram("train", "r.toml", "--lineage", "l").code == 0
    return evergram


UPGRADE = ("upgrade", "r.toml", "--lineage", "l", "--set", "upgrade.alone=false")


def draw(seed: int, *shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def put(name: str, vectors: Any, ids: list[Any]) -> None:
    write_vectors(Path(name), [(pa.array(ids), torch.from_numpy(vectors))])


def versions_of(path: str) -> list[int]:
    return [m.version for m in Lineage.open(path).versions] if Path(path).exists() else []


# 4: what is measured on nothing never passes.


def test_4_an_upgrade_without_a_common_object_is_refused(shop: Command) -> None:
    refused = shop(*UPGRADE, "--set", "data.path=none.csv", "--allow-small-overlap")
    assert (refused.code, refused.out) == (2, "")
    assert "no objects in common with version 0" in refused.err
    # It is told before a single epoch.
    assert refused.err.count("\n") == 1
    assert versions_of("l") == [0]


def test_4_a_small_overlap_is_asked_for_and_shown_wherever_the_version_is(shop: Command) -> None:
    small = (*UPGRADE, "--set", "data.path=few.csv")
    refused = shop(*small)
    assert refused.code == 2
    assert "30 objects in common with version 0, and 40 are needed" in refused.err
    assert "--allow-small-overlap" in refused.err
    assert versions_of("l") == [0]
    done = shop(*small, "--allow-small-overlap")
    assert done.code == 0, done.err
    few = "Version 1: It has only 30 objects in common with the version before it."
    measured = f"and {LEAST_OBJECTS} are needed for a certificate"
    assert f"warning: {few}" in done.err
    assert "Read as version 0: no ranking was measured, as it knew none" in done.out
    for shown in (shop("versions", "l").out, shop("check", "l").out):
        assert few in shown
        assert measured in shown
    facts = shop("versions", "l", "--json").json["versions"]
    assert facts[0]["warnings"] == []
    assert len(facts[1]["warnings"]) == 2
    metrics = Lineage.open("l").metrics(1)
    assert metrics["overlap"]["small"]
    assert metrics["certificate"] == {}
    # And the chain of every later version through it.
    later = shop(*UPGRADE, "--set", "data.path=few.csv", "--json")
    assert later.code == 0, later.err
    assert set(later.json["certificate"]) == {"1"}
    checked = shop("check", "l", "--max-bound", "9")
    assert checked.code == 1
    assert "Version 0: nothing is known of its bound" in checked.err
    assert "the transform of version 1 was measured on 0 objects" in checked.err


def test_4_the_service_says_what_is_not_certified(tmp_path: Path) -> None:
    with running(tmp_path / "line") as service:
        found = service.get("/v1/versions").json()["data"]
    assert found[0]["warnings"] == []
    assert "published without a measured error" in found[1]["warnings"][0]


def test_4_a_certificate_measured_on_nothing_is_none(evergram: Command) -> None:
    """As older Evergrams published it: a random transform, with an error of nothing."""
    lineage = Lineage.create("l")
    ids = pa.array(["a", "b"])
    for n in range(2):
        step = StepError(torch.zeros(3, 3, dtype=torch.float64), 0, 0.0)
        lineage.publish(
            Artefact(
                dim=3,
                embeddings={"object": (ids, torch.rand(2, 3))},
                transform=LinearTransform.from_matrix(torch.rand(3, 3)) if n else None,
                metrics={"metrics": {"model": {}}},
                recipe={},
                error=step if n else None,
            )
        )
    told = evergram("check", "l")
    assert told.code == 0
    assert "its certificate is not known: the transform of version 1 was measured on 0" in told.out
    for limit in ("--max-bound", "--max-error"):
        assert evergram("check", "l", limit, "0.3").code == 1
    # Of the transform itself all is known.
    assert evergram("check", "l", "--max-amplification", "9").code == 0


def test_4_a_limit_on_nothing_that_is_read_fails(shop: Command) -> None:
    assert shop("check", "l").code == 0
    assert shop("check", "l", "--max-bound", "0.3").code == 1
    assert shop(*UPGRADE).code == 0
    assert shop("check", "l", "--max-bound", "9").code == 0
    assert shop("retire", "l", "0").code == 0
    found = shop("check", "l", "--max-bound", "9")
    assert found.code == 1
    assert "No past version is read" in found.err


def test_4_the_error_is_of_objects_that_alignment_never_saw(shop: Command) -> None:
    report = shop(*UPGRADE, "--json").json
    reading = shop("check", "l", "--json").json["readings"][0]
    overlap = report["overlap"]
    assert reading["unseen"]["objects"] == overlap["held_out"] >= LEAST_OBJECTS
    assert reading["measured"]["objects"] == overlap["common"] == 360
    assert reading["unseen"]["relative"] > reading["measured"]["relative"]
    assert reading["unseen"]["relative"] == pytest.approx(reading["certificate"]["relative"])
    between = (reading["unseen"]["relative"] + reading["measured"]["relative"]) / 2
    assert shop("check", "l", "--max-error", between).code == 1


# 5: files are paired by what they are of.


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
    found = texts("align", old, new, "--lineage", "l")
    assert (found.code, found.out) == (2, "")
    assert option in found.err
    assert not Path("l").exists()


def test_5_named_rows_are_aligned_as_the_objects_that_they_are(texts: Command) -> None:
    found = texts(
        "align", "old.parquet", "new.npy", "--new-ids", "names.txt", "--lineage", "l", "--json"
    )
    assert found.code == 0, found.err
    assert found.json["alignment"]["held_out"]["transformed"]["cosine"] > 0.8
    assert not found.json["alignment"]["pairs"]["by_row_number"]
    # A file without ids says nothing of which of them it holds, to `transform` either.
    again = texts("transform", "new.npy", "--lineage", "l", "--as", 0, "--out", "back.parquet")
    assert (again.code, Path("back.parquet").exists()) == (2, False)
    assert "name the ids of new.npy by --ids" in again.err
    named = ("--ids", "names.txt", "--out", "back.parquet")
    assert texts("transform", "new.npy", "--lineage", "l", "--as", 0, *named).code == 0
    refused = texts("align", 1, "new.npy", "--lineage", "l")
    assert (refused.code, "--new-ids" in refused.err) == (2, True)


def test_5_two_files_without_ids_are_paired_by_row_and_it_is_said(texts: Command) -> None:
    found = texts("align", "old.npy", "new.npy", "--lineage", "l")
    assert found.code == 0, found.err
    assert "paired by the numbers of their rows" in found.out
    # What has begun so goes on so.
    refused = texts("align", 1, "named.parquet", "--lineage", "l")
    assert refused.code == 2
    assert "evergram import FILE --ids IDS" in refused.err
    assert texts("align", 1, "old.npy", "--lineage", "l").code == 0


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
            found = texts(
                "align", "old.npy", f"{name}.npy", "--lineage", "l", "--transform", transform
            )
            assert (found.code, found.out) == (2, ""), (name, transform)
            assert message in found.err
    found = texts("align", "constant.npy", "new.npy", "--lineage", "l", "--max-error", "inf")
    assert "constant.npy has no vectors that could be aligned" in found.err
    assert not Path("l").exists()
    # Whoever knows better says so.
    assert texts("align", "old.npy", "random.npy", "--lineage", "l", "--max-error", "inf").code == 0


def test_5_a_limit_of_the_error_and_how_much_better_than_chance(texts: Command) -> None:
    two = ("align", "old.npy", "new.npy", "--lineage", "l")
    refused = texts(*two, "--max-error", "0.1")
    assert refused.code == 2
    assert "past the limit of 0.1" in refused.err
    assert not Path("l").exists()
    found = texts(*two, "--max-error", "0.5", "--json").json["alignment"]
    assert found["held_out"]["transformed"]["relative_error"] < 0.5
    assert found["held_out"]["chance"]["relative_error"] > 1
    assert abs(found["held_out"]["chance"]["cosine"]) < 0.1
    assert found["chance"]["ratio"] < 0.4
    assert found["chance"]["deviations"] > 10
    told = texts("align", 1, "old.npy", "--lineage", "l").out
    assert "Better than chance: the error is" in told


def test_5_few_objects_in_common_cannot_be_held_to_a_limit(texts: Command) -> None:
    put("some.parquet", draw(7, 60, 12), [f"doc{i}" for i in range(60)])
    two = ("align", "old.parquet", "some.parquet", "--lineage", "l")
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
    assert texts("check", "l", "--max-error", "99").code == 1


# Also: one gate for Python and the command.


def probe_of(side: str, version: str = "v0") -> tuple[str, ...]:
    """A consumer's model on the lineage in `l`, written to files; options of `consumer-add`."""
    ids, vectors = Lineage.open("l").embeddings(side)
    scores = vectors @ vectors[0]
    save_file({"weight": vectors[:1].clone()}, "m.safetensors")
    pq.write_table(pa.table({"id": ids, "label": (scores > scores.median()).tolist()}), "d.parquet")
    files = ("--probe", "m.safetensors", "--data", "d.parquet")
    return ("ads", "--pin", version, *files, "--side", side, "--min", "0.99")


def test_also_python_goes_through_the_same_gate(shop: Command) -> None:
    assert shop("consumer-add", "l", *probe_of("candidate")).code == 0
    recipe = library.Recipe.load("r.toml", ["upgrade.method=non-bc", "upgrade.alone=false"])
    lineage = library.Lineage.open("l")
    made = library.upgrade(recipe, lineage)
    with pytest.raises(LineageError, match=r"probe of ads .* evergram\.publish\(lineage, artefact"):
        lineage.publish(made)
    told: list[str] = []
    with pytest.raises(DegradationError, match="probe of ads"):
        library.publish(lineage, made, strict_probes=True)
    with pytest.raises(DegradationError, match=r"not trained alone \(upgrade\.alone is false\)"):
        library.publish(lineage, made, max_degradation=99)
    assert versions_of("l") == [0]
    done = library.publish(lineage, made, warn=told.append)
    assert (done.version, done.probes[0].broken) == (1, True)
    assert told == [done.probes[0].sentence]
    assert Lineage.open("l").metrics(1)["probes"][0]["consumer"] == "ads"


def test_also_strict_probes_that_try_nothing_are_refused(shop: Command, texts: Command) -> None:
    found = shop(*UPGRADE, "--strict-probes")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "no consumer has a probe" in found.err
    assert versions_of("l") == [0]
    assert shop("probe", "l").code == 2
    assert texts("align", "old.npy", "new.npy", "--lineage", "f", "--strict-probes").code == 2
    assert not Path("f").exists()


def test_also_degradation_that_cannot_be_measured_fails_by_name(shop: Command) -> None:
    limit = ("upgrade", "r.toml", "--lineage", "l", "--max-degradation", "100")
    early = shop(*limit, "--set", "upgrade.alone=false")
    assert (early.code, early.err.count("\n")) == (2, 1)
    assert "upgrade.alone is false" in early.err
    unnamed = shop(*limit, "--set", 'metrics=["recall@7"]')
    assert (unnamed.code, unnamed.err.count("\n")) == (2, 1)
    assert "recall@20 was not measured" in unnamed.err
    few = shop(*limit, "--set", "data.path=few.csv", "--allow-small-overlap")
    assert few.code == 2
    assert "version 0: it knew 0 test queries, and 30 are needed" in few.err
    assert versions_of("l") == [0]
    done = shop(*limit)
    assert done.code == 0, done.err


def test_also_compare_says_at_its_start_what_it_cannot_measure(evergram: Command) -> None:
    """No ratings, and two versions: no consumer task is left."""
    interactions("old.csv", QUERIES, CANDIDATES)
    lines = Path("old.csv").read_text().splitlines()
    timed = [f"{line},{n}" for n, line in enumerate(lines[1:])]
    Path("timed.csv").write_text("\n".join(["query,candidate,time", *timed]) + "\n")
    Path("c.toml").write_text(
        RECIPE.replace("old.csv", "timed.csv").replace("[6, 8, 8]", "[6, 8]")
        + '[split]\nkind = "time"\nversions = [0.6, 0.8]\n'
        '[compare]\nmethods = ["keep-all", "non-bc"]\n'
    )
    found = evergram("compare", "c.toml", "--out", "out")
    assert found.code == 0, found.err
    start = found.err.split("seed 0, ")[0]
    assert "the corpus has no ratings (no column 'value')" in start
    assert "The task activity is left out" in start
    assert "(2) and (1)+(2) will not be measured" in start
    assert "With one seed no deviation is measured" in start
