"""The commands that show a lineage: versions, check, export."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import Command


def test_check_prints_and_holds_to_limits(evergram: Command, growing_shop: Path) -> None:
    evergram("train", "shop.toml", "--lineage", "lin")
    evergram("upgrade", "shop.toml", "--lineage", "lin")
    check = evergram("check", "lin", "--json", "--max-error", "1000")
    assert check.code == 0, check.err
    (reading,) = check.json["readings"]
    assert 0 < reading["measured"]["relative"] < 1000
    assert reading["certificate"]["bound"] >= reading["certificate"]["estimate"] > 0
    assert "amplification" in evergram("check", "lin").out
    refused = evergram("check", "lin", "--max-error", "0", "--max-amplification", "0")
    assert refused.code == 1
    assert refused.err.count("Version 0: its") == 2
