"""The pairs that versions were trained on: all of them are known, or none counts as held out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from tests.support.artefacts import artefact
from tests.support.publishing import publish_next

from evergram.data.pair_hash import TrainedPairs
from evergram.lineage.lineage import Lineage
from evergram.lineage.pair_history import PairHistory


def pairs(*marks: int) -> TrainedPairs:
    return TrainedPairs(np.array(marks, np.uint32))


def add(lineage: Lineage, number: int, trained: tuple[str, TrainedPairs] | None) -> None:
    version = artefact(number + 2, number + 1 if number else None)
    publish_next(lineage, dataclasses.replace(version, trained=trained), promote=False)


def test_all_versions_but_the_withdrawn_count(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "shop")
    assert (lineage.pair_history.salt, len(lineage.pair_history.trained)) == (None, 0)
    for number, marks in enumerate([(1, 5), (5, 7), (9,)]):
        add(lineage, number, ("salt", pairs(*marks)))
        lineage.label("kept", number if number < 2 else 1)
    history = lineage.pair_history
    assert (history.salt, history.untested) == ("salt", None)
    assert history.trained.marks.tolist() == [1, 5, 7, 9]
    lineage.withdraw(2, "a fault")
    assert Lineage.open(lineage.path).pair_history.trained.marks.tolist() == [1, 5, 7]


def test_one_version_without_its_pairs_leaves_nothing_to_test_on(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "shop")
    add(lineage, 0, ("salt", pairs(1)))
    add(lineage, 1, None)
    untested = lineage.pair_history.untested
    assert untested is not None
    assert untested.startswith(f"No test figure: the training pairs of version 1 of {lineage.path}")


def test_only_new_pairs_of_the_same_salt_are_recorded() -> None:
    history = PairHistory("salt", pairs(1, 5))
    new = history.new(("salt", pairs(1, 2, 5, 9)))
    assert new is not None
    assert new.marks.tolist() == [2, 9]
    assert history.new(("another", pairs(2))) is None
    assert history.new(None) is None
    assert PairHistory("salt", untested="Not known.").new(("salt", pairs(2))) is None
    first = PairHistory().new(("any", pairs(2)))
    assert first is not None
    assert first.marks.tolist() == [2]
