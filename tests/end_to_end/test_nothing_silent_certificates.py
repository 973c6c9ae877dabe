"""An error that was not measured has no certificate and passes no gate: promise 4."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import save_file
from tests.support.command import Command

import evergram as library
from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.errors import DegradationError, LineageError
from evergram.lineage.lineage import Lineage

RECIPE = """
name = "shop"
[data]
kind = "table"
path = "old.csv"
[model]
dim = [6, 8, 8]
[task]
penalty = 2.0
l2 = 0.1
[training]
epochs = 2
batch_size = 512
"""
QUERIES = [f"u{i}" for i in range(240)]
CANDIDATES = [f"i{i}" for i in range(120)]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command run in an empty folder."""
    monkeypatch.chdir(tmp_path)


def interactions(name: str, queries: list[str], candidates: list[str]) -> None:
    """Write 4,000 interactions, in which every query likes candidates near its own place."""
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


def versions_of(path: str) -> list[int]:
    return [m.version for m in Lineage.open(path).versions] if Path(path).exists() else []


def test_4_an_upgrade_without_a_common_object_is_refused(shop: Command) -> None:
    refused = shop(*UPGRADE, "--set", "data.path=none.csv", "--allow-small-overlap")
    assert (refused.code, refused.out) == (2, "")
    assert "no objects in common with version 0" in refused.err
    # It is refused before a single epoch.
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
    for shown in (shop("lineage", "list", "l").out, shop("lineage", "check", "l").out):
        assert few in shown
        assert measured in shown
    facts = shop("lineage", "list", "l", "--json").json["versions"]
    assert facts[0]["warnings"] == []
    assert len(facts[1]["warnings"]) == 2
    metrics = Lineage.open("l").metrics(1)
    assert metrics["overlap"]["small"]
    assert metrics["certificate"] == {}
    # And the chain of every later version through it.
    later = shop(*UPGRADE, "--set", "data.path=few.csv", "--json")
    assert later.code == 0, later.err
    assert set(later.json["certificate"]) == {"1"}
    checked = shop("lineage", "check", "l", "--max-bound", "9")
    assert checked.code == 1
    assert "Version 0: nothing is known of its bound" in checked.err
    assert "the transform of version 1 was measured on 0 objects" in checked.err


def test_4_a_limit_on_nothing_that_is_read_fails(shop: Command) -> None:
    assert shop("lineage", "check", "l").code == 0
    assert shop("lineage", "check", "l", "--max-bound", "0.3").code == 1
    assert shop(*UPGRADE).code == 0
    assert shop("lineage", "check", "l", "--max-bound", "9").code == 0
    assert shop("lineage", "retire", "l", "0").code == 0
    check = shop("lineage", "check", "l", "--max-bound", "9")
    assert check.code == 1
    assert "No past version is read" in check.err


def test_4_the_error_is_of_objects_that_alignment_never_saw(shop: Command) -> None:
    report = shop(*UPGRADE, "--json").json
    reading = shop("lineage", "check", "l", "--json").json["readings"][0]
    overlap = report["overlap"]
    assert reading["unseen"]["objects"] == overlap["held_out"] >= LEAST_OBJECTS
    assert reading["measured"]["objects"] == overlap["common"] == 360
    assert reading["unseen"]["relative"] > reading["measured"]["relative"]
    assert reading["unseen"]["relative"] == pytest.approx(reading["certificate"]["relative"])
    between = (reading["unseen"]["relative"] + reading["measured"]["relative"]) / 2
    assert shop("lineage", "check", "l", "--max-error", between).code == 1


def probe_of(side: str, version: str = "v0") -> tuple[str, ...]:
    """Write a consumer's probe of the lineage in `l`; return the options that add it."""
    ids, vectors = Lineage.open("l").embeddings(side)
    scores = vectors @ vectors[0]
    save_file({"weight": vectors[:1].clone()}, "m.safetensors")
    pq.write_table(pa.table({"id": ids, "label": (scores > scores.median()).tolist()}), "d.parquet")
    files = ("--probe", "m.safetensors", "--data", "d.parquet")
    return ("ads", "--pin", version, *files, "--side", side, "--min", "0.99")


def test_also_python_goes_through_the_same_gate(shop: Command) -> None:
    assert shop("consumer", "add", "l", *probe_of("candidate")).code == 0
    recipe = library.Recipe.load("r.toml", ["upgrade.method=non-bc", "upgrade.alone=false"])
    lineage = library.Lineage.open("l")
    made = library.upgrade(recipe, lineage)
    with pytest.raises(LineageError, match=r"probe of ads .* evergram\.publish\(lineage, artefact"):
        lineage.publish(made)
    warnings: list[str] = []
    with pytest.raises(DegradationError, match="probe of ads"):
        library.publish(lineage, made, strict_probes=True)
    with pytest.raises(DegradationError, match=r"not trained alone \(upgrade\.alone is false\)"):
        library.publish(lineage, made, max_degradation=99)
    assert versions_of("l") == [0]
    done = library.publish(lineage, made, warn=warnings.append)
    assert (done.version, done.probes[0].broken) == (1, True)
    # Nothing was aligned, which is said, too.
    first, second = warnings
    assert first == done.probes[0].sentence
    assert "Its transform errs by" in second
    assert Lineage.open("l").metrics(1)["probes"][0]["consumer"] == "ads"


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
