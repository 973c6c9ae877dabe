"""The behaviour of every loader; the table and docs/extend/loader.md enrol a new one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.support.loader_examples import EXAMPLES, LoaderSettings

from evergram.data.corpus import Corpus
from evergram.data.loaders import LOADERS, READ_FROM_A_PATH, Loader
from evergram.errors import DataError

PAGE = (Path(__file__).parents[2] / "docs" / "extend" / "loader.md").read_text()


def of_the_page() -> tuple[Loader, Callable[[Path], LoaderSettings]]:
    """The entry that the page adds to the table, and the example of its loader."""
    code, line, example = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module = ModuleType("baskets")
    exec(compile(code, "loader.md", "exec"), vars(module))
    space: dict[str, Any] = {"LoaderSettings": LoaderSettings, "Path": Path}
    exec(compile(example, "loader.md", "exec"), space)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "baskets", module)
        patch.setitem(LOADERS, "baskets", LOADERS["table"])  # taken out again afterwards
        exec(compile(line, "loader.md", "exec"), {})
        return LOADERS["baskets"], space["baskets"]


DOCUMENTED, SOURCE = of_the_page()
ALL: dict[str, Loader] = {**LOADERS, "baskets": DOCUMENTED}
SOURCES: dict[str, Callable[[Path], LoaderSettings]] = {
    **EXAMPLES,
    "baskets": SOURCE,
}
FROM_A_PATH = [*READ_FROM_A_PATH, "baskets"]


def same(one: Corpus, other: Corpus) -> bool:
    sides = ((one.queries, other.queries), (one.candidates, other.candidates))
    return bool(one.interactions.equals(other.interactions)) and all(
        a.vocabulary.same_keys(b.vocabulary) and list(a.features) == list(b.features)
        for a, b in sides
    )


def test_every_loader_has_an_example() -> None:
    assert set(SOURCES) == set(ALL)


@pytest.mark.parametrize("kind", ALL)
def test_a_corpus_is_whole_and_the_same_twice(kind: str, tmp_path: Path) -> None:
    settings = SOURCES[kind](tmp_path)
    corpus = ALL[kind](settings, 0)
    assert same(corpus, ALL[kind](settings, 0))
    assert len(corpus) > 1
    for name in corpus.interactions.column_names:
        assert bool(corpus.column(name).isfinite().all())
    for side in (corpus.queries, corpus.candidates):
        keys = side.vocabulary.keys
        assert len(keys) == len(keys.unique())
        assert not keys.null_count
    if corpus.has_times:
        assert bool((corpus.column("time").diff() >= 0).all())
    assert corpus.counts("query").sum() == len(corpus)
    # A restriction to all is the same corpus.
    assert len(corpus.restrict(torch.arange(len(corpus)))) == len(corpus)


@pytest.mark.parametrize("kind", FROM_A_PATH)
def test_a_source_that_is_absent_is_named(kind: str, tmp_path: Path) -> None:
    settings = replace(SOURCES[kind](tmp_path), path=str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"no file or folder .*nowhere; correct the path\.$"):
        ALL[kind](settings, 0)


@pytest.mark.parametrize("kind", FROM_A_PATH)
@pytest.mark.parametrize("content", [b"", b"\x00\xff{[\n\x80,,,\n"], ids=["empty", "damaged"])
def test_a_damaged_source_is_refused_in_one_sentence(
    kind: str, content: bytes, tmp_path: Path
) -> None:
    if kind == "baskets" and content:
        pytest.skip("the page's loader reads text alone, to stay short")
    settings = SOURCES[kind](tmp_path)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        ALL[kind](settings, 0)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_row_of_the_pages_loader_is_named(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('["tea"]\nmilk\n')
    with pytest.raises(DataError, match="row 2 is no JSON list"):
        DOCUMENTED(LoaderSettings(str(tmp_path / "b.jsonl")), 0)
