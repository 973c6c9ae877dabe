"""The commands that show a lineage: list and check."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command import Command
from tests.support.lineages import lineage_of


def test_check_prints_and_holds_to_limits(evergram: Command, growing_shop: Path) -> None:
    evergram("train", "shop.toml", "--lineage", "lin")
    evergram("upgrade", "shop.toml", "--lineage", "lin")
    check = evergram("lineage", "check", "lin", "--json", "--max-error", "1000")
    assert check.code == 0, check.err
    (reading,) = check.json["readings"]
    assert 0 < reading["measured"]["relative"] < 1000
    assert reading["certificate"]["bound"] >= reading["certificate"]["estimate"] > 0
    assert "amplification" in evergram("lineage", "check", "lin").out
    refused = evergram("lineage", "check", "lin", "--max-error", "0", "--max-amplification", "0")
    assert refused.code == 1
    assert refused.err.count("Version 0: its") == 2


def test_versions_are_listed_with_dims_labels_and_fingerprints(
    evergram: Command, tmp_path: Path
) -> None:
    lineage = lineage_of(tmp_path / "line")
    lineage.label("canary", 1)
    lineage.promote(2)
    facts = evergram.json("lineage", "list", tmp_path / "line")
    assert (facts["name"], facts["labels"]) == ("line", {"canary": 1, "stable": 2})
    rows = facts["versions"]
    assert [(r["version"], r["name"], r["dim"], r["encoder"]) for r in rows] == [
        (0, "line@v0", 6, "file"),
        (1, "line@v1", 8, "file"),
        (2, "line@v2", 10, "file"),
    ]
    assert [r["labels"] for r in rows] == [[], ["canary"], ["stable"]]
    assert [r["production"] for r in rows] == [False, False, True]
    assert [r["fingerprint"] for r in rows] == [m.fingerprint for m in lineage.versions]
    assert "lineage.json" in facts["checked"]
    table = evergram("lineage", "list", tmp_path / "line").out
    assert "line, in " in table
    assert "stable, production" in table


def test_check_as_json_has_what_it_measured_and_what_is_past_a_limit(
    evergram: Command, trained_lineage: Path
) -> None:
    code, out, err = evergram(
        "lineage", "check", trained_lineage, "--max-amplification", 0, "--json"
    )
    facts = json.loads(out)
    assert (code, facts["version"]) == (1, 2)
    assert [r["version"] for r in facts["readings"]] == [0, 1]
    assert err.splitlines() == facts["past_limits"]
    assert len(facts["past_limits"]) == 2
    assert "versions/2/manifest.json" in facts["checked"]
