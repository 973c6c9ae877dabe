"""Foreign archives are bounded, secrets are kept, and a killed command leaves whole versions:
promise 20."""

from __future__ import annotations

import gzip
import os
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.support.command import Command, CommandResult
from tests.support.published_vectors import add_probe

from evergram.lineage.lineage import Lineage

ROOT = Path(__file__).parents[2]


def train(evergram: Command, kind: str, path: Path) -> CommandResult:
    recipe = Path("r.toml")
    recipe.write_text(f'[data]\nkind = "{kind}"\npath = "{path}"\n')
    return evergram("train", recipe, "--lineage", "new")


@pytest.mark.long
def test_20_an_archive_that_expands_without_end_is_refused(
    evergram: Command, publisher_folder: Path
) -> None:
    """80 MiB in a file of 80 KiB, as MovieLens and as a table."""
    rows = b"1,1,1,1\n" * 10_000_000
    with zipfile.ZipFile("ml.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ratings.csv", b"userId,movieId,rating,timestamp\n" + rows)
    Path("pairs.csv.gz").write_bytes(gzip.compress(b"query,candidate,value,time\n" + rows))
    for kind, path in (("movielens", "ml.zip"), ("table", "pairs.csv.gz")):
        refused = train(evergram, kind, publisher_folder / path)
        assert "expands to more than 64 MiB, over 100 times its size" in refused.refusal()
        assert "EVERGRAM_MAX_EXPANSION" in refused.err
    assert not Path("new").exists()


def test_20_files_that_hold_tokens_are_readable_by_their_owner_only(
    evergram: Command, imported_lineage: Path
) -> None:
    before = os.umask(0o022)
    try:
        assert add_probe(evergram, "plain.onnx", "--token").code == 0
        assert evergram("vectors", "align", "0", "new.parquet", "--lineage", "l").code == 0
    finally:
        os.umask(before)
    for path in imported_lineage.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    # Shared with a group, once and for all.
    subprocess.run(["chmod", "-R", "g+rX", str(imported_lineage)], check=True)
    assert evergram("consumer", "token", "l", "ads").code == 0
    assert evergram("vectors", "align", "1", "old.parquet", "--lineage", "l").code == 0
    for path in imported_lineage.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o750 if path.is_dir() else 0o640), path


DYING = """
import sys
from pathlib import Path
import torch
from tests.support.dying import die_at
from evergram.cli import main
# All that a command imports, before its operations on files are counted.
import evergram.releasing.files.align, evergram.releasing.probes
import evergram.lineage.consumers.registry
number, folder, *sys.argv = sys.argv[1:]
die_at(int(number), Path(folder))
main()
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [3, 20, 40, 60, 80])
def test_also_a_command_that_is_killed_leaves_whole_versions(
    evergram: Command, imported_lineage: Path, number: int
) -> None:
    """The command itself, killed just before one of its operations on the lineage's files."""
    align = ["evergram", "vectors", "align", "0", "new.parquet", "--lineage", str(imported_lineage)]
    died = subprocess.run(
        [sys.executable, "-c", DYING, str(number), str(imported_lineage), *align],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    newest = Lineage.open(imported_lineage).newest
    assert evergram("lineage", "check", "l").code == 0
    assert evergram("vectors", "align", str(newest), "old.parquet", "--lineage", "l").code == 0
    assert not list(imported_lineage.rglob(".*.part"))
