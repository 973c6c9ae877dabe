"""The command prints, and exits with, exactly what the documents say."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

from tests.support.command import Command
from tests.support.golden import TRAINED

from evergram.lineage.lineage import Lineage


def test_also_versions_fit_80_columns_and_say_what_one_came_for(
    evergram: Command, trained_lineage: Path
) -> None:
    path = trained_lineage
    Lineage.open(path).promote()
    Lineage.open(path).retire(0)
    ran = evergram("lineage", "list", path)
    assert max(len(line) for line in ran.out.splitlines() if line[:1] in "┏┡└│┃") <= 80
    words = [re.sub(r"[│┃ ]+", " ", line).split() for line in ran.out.splitlines()]
    assert ["version", "dim", "created", "recall@5", "fingerprint", "labels"] in words
    rows = {w[0]: w[1:] for w in words if w and w[0] in {"0", "1", "2"}}
    manifests = {str(m.version): m for m in Lineage.open(path).versions}
    for number, row in rows.items():
        assert row[:2] == [str(manifests[number].dim), manifests[number].created[:10]]
    assert rows["0"][4:] == ["retired"]
    assert rows["2"][4:] == ["stable,", "production"]
    assert "Compared with their hashes: lineage.json, and manifest.json and metrics.json" in ran.out
    listed = evergram("lineage", "list", path, "--json").json
    assert [v["production"] for v in listed["versions"]] == [False, False, True]
    assert "versions/2/metrics.json" in listed["checked"]
    assert "versions/2/encoder.safetensors" not in listed["checked"]


def test_also_check_says_which_files_it_has_compared(evergram: Command, tmp_path: Path) -> None:
    shutil.copytree(TRAINED, tmp_path / "l")
    ran = evergram("lineage", "check", tmp_path / "l", "--json")
    everything = {
        p.relative_to(tmp_path / "l").as_posix()
        for p in (tmp_path / "l").rglob("*")
        if p.is_file() and not p.name.startswith(".")
    }
    assert set(ran.json["checked"]) == everything
    output = " ".join(evergram("lineage", "check", tmp_path / "l").out.split())
    assert f"{len(everything)} files were compared with their hashes" in output
    # It is true: any of them that is changed is refused.
    victim = tmp_path / "l" / random.Random(0).choice(sorted(everything))
    victim.write_bytes(victim.read_bytes()[:-1] + b"#")
    assert evergram("lineage", "check", tmp_path / "l").code == 2
