"""`evergram vectors plan-migration`: each way with its costs, and a verdict."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.command import Command
from tests.support.two_models import by_two_models

from evergram.vector_files.writers import write_vectors


def four_files(folder: Path, noises: tuple[float, float]) -> tuple[list[object], Path]:
    """Write texts and queries by two models, and judgements; return the command's arguments."""
    vectors, judgements = by_two_models(*noises)
    sides = {
        "old": (vectors.texts, vectors.old),
        "new": (vectors.texts, vectors.new),
        "old-queries": (vectors.queries, vectors.old_queries),
        "new-queries": (vectors.queries, vectors.new_queries),
    }
    for name, (ids, rows) in sides.items():
        write_vectors(folder / f"{name}.parquet", [(pa.array(ids), rows)])
    lines = [f"{q}\t{t}\t{g}" for q, grades in judgements.items() for t, g in grades.items()]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]))
    files: list[object] = [folder / "old.parquet", folder / "new.parquet"]
    for name in ("old-queries", "new-queries"):
        files += [f"--{name}", folder / f"{name}.parquet"]
    return files, folder / "qrels.tsv"


def test_plan_migration_prints_each_way_and_a_verdict(tmp_path: Path, evergram: Command) -> None:
    files, qrels = four_files(tmp_path, (3.0, 0.1))
    files += ["--judgements", qrels, "--depth", 100]
    report = evergram("vectors", "plan-migration", *files, "--json").json
    assert report["verdict"] == "reindex"
    printed = evergram("vectors", "plan-migration", *files)
    assert printed.code == 0
    assert "Verdict: reindex." in printed.out
    assert all(name in printed.out for name in report["ways"])
    assert "…" not in printed.out, "the table is cut off in 80 columns"


def test_plan_migration_without_judgements_gives_no_verdict(
    tmp_path: Path, evergram: Command
) -> None:
    files, _ = four_files(tmp_path, (3.0, 0.1))
    result = evergram("vectors", "plan-migration", *files)
    assert (result.code, "Verdict: none." in result.out) == (1, True)


def test_plan_migration_refuses_in_one_sentence(tmp_path: Path, evergram: Command) -> None:
    files, qrels = four_files(tmp_path, (3.0, 0.1))
    refusal = evergram(
        "vectors", "plan-migration", *files, "--judgements", tmp_path / "none.tsv"
    ).refusal()
    assert "none.tsv cannot be read" in refusal
    both = ["--sidecar-bytes", 3, "--sidecar-error", 0.1]
    refusal = evergram("vectors", "plan-migration", *files, "--judgements", qrels, *both).refusal()
    assert "give one of them" in refusal


def test_vectors_of_zeros_are_said(tmp_path: Path, evergram: Command) -> None:
    files, qrels = four_files(tmp_path, (3.0, 0.1))
    files += ["--judgements", qrels]
    assert "zeros" not in evergram("vectors", "plan-migration", *files).out
    vectors, _ = by_two_models(3.0, 0.1)
    rows = vectors.new.clone()
    rows[:7] = 0
    write_vectors(tmp_path / "new.parquet", [(pa.array(vectors.texts), rows)])
    report = evergram("vectors", "plan-migration", *files, "--json").json
    assert report["zeros"] == {
        "old texts": 0, "new texts": 7, "old queries": 0, "new queries": 0
    }  # fmt: skip
    printed = " ".join(evergram("vectors", "plan-migration", *files).out.split())
    assert "Vectors of zeros: 7 of new texts." in printed


def test_a_folder_of_judgements_may_be_the_inner_one(tmp_path: Path, evergram: Command) -> None:
    files, qrels = four_files(tmp_path, (3.0, 0.1))
    inner = tmp_path / "beir" / "qrels"
    inner.mkdir(parents=True)
    qrels.rename(inner / "test.tsv")
    for folder in (inner, inner.parent):
        asked = [*files, "--judgements", folder, "--json"]
        assert evergram("vectors", "plan-migration", *asked).json["judged"]


def test_a_seed_beyond_what_draws_take_is_refused(tmp_path: Path, evergram: Command) -> None:
    files = [tmp_path / "v.npy"] * 2
    ran = evergram("vectors", "plan-migration", *files, "--seed", str(2**32))
    assert "--seed is '4294967296'; it must be at most 4294967295" in ran.refusal()


def test_pairs_that_pass_a_threshold_are_counted(tmp_path: Path, evergram: Command) -> None:
    files, qrels = four_files(tmp_path, (3.0, 0.1))
    files += ["--judgements", qrels, "--threshold", 0.7]
    pinned = evergram("vectors", "plan-migration", *files, "--json").json["ways"]["pinned"]
    vectors, _ = by_two_models(3.0, 0.1)
    assert pinned["pairs_then"] == int((vectors.old_queries @ vectors.old.T >= 0.7).sum())
    back = torch.linalg.lstsq(vectors.new.double(), vectors.old.double()).solution
    rows = (vectors.new_queries.double() @ back, vectors.new.double() @ back)
    queries, texts = (part / part.norm(dim=1, keepdim=True) for part in rows)
    # The aligner holds a tenth of the texts out.
    assert pinned["pairs_now"] == pytest.approx(int((queries @ texts.T >= 0.7).sum()), rel=0.15)
    assert pinned["pairs_now"] > 1.5 * pinned["pairs_then"]
