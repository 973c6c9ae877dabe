"""A consumer's threshold is counted where its version is read from a newer one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.command import Command
from tests.support.text_encoders import ADDRESSES, encoded

from evergram.lineage.lineage import Lineage


def test_align_and_lineage_check_count_the_pairs_that_pass_a_registered_threshold(
    tmp_path: Path, evergram: Command
) -> None:
    old, new, newest = (encoded(tmp_path, address).path for address in ADDRESSES[:3])
    line = tmp_path / "line"
    options = ["--lineage", line, "--held-out", 0.5, "--transform", "low_rank", "--rank", 4]
    evergram("vectors", "align", old, new, *options)
    added = evergram("consumer", "add", line, "shop", "--pin", "v0", "--threshold", 0.5, "--json")
    assert added.json["threshold"] == {"value": 0.5, "metric": "cosine"}
    [count] = evergram("vectors", "align", 1, newest, *options, "--json").json["thresholds"]
    assert evergram("lineage", "check", line, "--json").json["thresholds"] == [count]

    opened = Lineage.open(line)
    ids, own = opened.canaries(0)["object"]
    new_ids, rows = opened.canaries(2)["object"]
    assert ids.to_pylist() == new_ids.to_pylist()
    scores = []
    for part in (own.double(), opened.chain.apply(rows, 2, 0).double()):
        unit = (part / part.norm(dim=1, keepdim=True)).numpy()
        scores.append((unit @ unit.T)[np.triu_indices(len(unit), 1)])
    then, now = (values >= 0.5 for values in scores)
    assert count["consumer"] == "shop"
    assert (count["pairs"], count["then"], count["now"], count["both"]) == (
        len(then), then.sum(), now.sum(), (then & now).sum()
    )  # fmt: skip
    assert count["calibrated"] == pytest.approx(count["then"], rel=0.1)
    assert count["now"] > 1.2 * count["then"]
    printed = " ".join(evergram("lineage", "check", line).out.split())
    assert f"{count['then']:,} passed, and {count['now']:,} do as read back" in printed


def test_a_threshold_is_of_the_version_that_it_was_set_at(
    tmp_path: Path, evergram: Command
) -> None:
    old, new = (encoded(tmp_path, address).path for address in ADDRESSES[:2])
    line = tmp_path / "line"
    evergram("vectors", "import", old, "--lineage", line)
    evergram("consumer", "add", line, "shop", "--pin", "v0", "--threshold", 0.5)
    evergram("vectors", "align", 0, new, "--lineage", line)
    moved = evergram("consumer", "pin", line, "shop", "v1", "--json").json
    assert moved["threshold"] is None
    wrong = evergram("consumer", "pin", line, "shop", "v0", "--threshold", "nan").refusal()
    assert "threshold" in wrong
