"""The command under torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.command import Command
from tests.support.lineages import lineage_of, vectors_of
from tests.support.several_processes import (
    ROOT,
    SECONDS,
    assert_near,
    ended,
    environment,
    free_port,
    start,
)

from evergram.cli import main
from evergram.cli.failures import error_line
from evergram.collectives import RANK, WORLD
from evergram.lineage.lineage import Lineage
from evergram.vector_files import shards
from evergram.vector_files.open_embeddings import Block
from evergram.vector_files.writers import write_vectors

RECIPE = """
name = "shared"
metrics = ["recall@20"]
[data]
kind = "synthetic"
queries = 120
candidates = 80
interactions = 3000
[split]
kind = "time"
versions = [0.6, 0.8]
[model]
dim = [6, 8]
[task]
penalty = 5.0
l2 = 0.1
[training]
epochs = 3
batch_size = 128
[upgrade]
alone = false
"""


def run(arguments: list[str], processes: int = 1) -> Any:
    """Return what `evergram ARGUMENTS --json` prints, run by torchrun for several processes."""
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
    launcher += [f"--master-port={free_port()}", "-m", "evergram"]
    command = [sys.executable, *(launcher if processes > 1 else ["-m", "evergram"]), *arguments]
    outcome = subprocess.run(
        [*command, "--json"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


@pytest.mark.long
def test_two_processes_publish_the_lineage_of_one(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    folders = [str(tmp_path / f"by{processes}") for processes in (1, 2)]
    for processes, folder in enumerate(folders, 1):
        for command in ("train", "upgrade"):
            run([command, str(recipe), "--lineage", folder], processes)
    assert_near(*map(Lineage.open, folders))


def test_commands_that_share_nothing_are_refused(
    evergram: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name, rest in (
        ("tune", "x --out t"),
        ("vectors import", "x --lineage l"),
        ("demo", ""),
        ("store backfill plan", "l"),
    ):
        assert f"evergram {name} runs in one process, and WORLD_SIZE is 2" in evergram.refused(
            f"{name} {rest}"
        )
    assert "--kept trains no model" in evergram.refused("upgrade x.toml --lineage l --kept")
    for words in ("train x.toml --lineage l", "vectors align x.npy y.npy --lineage l"):
        assert "WORLD_SIZE" not in evergram.refused(words)
    assert evergram("--help").code == 0


def test_an_error_says_that_its_process_is_not_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert error_line("x is 1.") == "error: x is 1.\n"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert error_line("x is 1.") == "error in a process that is not the first: x is 1.\n"


@pytest.mark.long
def test_two_processes_export_and_transform_what_one_does(tmp_path: Path) -> None:
    lineage_of(tmp_path / "l")
    write_vectors(tmp_path / "z.parquet", [(pa.array(range(300)), vectors_of(2))])
    line, shards = str(tmp_path / "l"), ["--shards", "5"]
    rewrite = ["vectors", "transform", str(tmp_path / "z.parquet"), "--lineage", line]
    rewrite += ["--as", "v0", *shards, "--out"]
    read = ["vectors", "export", line, "--side", "object", "--as", "0", *shards]
    for name, command in (("rewritten", rewrite), ("read", read)):
        alone, together = (str(tmp_path / f"{name}{n}") for n in (1, 2))
        facts = run([*command, alone])
        killed = start(2, "-m", "tests.cli.test_processes", *command, together)
        (survivor, said), (code, _) = ended(killed)
        assert (survivor, code) == (2, -9)
        assert "another process of this command has ended" in said
        files = {path.name for path in Path(together).iterdir()}
        assert {"part-00000-of-00005.parquet", "part-00002-of-00005.parquet"} <= files
        assert not {"_SUCCESS", "part-00004-of-00005.parquet"} & files
        resumed = run([*command, together], 2)
        assert resumed["kept"] == [0, 1, 2]
        assert sorted(resumed["written"] + resumed["kept"]) == facts["written"] == [*range(5)]
        assert resumed["missing"] == []
        tables = [pq.read_table(Path(f), partitioning=None) for f in (alone, together)]
        assert tables[0].equals(tables[1])
        assert len(tables[0]) == 300
        assert (Path(together) / "_SUCCESS").is_file()


def kill_in_second_shard() -> None:
    module: Any = shards
    whole, calls = module.write_embeddings, [0]

    def write(
        path: Path, blocks: Iterable[Block], provenance: Mapping[str, str] | None = None
    ) -> int:
        calls[0] += 1
        if calls[0] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        rows: int = whole(path, blocks, provenance)
        return rows

    module.write_embeddings = write


if __name__ == "__main__":
    if os.environ.get(RANK) == str(int(os.environ[WORLD]) - 1):
        kill_in_second_shard()
    sys.argv[0] = "evergram"
    main()
