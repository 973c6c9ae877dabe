"""The command prints, and exits with, exactly what the documents say."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

from tests.support.command import Command
from tests.support.golden import GOLDEN

from evergram.lineage.lineage import Lineage


def test_also_versions_fit_80_columns_and_say_what_one_came_for(evergram: Command) -> None:
    path = GOLDEN / "format-3" / "operated"
    ran = evergram("lineage", "list", path)
    assert max(map(len, ran.out.splitlines()[1:])) <= 80
    words = [re.sub(r"[│┃ ]+", " ", line).split() for line in ran.out.splitlines()]
    assert ["version", "dim", "created", "recall@20", "fingerprint", "labels"] in words
    rows = {w[0]: w[1:] for w in words if w and w[0] in {"0", "1", "3"}}
    manifests = {str(m.version): m for m in Lineage.open(path).versions}
    for number, row in rows.items():
        assert row[:2] == [str(manifests[number].dim), manifests[number].created[:10]]
    assert rows["0"][4:] == ["retired"]
    assert rows["1"][4:] == ["stable,", "production"]
    assert "Compared with their hashes: lineage.json, and manifest.json and metrics.json" in ran.out
    listed = evergram("lineage", "list", path, "--json").json
    assert [v["production"] for v in listed["versions"]] == [False, True, False]
    assert "versions/3/metrics.json" in listed["checked"]
    assert "versions/3/encoder.safetensors" not in listed["checked"]


def test_also_check_says_which_files_it_has_compared(evergram: Command, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "format-3" / "trained", tmp_path / "l")
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
