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
from evergram.vector_files.open_embeddings import read_embeddings

# Versions 0 to 2; 1 is in production, and 2 is not promoted yet.
PRODUCTION, NEWEST = 1, 2


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


# By command: its line, and the key of its answer; `--from newest` names the newest version.
NAMED = {
    "evaluate": ("evaluate {line} --as 0", "version"),
    "vectors export": ("vectors export {line} {line}.parquet --side candidate --as 0", "version"),
    "vectors export-transform": (
        "vectors export-transform {line} {line}.sql --format duckdb --as 0",
        "version",
    ),
    "vectors transform": (
        "vectors transform {file} --lineage {line} --as 0 --out {line}.parquet",
        "from",
    ),
    "store fill": ("store fill {line} {store}", "version"),
}
FILL = "store fill {line} {store}"


def asked(evergram: Command, line: Path, command: str, version: int) -> Any:
    """Run a command that reads from a version; return its answer."""
    file = Lineage.open(line).stored("candidate", version)
    store = f"--store candidate={line}-store"
    return evergram(command.format(line=line, file=file, store=store) + " --json").json


def backfilled(evergram: Command, line: Path) -> Any:
    asked(evergram, line, f"{FILL} --as first", PRODUCTION)
    return asked(evergram, line, "store backfill plan {line} {store}", PRODUCTION)["target"]


def probed(evergram: Command, line: Path) -> Any:
    save_file({"weight": torch.ones(1, 4)}, f"{line}.safetensors")
    ids = Lineage.open(line).embeddings("candidate")[0]
    table = pa.table({"id": ids, "label": [i % 2 for i in range(len(ids))]})
    pq.write_table(table, f"{line}.parquet")
    files = "--probe {line}.safetensors --data {line}.parquet --side candidate"
    facts = asked(evergram, line, f"consumer add {{line}} ads --pin v0 {files}", PRODUCTION)
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
    assert torch.equal(lineage.view(0).fold_in(ids), lineage.view(0, PRODUCTION).fold_in(ids))
    return lineage.view(0).source


OF_PRODUCTION: dict[str, Callable[[Command, Path], Any]] = {
    "store backfill plan": backfilled,
    "consumer add": probed,
    "serve": served,
    "Python": in_python,
}
# Judge or prepare what may be promoted, or make what follows it.
OF_THE_NEWEST = {"lineage check", "lineage skew", "consumer probe", "diagnose", "vectors sidecar"}
OF_THE_NEWEST |= {"upgrade", "vectors align"}
# Read no vectors, or what another command of the table has written.
OF_NONE = {"train", "vectors import", "store backfill apply", "store backfill status"}
OF_NONE |= {"store backfill rollback", "consumer list", "consumer token", "consumer remove"}
OF_NONE |= {f"lineage {name}" for name in ("list", "label", "promote", "withdraw", "retire")}
# As `consumer add`.
OF_PRODUCTION_TOO = {"consumer pin"}


@pytest.mark.parametrize("command", NAMED)
def test_vectors_are_productions_or_those_that_are_named(
    evergram: Command, line: Path, command: str
) -> None:
    words, key = NAMED[command]
    newest = "--as newest" if command == "store fill" else "--from newest"
    assert asked(evergram, line, words, PRODUCTION)[key] == PRODUCTION
    if command == "vectors export":
        expected = Lineage.open(line).view(0, PRODUCTION).embeddings("candidate")[1]
        assert torch.equal(read_embeddings(Path(f"{line}.parquet"))[1], expected)
        # A version after production is read from the newest.
        later = words.replace("--as 0", "--as newest --force")
        assert asked(evergram, line, later, PRODUCTION)[key] == NEWEST
    for file in line.parent.glob(f"{line.name}.*"):
        file.unlink()
    assert asked(evergram, line, f"{words} {newest}", NEWEST)[key] == NEWEST


@pytest.mark.parametrize("command", OF_PRODUCTION)
def test_others_read_production(evergram: Command, line: Path, command: str) -> None:
    assert OF_PRODUCTION[command](evergram, line) == PRODUCTION


def test_every_command_says_whose_vectors_it_reads() -> None:
    """A new command with a lineage joins one of the groups, and the table in docs/commands.md."""
    with_lineage = {
        name
        for name, command in every_command().items()
        if any(option.name == "lineage" for option in command.params)
    }
    known = (
        NAMED.keys()
        | OF_PRODUCTION.keys() - {"Python"}
        | OF_THE_NEWEST
        | OF_NONE
        | OF_PRODUCTION_TOO
    )
    assert with_lineage == known
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    section = page.split("## Which vectors a command reads")[1].split("\n## ")[0]
    told = (NAMED.keys() | OF_PRODUCTION.keys() | OF_THE_NEWEST | OF_PRODUCTION_TOO) - {"Python"}
    assert [name for name in told if f"`{name.removesuffix(' plan')}`" not in section] == []
