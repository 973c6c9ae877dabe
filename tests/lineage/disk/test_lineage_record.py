"""`lineage.json`: its names, its checksum and its formats."""

from __future__ import annotations

import pytest
from tests.support.forging import forge

from evergram.errors import IntegrityError
from evergram.lineage.lineage import Lineage


def test_a_lineage_that_was_named_before_there_was_a_rule_is_read(lineage: Lineage) -> None:
    forge(lineage.path / "lineage.json", lambda f: f.update(name="my films, 1"))
    assert Lineage.open(lineage.path).name == "my films, 1"
    forge(lineage.path / "lineage.json", lambda f: f.update(name="\x1b]0;x"))
    with pytest.raises(IntegrityError, match="cannot be printed"):
        Lineage.open(lineage.path)


@pytest.mark.parametrize("label", ["../x", "a b", "\x1b"])
def test_a_label_that_is_no_name_is_not_read(lineage: Lineage, label: str) -> None:
    forge(lineage.path / "lineage.json", lambda f: f["labels"].update({label: 0}))
    with pytest.raises(IntegrityError, match="cannot be a label"):
        Lineage.open(lineage.path)
