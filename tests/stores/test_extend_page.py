"""The store of docs/extend/store.md is the one that the conformance suite runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from tests.support import dictionary_store, store_kinds

from evergram.stores.open_store import KINDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend" / "store.md").read_text()


def test_the_pages_code_is_the_oracle_of_the_tests() -> None:
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    assert block[1] == inspect.getsource(dictionary_store)
    assert "dictionary" in store_kinds.STORES


def test_every_kind_that_an_address_names_is_enrolled() -> None:
    # Those that only read tables of somebody's own hold nothing that the tests could write.
    own = [kind for kind in KINDS.values() if not kind.name.startswith("Adopted")]
    names = {kind.name.removesuffix("Store").lower() for kind in own}
    assert names <= set(store_kinds.STORES)
