"""The links of a dump in blocks, and what the report says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.dumps import new_dump, old_dump

from evergram.data.wikipedia import dump_files
from evergram.data.wikipedia.dump_links import DumpLinks
from evergram.errors import DataError

# In the order of the file, of pages' ids: one is there twice, by a redirect.
LINKED = [(1, 2), (1, 2), (10, 2), (2, 1)]


@pytest.mark.parametrize("dump", [old_dump, new_dump])
@pytest.mark.parametrize("block", [1, 3, 1 << 22])
def test_blocks_have_the_links_in_the_order_of_the_file(
    dump: Any, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump_files, "BLOCK", block)
    links = DumpLinks(dump(tmp_path))
    blocks = list(links.codes())
    codes = np.concatenate(blocks)
    ends = links.ids(codes // links.size), links.ids(codes % links.size)
    assert list(zip(*(ids.to_pylist() for ids in ends), strict=True)) == LINKED
    links.count(len(codes), 3)
    assert (links.report.links, links.report.repeated_links) == (3, 1)
    assert links.report.links_not_from_articles == 3
    assert links.path.name == "xwiki-1-pagelinks.sql"


def test_features_are_of_the_articles_that_are_linked(tmp_path: Path) -> None:
    links = DumpLinks(old_dump(tmp_path))
    features = links.features(np.array([0, 1]))
    assert features["id"].to_pylist() == [1, 2]
    assert features["category"].to_pylist() == [["Months", "Months of spring"], ["People"]]
    assert links.report.pages_without_links == 1
    assert links.features(np.array([0, 8]), 2)["category"].to_pylist() == [["Months"]] * 2


def test_a_dump_without_links_is_refused(tmp_path: Path) -> None:
    links = DumpLinks(old_dump(tmp_path), namespace=1)
    assert [code for block in links.codes() for code in block] == []
    with pytest.raises(DataError, match="links no two pages of namespace 1"):
        links.count(0, 0)
    with pytest.raises(DataError, match="'keep'; it must be 'resolve' or 'drop'"):
        DumpLinks(tmp_path, redirects="keep")  # type: ignore[arg-type]
