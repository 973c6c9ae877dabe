"""From whose stored vectors each command reads: production's, unless another version is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from tests.support.command import Command, every_command
from tests.support.tiny_training import tiny_lineage, tiny_recipe

from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import upgrade
from evergram.retrieval.reader import Reader
from evergram.vector_files.writers import read_embeddings

# Versions 0 to 2; 1 is in production, and 2 is not promoted yet.
PRODUCTION, NEWEST = 1, 2
SIDE = ("--side", "candidate")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whose") / "shop"
    lineage, recipe = tiny_lineage(folder), tiny_recipe("upgrade.alone=false")
    lineage.label("first", 0)
    lineage.publish(upgrade(recipe, lineage, progress=False))
    lineage.publish(upgrade(recipe, lineage, progress=False), promote=False)
    assert (lineage.production, lineage.newest) == (PRODUCTION, NEWEST)
    return folder


@pytest.fixture
def line(published: Path, tmp_path: Path) -> Path:
    shutil.copytree(published, tmp_path / "shop")
    return tmp_path / "shop"


def evaluated(evergram: Command, line: Path, *source: str) -> Any:
    return evergram.json("evaluate", line, "--as", "0", *source)["version"]


def exported(evergram: Command, line: Path, *source: str) -> Any:
    out = line.parent / "out.parquet"
    facts = evergram.json("vectors", "export", line, out, *SIDE, "--as", "0", *source)
    expected = Lineage.open(line).view(0, facts["version"]).embeddings("candidate")[1]
    assert torch.equal(read_embeddings(out)[1], expected)
    return facts["version"]


def transform_exported(evergram: Command, line: Path, *source: str) -> Any:
    way = ("--format", "duckdb", "--as", "0")
    out = line.parent / "out.sql"
    return evergram.json("vectors", "export-transform", line, out, *way, *source)["version"]


def transformed(evergram: Command, line: Path, *source: str) -> Any:
    version = NEWEST if source else PRODUCTION
    file, out = Lineage.open(line).stored("candidate", version), line.parent / "out.parquet"
    way = ("--lineage", line, "--as", "0", "--out", out)
    return evergram.json("vectors", "transform", file, *way, *source)["from"]


def filled(evergram: Command, line: Path, *source: str) -> Any:
    named = [word.replace("--from", "--as") for word in source]
    store = f"candidate={line.parent / 'store'}"
    return evergram.json("store", "fill", line, "--store", store, *named)["version"]


def backfilled(evergram: Command, line: Path) -> Any:
    filled(evergram, line, "--from", "first")
    store = f"candidate={line.parent / 'store'}"
    return evergram.json("store", "backfill", "plan", line, "--store", store)["target"]


def checked_store(evergram: Command, line: Path) -> Any:
    filled(evergram, line)
    store = f"candidate={line.parent / 'store'}"
    result = evergram("store", "check", line, "--store", store, "--least", "0", "--json")
    return max(search["version"] for search in result.json["searches"])


def probed(evergram: Command, line: Path) -> Any:
    save_file({"weight": torch.ones(1, 4)}, line.parent / "m.safetensors")
    ids = Lineage.open(line).embeddings("candidate")[0]
    table = pa.table({"id": ids, "label": [i % 2 for i in range(len(ids))]})
    pq.write_table(table, line.parent / "d.parquet")
    files = ("--probe", line.parent / "m.safetensors", "--data", line.parent / "d.parquet")
    facts = evergram.json("consumer", "add", line, "ads", "--pin", "v0", *files, *SIDE)
    return facts["probe"]["baseline"]["version"]


def served(_: Command, line: Path) -> Any:
    with closing(Reader.open(line)) as reader:
        ids = reader.lineage.embeddings("candidate")[0]
        rows = torch.from_numpy(reader.embed(ids, version=0).vectors)
    lineage = Lineage.open(line)
    answers = [
        version
        for version in lineage.versions_with_embeddings
        if torch.allclose(rows, lineage.view(0, version).embeddings("candidate")[1], atol=1e-5)
    ]
    assert len(answers) == 1
    return answers[0]


def in_python(_: Command, line: Path) -> Any:
    lineage = Lineage.open(line)
    _, vectors = lineage.embeddings("candidate")
    assert torch.equal(vectors, lineage.embeddings("candidate", PRODUCTION)[1])
    assert lineage.view().version == PRODUCTION
    ids = lineage.embeddings("candidate")[0].to_pylist()[:2]
    assert torch.equal(lineage.fold_in(ids, version=0), lineage.view(0, PRODUCTION).fold_in(ids))
    return lineage.view(0).source


# How each command that takes a lineage reads its vectors; those of `NAMED` also with `--from`.
NAMED: dict[str, Callable[..., Any]] = {
    "evaluate": evaluated,
    "vectors export": exported,
    "vectors export-transform": transform_exported,
    "vectors transform": transformed,
    "store fill": filled,
}
OF_PRODUCTION: dict[str, Callable[..., Any]] = {
    **NAMED,
    "store check": checked_store,
    "store backfill plan": backfilled,
    "consumer add": probed,
    "serve": served,
    "Python": in_python,
}
# Judge or prepare what may be promoted, or make what follows it.
OF_THE_NEWEST = {"lineage check", "consumer probe", "diagnose", "vectors sidecar"}
OF_THE_NEWEST |= {"upgrade", "vectors align"}
# Read no vectors, or what another command of the table has written.
OF_NONE = {"train", "vectors import", "store backfill apply", "store backfill status"}
OF_NONE |= {"store backfill rollback", "consumer list", "consumer token", "consumer remove"}
OF_NONE |= {f"lineage {name}" for name in ("list", "label", "promote", "withdraw", "retire")}
# As `consumer add`.
OF_PRODUCTION_TOO = {"consumer pin"}


@pytest.mark.parametrize("command", OF_PRODUCTION)
def test_vectors_are_productions(evergram: Command, line: Path, command: str) -> None:
    assert OF_PRODUCTION[command](evergram, line) == PRODUCTION


@pytest.mark.parametrize("command", NAMED)
def test_another_source_is_named(evergram: Command, line: Path, command: str) -> None:
    assert NAMED[command](evergram, line, "--from", "newest") == NEWEST


def test_a_version_after_production_is_read_from_the_newest(evergram: Command, line: Path) -> None:
    out = line.parent / "out.parquet"
    facts = evergram.json("vectors", "export", line, out, *SIDE, "--as", "newest")
    assert (facts["version"], facts["as"]) == (NEWEST, NEWEST)


def test_every_command_says_whose_vectors_it_reads() -> None:
    """A new command with a lineage joins one of the groups, and the table in docs/commands.md."""
    with_lineage = {
        name
        for name, command in every_command().items()
        if any(option.name == "lineage" for option in command.params)
    }
    known = OF_PRODUCTION.keys() - {"Python"} | OF_THE_NEWEST | OF_NONE | OF_PRODUCTION_TOO
    assert with_lineage == known
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    section = page.split("## From whose rows")[1].split("\n## ")[0]
    told = (OF_PRODUCTION.keys() | OF_THE_NEWEST | OF_PRODUCTION_TOO) - {"Python"}
    assert [name for name in told if f"`{name.removesuffix(' plan')}`" not in section] == []
