"""The commands of docs/production.md, run by a shell on a small lineage, and read again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.command import PROGRAM, parsed
from tests.support.lineages import lineage_of, publish, read_as

from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.retrieval.fill import fill
from evergram.stores.open_store import open_store

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "production.md").read_text()
BLOCKS = dict(re.findall(r"<!-- run: ([\w-]+) -->\n```bash\n(.*?)```", PAGE, re.DOTALL))


class Shell:
    """Runs a block of the page, with the command `evergram` of this environment."""

    def __init__(self, folder: Path) -> None:
        self.lineage, self.restored = folder / "line", folder / "restored"
        self.backup = folder / "line.tar.gz"
        programs = folder / "programs"
        programs.mkdir()
        command = programs / "evergram"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{PROGRAM}" "$@"\n')
        command.chmod(0o755)
        self._environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "LINEAGE": str(self.lineage),
            "BACKUP": str(self.backup),
            "RESTORED": str(self.restored),
        }

    def __call__(self, name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euc", BLOCKS[name]],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def run(self, name: str) -> str:
        done = self(name)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    lineage_of(shell.lineage)
    return shell


def test_every_block_of_bash_is_run_here() -> None:
    assert len(BLOCKS) == PAGE.count("```bash")
    names = {"back-up", "restore", "promote", "roll-back", "rotate", "rotate-without-a-gap"}
    assert set(BLOCKS) == names


@pytest.mark.long
def test_a_restored_lineage_reads_as_the_one_that_was_backed_up(shell: Shell) -> None:
    lineage = Lineage.open(shell.lineage)
    ConsumerRegistry.open(shell.lineage).add("ads", "v0", lineage.resolve)
    (shell.lineage / "stores").mkdir(exist_ok=True)
    (shell.lineage / "stores" / "large").write_text("a snapshot")
    shell.run("back-up")
    assert shell.backup.stat().st_mode & 0o077 == 0, "others can read hashes of tokens"
    assert "2" in shell.run("restore")
    restored = Lineage.open(shell.restored)
    assert restored.newest == 2
    assert not (shell.restored / "stores").exists()
    for version in range(3):
        before = Lineage.open(shell.lineage).manifest(version)
        assert restored.manifest(version).fingerprint == before.fingerprint
        rows = restored.view(version).embeddings("object")
        assert (rows[1] - read_as(2, version)).abs().max() < 1e-5
    [consumer] = ConsumerRegistry.open(shell.restored).list()
    assert (consumer.name, consumer.pinned) == ("ads", "v0")


@pytest.mark.long
@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_backup_that_is_not_whole_is_noticed(shell: Shell, how: str) -> None:
    files = sorted(shell.lineage.glob("embeddings/*/*.parquet"))
    if how == "damaged":
        content = bytearray(files[-1].read_bytes())
        content[len(content) // 2] ^= 1
        files[-1].write_bytes(content)
    else:
        files[-1].unlink()
    done = shell("back-up")
    assert done.returncode == 2
    assert not shell.backup.exists()


@pytest.mark.long
def test_a_version_is_promoted_and_rolled_back(shell: Shell) -> None:
    publish(Lineage.open(shell.lineage), 3, promote=False)
    assert Lineage.open(shell.lineage).production == 2
    shell.run("promote")
    assert Lineage.open(shell.lineage).production == 3
    shell.run("roll-back")
    assert Lineage.open(shell.lineage).production == 2
    assert Lineage.open(shell.lineage).newest == 3


@pytest.mark.long
def test_tokens_are_rotated(shell: Shell) -> None:
    consumers = ConsumerRegistry.open(shell.lineage)
    consumers.add("ads", "v0", Lineage.open(shell.lineage).resolve)
    old = consumers.issue_token("ads")
    assert ConsumerRegistry.open(shell.lineage).authenticate(old) is not None
    shell.run("rotate")
    assert ConsumerRegistry.open(shell.lineage).authenticate(old) is None
    shell.run("rotate-without-a-gap")
    [consumer] = ConsumerRegistry.open(shell.lineage).list()
    assert (consumer.name, consumer.pinned, consumer.token is not None) == ("ads-next", "v0", True)


def test_the_command_that_is_not_run_has_options_that_exist() -> None:
    [line] = re.findall(r"^evergram upgrade .*$", PAGE, re.MULTILINE)
    name, options = parsed(line.split())
    assert (name, options["no_promote"]) == ("upgrade", True)


def test_a_stored_row_takes_as_many_bytes_as_the_page_says(tmp_path: Path) -> None:
    formula = "N · (4 · (D + v + 1) + 12)"
    assert f"{formula} bytes" in " ".join(PAGE.split())
    rows = 3000
    lineage = lineage_of(tmp_path / "line", rows=rows)
    with open_store(str(tmp_path / "store"), create="int64") as store:
        fill(lineage, store, "object")
    [segment] = (tmp_path / "store" / "segments").glob("*.arrow")
    with pa.memory_map(str(segment)) as source:
        table = pa.ipc.open_file(source).read_all()
    version, dim = 2, lineage.manifest(2).dim
    assert table.nbytes == rows * (4 * (dim + version + 1) + 12)
