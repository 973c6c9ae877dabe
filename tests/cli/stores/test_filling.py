"""`evergram store fill` and `store index`: what is written, and what is indexed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.stores.conftest import ROWS, versions_in
from tests.support.command import Command


def test_fill_says_what_it_has_written_where(evergram: Command, line: Path) -> None:
    code, out, err = evergram("store", "fill", "line", "--store", "object=rows")
    assert (code, out) == (0, f"{ROWS} rows of side object, version 0: snapshot:rows\n")
    assert err.splitlines()[-1] == f"{ROWS} of {ROWS} rows of side object"
    assert evergram.json("store", "fill", "line", "--store", "object=rows", "--index") == {
        "version": 0,
        "stores": [{"store": "snapshot:rows", "side": "object", "rows": ROWS, "held": {"0": ROWS}}],
    }


def test_fill_writes_the_version_that_is_asked_for(evergram: Command, outdated: Path) -> None:
    out = evergram.json("store", "fill", "line", "--store", "object=new", "--as", "newest")
    assert (out["version"], versions_in("new")) == (1, {1: ROWS})
    wrong = evergram.refused("store", "fill", "line", "--store", "object=other", "--as", "v7")
    assert "7" in wrong


def test_a_store_is_indexed_by_codes_and_too_few_rows_are_said(
    evergram: Command, line: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evergram("store", "fill", "line", "--store", "object=rows").code == 0
    done = evergram("store", "index", "rows", "--codes", "int8")
    few = (
        "Version 0 of snapshot:rows has no index, and searches compare all its rows: "
        f"{ROWS} rows are too few: an index is built of {{}} or more.\n"
    )
    assert (done.code, done.out) == (0, few.format(10_000))
    monkeypatch.setattr("evergram.stores.snapshot.snapshot_store.CODED_FROM", 100)
    done = evergram("store", "index", "rows", "--codes", "float16", "--oversample", "3")
    assert (done.code, done.out) == (0, "Version 0 of snapshot:rows has an index of float16.\n")
    assert evergram.json("store", "index", "rows", "--codes", "int8") == {
        "store": "snapshot:rows",
        "versions": [0],
        "kind": "int8",
        "oversample": 4,
    }
    # An index of codes goes where one of whole vectors is asked for, built or not.
    assert evergram("store", "index", "rows").out == few.format(200_000)
    assert evergram.json("store", "index", "rows")["versions"] == []
    assert not list((line.parent / "rows").rglob("*.faiss"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--oversample", "2"], "an index of float32 is searched by the vectors themselves"),
        (["--codes", "int8", "--oversample", "0"], "--oversample is '0'; it must be at least 1"),
        (["--codes", "bits"], "'bits'"),
    ],
)
def test_codes_that_there_are_none_of(
    evergram: Command, line: Path, options: list[str], words: str
) -> None:
    assert evergram("store", "fill", "line", "--store", "object=rows").code == 0
    done = evergram("store", "index", "rows", *options)
    assert done.code == 2
    assert words in done.err


def test_codes_of_lancedb_and_of_a_folder_of_qdrant(
    evergram: Command, line: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.lance.lance_store.INDEXED_FROM", 100)
    for store in ("lance:rows#films", "qdrant:points#films"):
        assert evergram("store", "fill", "line", "--store", f"object={store}").code == 0
    done = evergram("store", "index", "lance:rows#films", "--codes", "int8")
    assert (done.code, done.out) == (0, "Version 0 of lance:rows#films has an index of int8.\n")
    words = evergram.refused("store", "index", "lance:rows#films", "--codes", "float16")
    assert "its kinds are float32, int8, binary" in words
    words = evergram.refused("store", "index", "qdrant:points#films", "--codes", "int8")
    assert "local mode" in words
    assert evergram("store", "index", "lance:rows#films").code == 0


def test_every_kind_of_codes_can_be_asked_for() -> None:
    from evergram.cli.stores.filling import CodeKind
    from evergram.stores.index_codes import CODES

    assert tuple(kind.value for kind in CodeKind) == CODES
