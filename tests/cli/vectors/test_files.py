"""`evergram vectors import` and `export`: between files and a lineage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from tests.support.command import Command
from tests.support.lineages import lineage_of, read_as


def test_export_writes_a_version_as_the_readers_see_it(evergram: Command, tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    out = tmp_path / "out.parquet"
    export = ("vectors", "export", tmp_path / "line", out, "--as", "v0")
    assert "it has object" in evergram.refused(*export, "--side", "candidate")
    assert evergram.json(*export) == {
        "file": str(out), "rows": 300, "dim": 6, "side": "object", "version": 2, "as": 0,
    }  # fmt: skip
    table = pq.read_table(out)
    assert table["id"].to_pylist() == list(range(300))
    np.testing.assert_allclose(np.stack(table["vector"].to_numpy()), read_as(2, 0), atol=1e-5)
    assert f"{out} is there already" in evergram.refused(*export)
    again = evergram(*export, "--force")
    assert again.out == (f"300 object embeddings of version 2, read as version 0 (6 dims): {out}\n")


def test_an_exported_file_is_imported_as_version_0(evergram: Command, tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    out = tmp_path / "out.parquet"
    evergram.json("vectors", "export", tmp_path / "line", out, "--side", "object", "--as", "v0")
    facts = evergram.json("vectors", "import", out, "--lineage", tmp_path / "new")
    assert (facts["version"], facts["rows"], facts["dim"]) == (0, 300, 6)
    assert "already holds a lineage" in evergram.refused(
        "vectors", "import", out, "--lineage", tmp_path / "new"
    )
